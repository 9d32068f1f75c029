"""Graphs from other people's programs: StableHLO and JAX. Nothing here imports JAX before it is used."""

from autoshard.frontends.jax_function import from_jax
from autoshard.frontends.stablehlo.load import from_stablehlo

__all__ = ["from_jax", "from_stablehlo"]
