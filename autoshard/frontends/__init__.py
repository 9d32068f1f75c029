"""Graphs from other people's programs: StableHLO, JAX and PyTorch. None of them is imported before it is used."""

from autoshard.frontends.jax.load import from_jax
from autoshard.frontends.stablehlo.load import from_stablehlo
from autoshard.frontends.torch.load import from_torch

__all__ = ["from_jax", "from_stablehlo", "from_torch"]
