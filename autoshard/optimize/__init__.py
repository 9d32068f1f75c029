"""Passes over programs: each takes a program and leaves one that does the same with less. `optimize` runs them."""

from autoshard.optimize.pipeline import DEFAULT, PASSES, Measure, Saving, optimize, optimize_freely

__all__ = ["DEFAULT", "PASSES", "Measure", "Saving", "optimize", "optimize_freely"]
