"""Engines: what runs a rank's program besides numpy. One text of the program, kernels and collectives by engine."""
