"""Summary: a plan and its program as rows, which the report prints and the JSON export writes.

`summarize(planned)` works out what stands in neither alone: which value each collective of the program
serves, for whom, and what each row costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoshard.cost.blocks import local_nbytes
from autoshard.cost.evaluate import bundle_shares, seconds_of_nodes
from autoshard.cost.instructions import Costs
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.partition.program import Bundle, Collective, Nest, Program, Register, Start, Wait, timed, walk
from autoshard.plan.plan import GIVEN, Cause, Decision, Plan
from autoshard.search.planned import PlannedData


@dataclass(frozen=True, eq=False)
class Move:
    """A value brought from one layout to another, by collectives one after the other.

    `users` are labels of the operators that want it so; a graph output is "output". `nbytes` is what one
    device sends, `seconds` the time it takes, `serves` the operator before which it happens (None: the end). Bytes and
    seconds are of one time; inside of a loop it happens `times` times a step.
    """

    number: int
    value: Value
    collectives: tuple[Collective, ...]
    users: tuple[str, ...]
    serves: Node | None
    step_seconds: tuple[float, ...]
    times: int = 1

    @property
    def before(self) -> Layout:
        return self.collectives[0].operand.layout

    @property
    def after(self) -> Layout:
        return self.collectives[-1].result.layout

    @property
    def nbytes(self) -> float:
        return sum(one.nbytes_moved for one in self.collectives)

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)


@dataclass(frozen=True, eq=False)
class OperatorRow:
    """An operator, what was decided for it, its time on one device, and the moves that happen for it.

    `depth` is the number of loops, branches and manual computations around it; it runs `times` times a step.
    """

    node: Node
    decision: Decision
    layouts: tuple[Layout, ...]
    seconds: float
    moves: tuple[Move, ...]
    depth: int = 0
    times: int = 1


@dataclass(frozen=True, eq=False)
class InputRow:
    """A graph input: what it is, how it lies, why, and the bytes of it that one device holds."""

    value: Value
    role: str
    layout: Layout
    cause: Cause
    nbytes: int


@dataclass(frozen=True, eq=False)
class Summary:
    """The rows of a plan, in the order of the graph and of the program."""

    operators: tuple[OperatorRow, ...]
    moves: tuple[Move, ...]
    inputs: tuple[InputRow, ...]


def summarize(planned: PlannedData) -> Summary:
    """The rows of a plan and its program."""
    plan, costs = planned.plan, prices_for(planned.hardware).instructions
    moves, seconds = tuple(_moves(planned, costs)), seconds_of_nodes(planned.program, costs)
    served: dict[Node | None, list[Move]] = {}
    for move in moves:
        served.setdefault(move.serves, []).append(move)
    operators = tuple(
        OperatorRow(
            node,
            plan.decisions[node],
            tuple(plan.layouts[value] for value in node.results),
            seconds.get(node, 0.0) / max(1, plan.runs.get(node, 1)),
            tuple(served.get(node, ())),
            depth,
            plan.runs.get(node, 1),
        )
        for node, depth in _nested(plan.graph.nodes)
    )
    return Summary(operators, moves, tuple(_inputs(plan)))


def _nested(nodes: Iterable[Node], depth: int = 0) -> Iterator[tuple[Node, int]]:
    """The nodes with all nodes inside them, each with its depth."""
    for node in nodes:
        yield node, depth
        for region in node.regions:
            yield from _nested(region.nodes, depth + 1)


def _inputs(plan: Plan) -> Iterator[InputRow]:
    for value, role in zip(plan.graph.inputs, plan.graph.roles, strict=True):
        layout = plan.layouts[value]
        cause = plan.input_causes.get(value, Cause(GIVEN))
        yield InputRow(value, role, layout, cause, local_nbytes(value.type, layout))


def _moves(planned: PlannedData, costs: Costs) -> Iterator[Move]:
    values = _values_of(planned.plan.graph, planned.program)
    wanted = {(one.value, one.after): one.users for one in planned.plan.redistributions}
    times = {one: count for one, count in timed(planned.program.instructions)}
    shares = bundle_shares(planned.program, costs)
    for number, chain in enumerate(_chains(planned.program), 1):
        value, serves = values[chain[0].operand], chain[0].serves
        users = wanted.get((value, chain[-1].result.layout), (serves,))
        yield Move(
            number,
            value,
            tuple(chain),
            tuple(dict.fromkeys("output" if user is None else user.label for user in users)),
            serves,
            tuple(shares.get(one, 1.0) * costs.of(one).talking for one in chain),
            times[chain[0]],
        )


def _values_of(graph: Graph, program: Program) -> dict[Register, Value]:
    """The value of the graph that each register holds a block of."""
    values: dict[Register, Value] = dict(zip(program.inputs, graph.inputs, strict=True))
    for one in walk(program.instructions):
        if isinstance(one, Collective):
            values[one.result] = values[one.operand]
            continue
        if isinstance(one, Bundle | Start | Wait):
            continue
        own, node = one.results, one.node
        # What blocks come to before the operator itself runs is told as its first operand.
        made = node.results if len(own) == len(node.results) else (node.operands[0],) * len(own)
        values.update(zip(own, made, strict=True))
        if isinstance(one, Nest):
            for body, region in zip(one.bodies, one.node.regions, strict=True):
                values.update(zip(body.args, region.args, strict=True))
    return values


def _chains(program: Program) -> Iterator[Sequence[Collective]]:
    """Runs of collectives, each of which goes on with the result of the one before, for the same user."""
    chain: list[Collective] = []
    for one in walk(program.instructions):
        goes_on = (
            bool(chain)
            and isinstance(one, Collective)
            and one.operand is chain[-1].result
            and one.serves is chain[-1].serves
        )
        if chain and not goes_on:
            yield chain
            chain = []
        if isinstance(one, Collective):
            chain.append(one)
    if chain:
        yield chain
