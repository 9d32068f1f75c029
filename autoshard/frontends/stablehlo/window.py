"""Translators of operations on sliding windows."""

from __future__ import annotations

from typing import Any

from autoshard.frontends.stablehlo.attributes import attribute
from autoshard.frontends.stablehlo.bodies import read_body
from autoshard.frontends.stablehlo.table import Translation, translates


def pairs(op: Any, name: str) -> tuple[tuple[int, int], ...]:
    """An attribute of one (before, after) pair per dim; () if it is absent."""
    found = attribute(op, name)
    return () if found is None else tuple((int(low), int(high)) for low, high in found)


@translates("stablehlo.reduce_window")
def _(op: Any) -> Translation:
    return "ReduceWindow", {
        "dimensions": attribute(op, "window_dimensions"),
        "strides": attribute(op, "window_strides", ()),
        "base_dilations": attribute(op, "base_dilations", ()),
        "window_dilations": attribute(op, "window_dilations", ()),
        "padding": pairs(op, "padding"),
        "body": read_body(op.regions[0]),
    }


@translates("stablehlo.select_and_scatter")
def _(op: Any) -> Translation:
    rank = len(attribute(op, "window_strides", ()) or attribute(op, "window_dimensions", ()))
    return "SelectAndScatter", {
        "dimensions": attribute(op, "window_dimensions", (1,) * rank),
        "strides": attribute(op, "window_strides", ()),
        "padding": pairs(op, "padding"),
        "select": read_body(op.regions[0]),
        "scatter": read_body(op.regions[1]),
    }
