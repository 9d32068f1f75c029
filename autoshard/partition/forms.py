"""Forms: a layout and the padded shape that it divides; and how a value gets from one form to another.

A dim has its true size where it is whole, and its padded size where it is split, before, between and after the steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout
from autoshard.partition.program import Register
from autoshard.redistribute.planner import elements_moved, program_steps
from autoshard.redistribute.step import Step

Shape = tuple[int, ...]


class Form(NamedTuple):
    """How a register holds a value: its layout, the padded shape that the layout divides, and what the padding holds
    if that is known."""

    layout: Layout
    shape: Shape
    fill: float | None = None

    def register(self, name: str, of: TensorType) -> Register:
        """A register of this form for a value of that type."""
        padded = self.shape != of.shape
        return Register(name, of.with_shape(self.shape) if padded else of, self.layout, of.shape if padded else None)


class FormPath(NamedTuple):
    """Steps from one form of a value, each with the form that it leads to, and the elements that they move."""

    start: Form
    steps: tuple[tuple[Step, Form], ...]
    moved: float


@lru_cache(maxsize=1 << 12)
def padded_steps(start: Form, end: Form, shape: Shape) -> FormPath:
    """How a value of true `shape` gets from one form to another.

    Dims in blocks of two sizes that do not fit each other are made whole in between.

    Raises:
        RedistributeError: no steps lead from one layout to the other.
    """
    clash = [
        dim
        for dim, (old, new) in enumerate(zip(start.layout.parts, end.layout.parts, strict=True))
        if old > 1 and new > 1 and start.shape[dim] != end.shape[dim]
    ]
    if not clash:
        return _leg(start, end, shape)
    layout = start.layout.with_dims(() if dim in clash else refs for dim, refs in enumerate(start.layout.dims))
    middle = Form(layout, _where_split(layout, start.shape, shape))
    first, second = _leg(start, middle, shape), _leg(middle, end, shape)
    return FormPath(start, first.steps + second.steps, first.moved + second.moved)


def _leg(start: Form, end: Form, shape: Shape) -> FormPath:
    work = _where_split(end.layout, end.shape, _where_split(start.layout, start.shape, shape))
    steps = program_steps(start.layout, end.layout, work, shape)
    forms = [Form(step.after, _where_split(step.after, work, shape)) for step in steps]
    return FormPath(start, tuple(zip(steps, forms, strict=True)), elements_moved(steps, work, shape))


def _where_split(layout: Layout, padded: Shape, shape: Shape) -> Shape:
    """The padded sizes where the layout splits, the others elsewhere."""
    sizes = zip(layout.parts, padded, shape, strict=True)
    return tuple(large if parts > 1 else size for parts, large, size in sizes)
