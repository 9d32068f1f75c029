"""Stretch: operators of one rank that follow each other, as calls of numpy on named arrays.

    stretch = Stretch(slots, {})
    stretch.add(script, node.operands, node.results, 0)      # operator by operator
    stretch.lines                                            # what `numpy_text.py` writes as a function

Scripts (`numpy_script.py`) say what is called; what is called alike by operators near each other is called once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.engines import numpy_values
from autoshard.engines.numpy_script import Ref, Script
from autoshard.engines.numpy_values import NumpyCall
from autoshard.partition.program import Register
from autoshard.runtime.array import array_dtype

WINDOW = 4
"""What is called alike within so many operators is called once; farther apart its result would be held for long."""


@dataclass(eq=False)
class Var:
    """An array in the text.

    Args:
        roots: whose memory it may lie in: Vars that were made, that come from slots, or that are constant.
        slot: the slot that it comes from; None: it is made here.
        constant: its value, if that is the same in each run.
        scalar: whether it may be one of numpy's numbers, not an array of it.
        cut: whether it may be a part of other memory, or lie in it backwards or several times: no result is made there.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    name: str
    roots: frozenset[Var] = frozenset()
    slot: int | None = None
    constant: np.ndarray | None = None
    scalar: bool = False
    cut: bool = False

    def __post_init__(self) -> None:
        self.roots = self.roots or frozenset((self,))


@dataclass(eq=False)
class StretchLine:
    """A call and what it makes.

    Args:
        parts: whether it makes a tuple, if of one.
        operator: the number of its operator in the stretch.
        place: that of its operator for whoever watches the rank.
        into: if what is called shall be written to a view of what is made: the view's shape, and the order of its dims.
    """

    of: NumpyCall
    args: tuple
    kwargs: tuple
    made: tuple[Var, ...]
    parts: bool
    errors: tuple[tuple[str, Any], ...] | None
    operator: int
    place: int
    into: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @cached_property
    def uses(self) -> list[Var]:
        return vars_in((self.args, self.kwargs))


def vars_in(value: Any) -> list[Var]:
    """The Vars of an argument, in their order."""
    if isinstance(value, Var):
        return [value]
    if isinstance(value, tuple | list):
        return [found for one in value for found in vars_in(one)]
    return []


@dataclass
class Stretch:
    """Collects the operators of a stretch on one rank.

    Args:
        slots: the slots of all registers.
        fixed: registers whose arrays are the same in each run.
    """

    slots: Mapping[Register, int]
    fixed: Mapping[Register, np.ndarray]
    lines: list[StretchLine] = field(default_factory=list)
    of: dict[Register, Var] = field(default_factory=dict)
    results: list[Register] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _constants: dict[tuple, Var] = field(default_factory=dict)
    _known: dict[str, tuple[int, tuple[Var, ...]]] = field(default_factory=dict)
    _count: int = 0
    _operators: int = 0

    # -- collecting

    def add(self, script: Script, operands: Sequence[Register], results: Sequence[Register], place: int) -> None:
        """The next operator."""
        self._operators += 1
        known: dict[Ref, Var] = {Ref("operand", i): self.var(one) for i, one in enumerate(operands)}
        known.update((Ref("constant", i), self._constant(one)) for i, one in enumerate(script.constants))
        for i, step in enumerate(script.steps):
            args, kwargs = _with(step.args, known), _with(step.kwargs, known)
            made = self.call(step.of, args, kwargs, step.made, step.parts, step.errors, place)
            known.update((Ref("step", i, j if step.parts else None), one) for j, one in enumerate(made))
        self.results += results
        for register, output in zip(results, script.outputs, strict=True):
            self.of[register] = known[output] if isinstance(output, Ref) else self._constant(output)

    def view(self, index: Any, operand: Register, result: Register, place: int) -> None:
        """A part of an operand, in the operand's memory."""
        self._operators += 1
        self.results.append(result)
        shape, dtype = result.local.shape, self.var(operand).dtype
        args = self.var(operand), index
        (self.of[result],) = self.call(numpy_values.get, args, (), ((shape, dtype),), False, None, place)

    def call(
        self, of: NumpyCall, args: tuple, kwargs: tuple, made: Iterable[tuple], parts: bool, errors: Any, place: int
    ) -> tuple[Var, ...]:
        """What a call makes: of one alike that is not far, what that has made."""
        key = f"{self.object_name(of.of, 'f')} {self.told(args)} {self.told(kwargs)} {errors}"
        before, found = self._known.get(key, (0, ()))
        if found and self._operators - before <= WINDOW:
            return found
        roots = frozenset() if of.makes else frozenset(root for one in vars_in((args, kwargs)) for root in one.roots)
        scalars = of.kind not in (numpy_values.VIEW, numpy_values.CAST, numpy_values.SET)
        cuts = of.kind in (numpy_values.BROADCAST, numpy_values.GET)
        cut = cuts or (not of.makes and any(one.cut for one in vars_in(args)))
        found = tuple(
            Var(shape, dtype, self._new("v"), roots, scalar=scalars and not shape, cut=cut) for shape, dtype in made
        )
        self.lines.append(StretchLine(of, args, kwargs, found, parts, errors, self._operators, place))
        self._known[key] = self._operators, found
        return found

    def var(self, register: Register) -> Var:
        """The array of a register."""
        if register not in self.of:
            if register in self.fixed:
                self.of[register] = self._constant(self.fixed[register])
            else:
                slot, dtype = self.slots[register], array_dtype(register.whole.dtype)
                self.of[register] = Var(register.local.shape, dtype, f"x{slot}", slot=slot)
        return self.of[register]

    def _constant(self, value: np.ndarray) -> Var:
        key = value.shape, value.dtype.str, value.dtype.name, value.tobytes()
        if key not in self._constants:
            value.setflags(write=False)
            name = self.object_name(value, "c")
            self._constants[key] = Var(value.shape, value.dtype, name, constant=value)
        return self._constants[key]

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def object_name(self, value: Any, kind: str) -> str:
        """The name of something that has no text."""
        if id(value) not in self._names:
            self._names[id(value)] = self._new(kind)
            self.objects[self._names[id(value)]] = value
        return self._names[id(value)]

    def told(self, value: Any) -> str:
        """The text of an argument."""
        if isinstance(value, Var):
            return value.name
        if type(value) is tuple or type(value) is list:
            inside = "".join(f"{self.told(one)}, " for one in value)
            return f"({inside})" if type(value) is tuple else f"[{inside}]"
        if type(value) is slice:
            return f"slice({self.told((value.start, value.stop, value.step))[1:-1]})"
        if value is Ellipsis or type(value) in (bool, int, str, type(None)):
            return "..." if value is Ellipsis else repr(value)
        return self.object_name(value, "k")


def _with(value: Any, known: Mapping[Ref, Var]) -> Any:
    """The value with Vars for Refs."""
    if isinstance(value, Ref):
        return known[value]
    return type(value)(_with(one, known) for one in value) if isinstance(value, tuple | list) else value
