"""The modules of a model as a tree, from the names of its operators: equal ones beside each other are one.

`model.layers.3.mlp.mul` is the operator `mul` of the module `model.layers.3.mlp`. Layers that are numbered one after
the other, with the same operators that are split alike and take the same time, are one module with several `copies`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from autoshard.report.summary import OperatorRow, Summary

_PART = re.compile(r"[^./\[\]]+")


@dataclass(frozen=True)
class Module:
    """A module: the last part of its name, its own operators (indices of rows) and the modules in it.

    `copies` are the last parts of the names of all modules that it stands for, its own being the first. Seconds and
    bytes are of one of them, those in it included; `move_seconds` are the redistributions', which `seconds` leave out.
    """

    name: str
    copies: tuple[str, ...]
    operators: tuple[int, ...]
    children: tuple[Module, ...]
    seconds: float
    move_seconds: float
    nbytes: float

    @property
    def shown(self) -> str:
        """The last part of its name, a range for several: `{0..11}`."""
        return self.name if len(self.copies) == 1 else f"{{{self.copies[0]}..{self.copies[-1]}}}"


@dataclass
class _ModuleRow:
    operators: list[int] = field(default_factory=list)
    children: dict[str, _ModuleRow] = field(default_factory=dict)


def module_path(label: str) -> tuple[str, ...]:
    """The parts of an operator's name, its own the last; a number at the end goes with the part before it.

    >>> module_path("h.3.mlp.mul"), module_path("grad.tanh.2")
    (('h', '3', 'mlp', 'mul'), ('grad', 'tanh.2'))
    """
    parts = _PART.findall(label) or [label]
    if len(parts) > 1 and parts[-1].isdecimal():
        parts[-2:] = [".".join(parts[-2:])]
    return tuple(parts)


def module_tree(summary: Summary) -> Module:
    """The modules of a plan; the outermost has no name."""
    root = _ModuleRow()
    for index, row in enumerate(summary.operators):
        at = root
        for part in module_path(row.node.label)[:-1]:
            at = at.children.setdefault(part, _ModuleRow())
        at.operators.append(index)
    return _finished("", root, summary.operators)[0]


def _finished(name: str, draft: _ModuleRow, rows: Sequence[OperatorRow]) -> tuple[Module, Hashable]:
    """A module, and what it has in common with those that equal it."""
    joined = list(_joined([_finished(part, one, rows) for part, one in draft.children.items()]))
    own = [rows[i] for i in draft.operators]
    moves = [move for row in own for move in row.moves]
    counted = [(one, len(one.copies)) for one, _ in joined]
    module = Module(
        name,
        (name,),
        tuple(draft.operators),
        tuple(one for one, _ in joined),
        sum(row.seconds * row.times for row in own) + sum(one.seconds * count for one, count in counted),
        sum(one.seconds * one.times for one in moves) + sum(one.move_seconds * count for one, count in counted),
        sum(one.nbytes * one.times for one in moves) + sum(one.nbytes * count for one, count in counted),
    )
    return module, (tuple(map(_looks, own)), tuple((one.copies, looks) for one, looks in joined))


def _joined(made: Sequence[tuple[Module, Hashable]]) -> Iterator[tuple[Module, Hashable]]:
    """The modules with equal neighbours as one: numbers one after the other, and all else alike."""
    ordered = sorted(made, key=lambda one: _number(one[0]) or 0)
    runs = groupby(enumerate(ordered), lambda item: _run(item[0], *item[1]))
    for _, run in runs:
        members = [one for _, one in run]
        first, looks = members[0]
        yield replace(first, copies=tuple(module.name for module, _ in members)), looks


def _number(module: Module) -> int | None:
    return int(module.name) if module.name.isdecimal() else None


def _run(place: int, module: Module, looks: Hashable) -> Hashable:
    number = _number(module)
    return module.name if number is None else (number - place, looks)


def _looks(row: OperatorRow) -> Hashable:
    """What an operator has in common with that of an equal layer."""
    label = module_path(row.node.label)[-1]
    moves = tuple((str(one.before), str(one.after), one.nbytes, one.times) for one in row.moves)
    strategy, layouts = str(row.decision.strategy), tuple(map(str, row.layouts))
    return label, row.node.op.name, strategy, layouts, f"{row.seconds:.6g}", row.times, moves


_FEW, _DEAR = 9, 0.2


def dearest_modules(tree: Module, step_seconds: float) -> list[tuple[str, Module, int]]:
    """The modules that take a step between them, the dear ones opened: names, and how many each stands for."""
    found = [one for one in _inside("", tree, 1)]
    while len(found) <= _FEW:
        dear = [one for one in found if one[1].children and _whole(one) >= _DEAR * step_seconds]
        if not dear:
            break
        name, module, times = largest = max(dear, key=_whole)
        found.remove(largest)
        found += _inside(name, module, times)
        own = _alone(module)
        if own.operators and own.seconds + own.move_seconds > 1e-12:
            found.append((name, own, times))
    return sorted(found, key=_whole, reverse=True)


def _inside(name: str, module: Module, times: int) -> Iterator[tuple[str, Module, int]]:
    prefix = f"{name}." if name else ""
    for one in module.children:
        yield f"{prefix}{one.shown}", one, times * len(one.copies)


def _whole(one: tuple[str, Module, int]) -> float:
    _, module, times = one
    return times * (module.seconds + module.move_seconds)


def _alone(module: Module) -> Module:
    """A module without those in it."""
    inner = [(one, len(one.copies)) for one in module.children]
    return replace(
        module,
        children=(),
        seconds=module.seconds - sum(count * one.seconds for one, count in inner),
        move_seconds=module.move_seconds - sum(count * one.move_seconds for one, count in inner),
        nbytes=module.nbytes - sum(count * one.nbytes for one, count in inner),
    )
