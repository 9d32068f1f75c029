"""StableHLO modules as graphs: `from_stablehlo`, `from_jax`."""
