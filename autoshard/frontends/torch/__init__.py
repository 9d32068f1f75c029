"""Graphs from PyTorch: modules, exported programs and .pt2 files. Nothing here imports torch before it is used."""
