"""Translators of cholesky, triangular_solve and fft."""

from __future__ import annotations

from typing import Any

from autoshard.frontends.stablehlo.attributes import attribute
from autoshard.frontends.stablehlo.table import Translation, translates


def word(op: Any, name: str) -> str:
    """The last word of an attribute that prints like `#stablehlo<fft_type RFFT>`."""
    return str(op.attributes[name]).rstrip(">").split()[-1]


@translates("stablehlo.cholesky")
def _(op: Any) -> Translation:
    return "Cholesky", {"lower": attribute(op, "lower", False)}


@translates("stablehlo.triangular_solve")
def _(op: Any) -> Translation:
    return "TriangularSolve", {
        "left_side": attribute(op, "left_side"),
        "lower": attribute(op, "lower"),
        "unit_diagonal": attribute(op, "unit_diagonal"),
        "transpose_a": word(op, "transpose_a"),
    }


@translates("stablehlo.fft")
def _(op: Any) -> Translation:
    return "Fft", {"kind": word(op, "fft_type"), "length": attribute(op, "fft_length")}
