"""A plan in MindSpore's forms: the JSON of its strategy checkpoints, and `shard(...)` lines; both are read back.

The JSON has the keys of MindSpore's strategy checkpoint files: an operator's strategy (parts per operand and dim) under
its name, a parameter's device matrix and tensor map (matrix axes counted from the right, -1 for a whole dim).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from autoshard.core.strategy import Parts, show_parts
from autoshard.ir.graph import DATA, Node, Value, walk
from autoshard.ir.scan import Scanner
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.tensor_map import TensorMap
from autoshard.plan.plan import Plan
from autoshard.util.errors import LayoutError, ParseError, PlanError
from autoshard.util.files import checked, read_json, write_atomically
from autoshard.util.text import natural
from costmodel.json_door import Positive, Record, between

_STRATEGIES, _LAYOUTS = "parallel_strategy_item", "parallel_layout_item"
T = TypeVar("T")
_NAME = 200
"""Characters of a name that a message has at most."""
MOST_AXES = 1000
"""Axes of a device matrix at most; MindSpore's have a dozen."""
_SHARD = re.compile(r"(?P<name>[^\s(]+)\.shard\(")
_NUMBER = re.compile("[0-9]+")
_STAGE = re.compile(r"(?P<name>[^\s(=]+)\.pipeline_stage = (?P<stage>\d+)")
_PASSED_OVER = re.compile(
    r"set_auto_parallel_context\([^#]*\)|net = PipelineCell\(net, \d+\)|[^\s(=]+\.pipeline_segment = \d+"
)


class StrategyItem(Record, frozen=True, forbid_unknown_fields=False):
    """An operator's parts, per operand and dim; MindSpore writes more than is needed here."""

    parallel_strategy: tuple[tuple[Positive, ...], ...]


class LayoutItem(Record, frozen=True, forbid_unknown_fields=False):
    """How a parameter lies: an entry of the map is -1, an axis of the matrix from the right, or a list of such."""

    dev_matrix: tuple[Positive, ...]
    tensor_map: tuple[Annotated[int, between(-1, MOST_AXES)] | tuple[Annotated[int, between(0, MOST_AXES)], ...], ...]


class StrategyFile(Record, frozen=True, forbid_unknown_fields=False):
    """A strategy checkpoint."""

    # Their contents are read one by one, so that a message has the name.
    parallel_strategy_item: dict[str, Any] | None = None
    parallel_layout_item: dict[str, Any] | None = None


@dataclass(frozen=True)
class Strategies:
    """What such a file or such lines say: `operators` maps names to in_strategies, `parameters` to tensor maps, and
    `stages` cells to the stages that they bear."""

    operators: Mapping[str, Parts]
    parameters: Mapping[str, TensorMap]
    stages: Mapping[str, int] = field(default_factory=dict)

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


def to_checkpoint(
    plan: Plan, stage: int = 0, nodes: Iterable[Node] | None = None, values: Iterable[Value] | None = None
) -> dict[str, Any]:
    """The plan as a strategy checkpoint.

    Args:
        stage: the number of the stage whose plan it is.
        nodes, values: operators and parameters in it; by default all.

    Where several mesh axes split one dim, its tensor map has a list, as in MindSpore's extended layouts.

    Raises:
        PlanError: a device order, or operators that only MindSpore's notions cannot tell apart.
    """
    return {
        "current_stage": stage,
        _STRATEGIES: {
            node.label: {"stage": stage, "parallel_strategy": [list(one) for one in _parts(plan, node)]}
            for node in (walk(plan.graph.nodes) if nodes is None else nodes)
        },
        _LAYOUTS: {
            value.name: _layout_item(value.name, plan.layouts[value], value.type.shape)
            for value in (_held(plan) if values is None else values)
        },
    }


def _held(plan: Plan) -> list[Value]:
    return [value for value in plan.graph.inputs if plan.graph.role_of[value] != DATA]


def _parts(plan: Plan, node: Node) -> Parts:
    """The operator's strategy as MindSpore writes it: those of OneHot and Tile have the parts of their results."""
    strategy = plan.strategy(node)
    if node.op.name == "OneHot":
        return (*strategy.out_strategy, (), ())
    return strategy.out_strategy if node.op.name == "Tile" else strategy.in_strategy


def strategies_of(node: Node, parts: Parts) -> tuple[Parts, Parts | None]:
    """The operator's in_strategy, and its out_strategy where the other does not tell it, of what MindSpore writes.

    What is of another form stays as it is.
    """
    result = parts[0] if parts else ()
    if len(result) != node.result_types[0].rank or node.op.name not in ("OneHot", "Tile"):
        return parts, None
    if node.op.name == "OneHot":
        at = node.attrs["axis"] % len(result)
        return (result[:at] + result[at + 1 :],), (result,)
    whole = tuple(1 if count > 1 else one for one, count in zip(result, node.attrs["multiples"], strict=True))
    return (whole[len(whole) - node.operand_types[0].rank :],), (result,)


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
    """Write a strategy checkpoint as JSON, whole or not at all, and the folders that it lies in; the path.

    Raises:
        PlanError: as for `to_checkpoint`, or the file cannot be written.
    """
    return write_atomically(path, json.dumps(to_checkpoint(plan), indent=1) + "\n", PlanError, folders=True)


def from_checkpoint(data: Mapping[str, Any] | str | Path) -> Strategies:
    """Read a strategy checkpoint: the data, or a file of it.

    Raises:
        ParseError: no such file, not JSON, or entries of another form; the message names the entry.
    """
    what = "strategy checkpoint"
    if isinstance(data, Mapping):
        where, found = f"the {what}", checked(data, StrategyFile, f"the {what}")
    else:
        where, found = str(data), read_json(data, StrategyFile, what)
    if found.parallel_strategy_item is None and found.parallel_layout_item is None:
        raise ParseError(f"{where} has neither {_STRATEGIES!r} nor {_LAYOUTS!r}; it is no strategy checkpoint")
    operators = _items(found.parallel_strategy_item, StrategyItem, where)
    layouts = _items(found.parallel_layout_item, LayoutItem, where)
    return Strategies(
        {name: one.parallel_strategy for name, one in operators.items()},
        {name: TensorMap(one.dev_matrix, one.tensor_map) for name, one in layouts.items()},
    )


def _items(given: dict[str, Any] | None, kind: type[T], where: str) -> dict[str, T]:
    return {name: checked(one, kind, f"{where}: {name[:_NAME]}") for name, one in (given or {}).items()}


# -- lines


def shard_lines(plan: Plan) -> str:
    """A line per operator, `block.up.matmul.shard(((2, 1), (1, 4)))`, with its primitive in a comment."""
    return "\n".join(shard_line(plan, node) for node in walk(plan.graph.nodes)) + "\n"


def shard_line(plan: Plan, node: Node) -> str:
    """The line of one operator."""
    return f"{node.label}.shard({_tuple(_parts(plan, node))})  # {node.op.name}"


def _tuple(parts: Parts) -> str:
    return repr(tuple(map(tuple, parts)))


def parse_lines(text: str) -> Strategies:
    """What `shard_lines` wrote, or the lines of a plan in stages; empty lines and comments are passed over, and what
    these say of the context, micro batches and segments.

    Raises:
        ParseError: a line of another form; the message has its number.
    """
    operators: dict[str, Parts] = {}
    stages: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or _PASSED_OVER.fullmatch(line.strip()):
            continue
        if (cell := _STAGE.fullmatch(line.strip())) is not None:
            stages[cell["name"]] = natural(cell["stage"])
            continue
        match = _SHARD.match(line.strip())
        try:
            given = _given(Scanner(line.strip()[match.end() :], number)) if match else ()
        except ParseError:
            match, given = None, ()
        if match is None:
            raise ParseError(f"line {number}: {line.strip()!r} is not of the form name.shard(((2, 1), (1, 4)))")
        if any(one < 1 for parts in given for one in parts):
            raise ParseError(f"line {number}: {match['name']} has {given!r}; parts are numbers of at least 1")
        operators[match["name"]] = tuple(given)
    return Strategies(operators, {}, stages)


def _given(line: Scanner) -> list[tuple[int, ...]]:
    """What stands between the brackets of shard(...), and behind them nothing but a comment."""

    def numbers() -> tuple[int, ...]:
        line.expect("(")
        return tuple(line.several(")", lambda: natural(line.need(_NUMBER, "a number"))))

    line.expect("(")
    found = line.several(")", numbers)
    line.expect(")")
    if not line.take("#"):
        line.end()
    return found


def differences(strategies: Strategies, plan: Plan) -> list[str]:
    """Where strategies differ from those of a plan, in words; none if they say the same."""
    own = from_checkpoint(to_checkpoint(plan))
    found = []
    for name, parts in own.operators.items():
        other = strategies.operators.get(name)
        if other != parts:
            found.append(f"{name}: {show_parts(parts)} in the plan, {show_parts(other) if other else 'nothing'} here")
    return found + [f"{name}: not in the plan" for name in strategies.operators if name not in own.operators]
