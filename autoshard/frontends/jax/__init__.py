"""JAX functions and flax modules as models whose parameters have names: `from_jax`."""
