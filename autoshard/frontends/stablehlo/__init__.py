"""StableHLO modules as graphs: `from_stablehlo`."""
