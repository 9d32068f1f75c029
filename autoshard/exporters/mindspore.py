"""A plan in MindSpore's forms: the JSON of its strategy checkpoints, and `shard(...)` lines; both are read back.

The JSON has the keys of MindSpore's strategy checkpoint files: an operator's strategy (parts per operand and dim) under
its name, a parameter's device matrix and tensor map (matrix axes counted from the right, -1 for a whole dim).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.core.strategy import Parts, show_parts
from autoshard.ir.graph import DATA, walk
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.tensor_map import MapEntry, TensorMap
from autoshard.plan.plan import Plan
from autoshard.util.errors import LayoutError, ParseError, PlanError
from autoshard.util.files import write_whole

_STRATEGIES, _LAYOUTS = "parallel_strategy_item", "parallel_layout_item"
_SHARD = re.compile(r"(?P<name>\S+)\.shard\((?P<given>.*?)\)\s*(?:#.*)?")


@dataclass(frozen=True)
class Strategies:
    """What such a file or such lines say: `operators` maps names to in_strategies, `parameters` to tensor maps."""

    operators: Mapping[str, Parts]
    parameters: Mapping[str, TensorMap]

    def layouts(self, mesh: Mesh) -> dict[str, Layout]:
        """The parameters' layouts on a mesh of as many devices.

        Raises:
            LayoutError: the mesh cannot say one of them; the message names the parameter.
        """
        found = {}
        for name, view in self.parameters.items():
            try:
                found[name] = view.layout(mesh)
            except LayoutError as error:
                raise LayoutError(f"parameter {name}: {error}") from None
        return found


def to_checkpoint(plan: Plan) -> dict[str, Any]:
    """The plan as a strategy checkpoint.

    Where several mesh axes split one dim, its tensor map has a list, as in MindSpore's extended layouts.

    Raises:
        PlanError: a device order, or operators that only MindSpore's notions cannot tell apart.
    """
    return {
        "current_stage": 0,
        _STRATEGIES: {
            node.label: {"stage": 0, "parallel_strategy": [list(one) for one in plan.strategy(node).in_strategy]}
            for node in walk(plan.graph.nodes)
        },
        _LAYOUTS: {
            value.name: _layout_item(value.name, plan.layouts[value], value.type.shape)
            for value in plan.graph.inputs
            if plan.graph.role_of[value] != DATA
        },
    }


def _layout_item(name: str, layout: Layout, shape: tuple[int, ...]) -> dict[str, Any]:
    try:
        view = TensorMap.of(layout)
    except LayoutError as error:
        raise PlanError(f"cannot export parameter {name} to MindSpore: {error}") from None
    return {
        "dev_matrix": list(view.device_matrix),
        "tensor_map": [list(one) if isinstance(one, tuple) else one for one in view.tensor_map],
        "tensor_shape": list(shape),
        "field": 0,
        "opt_weight_shard_step": 0,
        "opt_weight_shard_size": 0,
    }


def save_checkpoint(plan: Plan, path: str | Path) -> Path:
    """Write a strategy checkpoint as JSON, whole or not at all; the path.

    Raises:
        PlanError: as for `to_checkpoint`, or the file cannot be written.
    """
    return write_whole(path, json.dumps(to_checkpoint(plan), indent=1) + "\n", PlanError)


def from_checkpoint(data: Mapping[str, Any] | str | Path) -> Strategies:
    """Read a strategy checkpoint: the data, or a file of it.

    Raises:
        ParseError: no such file, not JSON, or entries of another form; the message names the entry.
    """
    where = "the strategy checkpoint" if isinstance(data, Mapping) else str(data)
    given = data if isinstance(data, Mapping) else _loaded(Path(data))
    if not isinstance(given, Mapping) or not any(key in given for key in (_STRATEGIES, _LAYOUTS)):
        raise ParseError(f"{where} has neither {_STRATEGIES!r} nor {_LAYOUTS!r}; it is no strategy checkpoint")
    operators, parameters = {}, {}
    for name, item in given.get(_STRATEGIES, {}).items():
        operators[name] = tuple(_whole(one, where, name) for one in _of(item, "parallel_strategy", where, name))
    for name, item in given.get(_LAYOUTS, {}).items():
        matrix = _whole(_of(item, "dev_matrix", where, name), where, name)
        entries = _of(item, "tensor_map", where, name)
        parameters[name] = TensorMap(matrix, tuple(_entry(one, where, name) for one in entries))
    return Strategies(operators, parameters)


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParseError(f"cannot read strategies from {path}: {error.strerror}") from None
    except ValueError as error:
        raise ParseError(f"{path} is no JSON: {error}") from None


def _of(item: Any, key: str, where: str, name: str) -> list[Any]:
    found = item.get(key) if isinstance(item, Mapping) else None
    if not isinstance(found, list | tuple):
        raise ParseError(f"{where}: {name} has no list {key!r}")
    return list(found)


def _whole(numbers: Any, where: str, name: str) -> tuple[int, ...]:
    if not isinstance(numbers, list | tuple) or not all(type(one) is int and one > 0 for one in numbers):
        raise ParseError(f"{where}: {name} has {numbers!r} where a list of numbers of at least 1 belongs")
    return tuple(numbers)


def _entry(one: Any, where: str, name: str) -> MapEntry:
    if type(one) is int and one >= -1:
        return one
    if isinstance(one, list | tuple) and one and all(type(each) is int and each >= 0 for each in one):
        return tuple(one)
    raise ParseError(f"{where}: {name} has {one!r} in its tensor_map; write -1, a matrix axis or a list of such")


# -- lines


def shard_lines(plan: Plan) -> str:
    """A line per operator, `block.up.matmul.shard(((2, 1), (1, 4)))`, with its primitive in a comment."""
    lines = [
        f"{node.label}.shard({_tuple(plan.strategy(node).in_strategy)})  # {node.op.name}"
        for node in walk(plan.graph.nodes)
    ]
    return "\n".join(lines) + "\n"


def _tuple(parts: Parts) -> str:
    return repr(tuple(map(tuple, parts)))


def parse_lines(text: str) -> Strategies:
    """What `shard_lines` wrote; empty lines and comments are passed over.

    Raises:
        ParseError: a line of another form; the message has its number.
    """
    operators: dict[str, Parts] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _SHARD.fullmatch(line.strip())
        try:
            given = ast.literal_eval(match["given"]) if match else None
        except (ValueError, SyntaxError):
            given = None
        if match is None or not isinstance(given, tuple):
            raise ParseError(f"line {number}: {line.strip()!r} is not of the form name.shard(((2, 1), (1, 4)))")
        operators[match["name"]] = tuple(_whole(one, f"line {number}", match["name"]) for one in given)
    return Strategies(operators, {})


def differences(strategies: Strategies, plan: Plan) -> list[str]:
    """Where strategies differ from those of a plan, in words; none if they say the same."""
    own = from_checkpoint(to_checkpoint(plan))
    found = []
    for name, parts in own.operators.items():
        other = strategies.operators.get(name)
        if other != parts:
            found.append(f"{name}: {show_parts(parts)} in the plan, {show_parts(other) if other else 'nothing'} here")
    return found + [f"{name}: not in the plan" for name in strategies.operators if name not in own.operators]
