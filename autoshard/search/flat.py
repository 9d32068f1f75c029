"""Graphs with loops, branches and manual computations as flat ones, so that every search mode plans them unchanged.

`registry.plan_flat(mode, problem)` is all that most callers need. What a mode then sees is a plain graph:

- every node of a loop or a branch stands among the others, in order of execution, and is the very same Node;
- what must lie alike is a *tie*, held by one value, its keeper: an input of the flat graph with the role CARRIED, in no
  layout until a user adopts one, just as a parameter. For a loop the keeper of what is carried is the argument of its
  body, for a branch it is the result. All else of a tie is an output of the flat graph that updates the keeper
  (`graph.updates`, `graph.tied`): what a loop starts from, what its body yields, what each branch yields. So a mode
  that keeps parameters and their updates alike keeps ties alike; a mode that gives inputs the layout of their first
  decided user should give a keeper that of its first decided update too (`graph.role_of[value] == CARRIED`);
- *gates*, identities, stand where values enter or leave: their results are what the loop starts from (a new value), the
  argument of its condition and the result after it (the values of the nested graph). They cost nothing;
- what is captured from outside is used as it is: a copy in another layout is made once, before the loop;
- a manual computation is one node without its body, whose strategy is in `problem.fixed`; what it is inside is planned
  by rules (mode "factor").

`problem.runs` tells how often a step runs a node: the trips of the loops around it, 0 for what costs nothing itself
(gates and manual computations), and 1 where absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoshard.ir.flow import Boundary, is_nest
from autoshard.ir.graph import Graph, Node, Value, inner_values, walk
from autoshard.ir.trips import runs
from autoshard.layout.layout import Layout
from autoshard.ops.control import unsplit_rule
from autoshard.ops.registry import lookup
from autoshard.plan.plan import Cause, Decision, Option, Plan
from autoshard.search.problem import CARRIED, Place, Problem
from autoshard.util.errors import PlanError

THROUGH = "regions"
"""The cause of a strategy that follows from the layouts at the border of its regions."""
Search = Callable[[Problem], Plan]
Modes = Callable[[Problem], Iterator[Plan]]


@dataclass(frozen=True, eq=False)
class Flat:
    """A graph with regions and its flat form.

    Attributes:
        nested: the graph with regions.
        graph: the flat one; its first inputs and outputs are those of `nested`.
        ties: each place of a tie (a value of either graph) -> its keeper.
        gates: the nodes of `graph` that `nested` has not.
        leaving: the gates to conditions and out of loops.
        shells: what stands for manual computations -> these.
    """

    nested: Graph
    graph: Graph
    ties: Mapping[Value, Value]
    gates: frozenset[Node]
    leaving: frozenset[Node] = frozenset()
    shells: Mapping[Node, Node] = field(default_factory=dict)

    @cached_property
    def groups(self) -> Mapping[Value, tuple[Value, ...]]:
        """Keeper -> all values of its tie, the keeper first."""
        found: dict[Value, list[Value]] = {keeper: [keeper] for keeper in self.ties.values()}
        for value, keeper in self.ties.items():
            if value is not keeper:
                found[keeper].append(value)
        return {keeper: tuple(values) for keeper, values in found.items()}

    @cached_property
    def runs(self) -> dict[Node, int]:
        """How often a step runs each node of the flat graph, 0 where it costs nothing; nodes that run once are
        absent."""
        return {**runs(self.nested), **dict.fromkeys((*self.gates, *self.shells), 0)}

    @cached_property
    def made(self) -> dict[Value, int]:
        """How often a step makes the values of borders, which no node that costs something makes; once where absent."""
        inner, found = runs(self.nested), dict[Value, int]()
        for node in walk(self.nested.nodes):
            found.update(dict.fromkeys(node.results, inner.get(node, 1)))
            for region in node.regions:
                times = inner.get(region.nodes[0], 1) if region.nodes else inner.get(node, 1)
                found.update(dict.fromkeys(region.args, times))
        for node in self.graph.nodes:
            if node in self.gates:
                found.setdefault(node.results[0], found.get(node.operands[0], 1))
        return {value: times for value, times in found.items() if times > 1}

    @cached_property
    def inside(self) -> frozenset[Node]:
        """The nodes that stand in loops and branches of the nested graph, and those that it has not."""
        return frozenset(self.graph.nodes).difference(self.nested.nodes)


def has_loops(graph: Graph) -> bool:
    """Whether a graph has nodes with regions to be planned."""
    return any(is_nest(node) for node in graph.nodes)


def flat(graph: Graph) -> Flat:
    """The flat form of a graph, see the module's text; of a graph without regions it is the graph itself."""
    if not has_loops(graph):
        return Flat(graph, graph, {}, frozenset())
    return _Flattening(graph).run()


@dataclass
class _Flattening:
    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    keepers: list[Value] = field(default_factory=list)
    ends: list[Value] = field(default_factory=list)
    updates: list[Value | None] = field(default_factory=list)
    ties: dict[Value, Value] = field(default_factory=dict)
    gates: list[Node] = field(default_factory=list)
    leaving: list[Node] = field(default_factory=list)
    shells: dict[Node, Node] = field(default_factory=dict)

    def run(self) -> Flat:
        self.walk(self.graph.nodes)
        graph = self.graph
        inputs = (*graph.inputs, *self.keepers)
        place = {value: i for i, value in enumerate(inputs)}
        count = len(graph.outputs)
        updates = {count + i: place[keeper] for i, keeper in enumerate(self.updates) if keeper is not None}
        made = Graph(
            graph.name,
            inputs,
            tuple(self.nodes),
            (*graph.outputs, *self.ends),
            (*graph.roles, *(CARRIED for _ in self.keepers)),
            {**graph.updates, **updates},
            graph.cotangents,
        )
        return Flat(graph, made, self.ties, frozenset(self.gates), frozenset(self.leaving), self.shells)

    def walk(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if not is_nest(node):
                self.nodes.append(node)
            elif node.op.name == "ManualComputation":
                self.nodes.append(self.shell(node))
            elif node.op.name == "While":
                self.loop(node)
            elif node.op.name == "Case":
                self.choice(node)
            else:
                raise PlanError(f"cannot plan {node.op.name}: how its regions run is not known")

    def loop(self, node: Node) -> None:
        cond, body = node.regions
        for start, keeper, tested in zip(node.operands, body.args, cond.args, strict=True):
            self.keep(keeper)
            self.tie(self.gate(start, Value(start.type, f"{keeper.name}.start")), keeper)
            self.leave(keeper, tested)
        self.walk(cond.nodes)
        self.ends.append(cond.outputs[0])
        self.updates.append(None)
        self.body(body.nodes, body.outputs, body.args)
        for keeper, result in zip(body.args, node.results, strict=True):
            self.leave(keeper, result)

    def choice(self, node: Node) -> None:
        for keeper in node.results:
            self.keep(keeper)
        for region in node.regions:
            self.body(region.nodes, region.outputs, node.results)

    def body(self, nodes: Sequence[Node], yields: Sequence[Value], keepers: Sequence[Value]) -> None:
        """A region: what it yields is tied; through a gate where it is no result of the region, or tied already."""
        self.walk(nodes)
        own = {value for node in nodes for value in node.results}
        for value, keeper in zip(yields, keepers, strict=True):
            plain = value in own and value not in self.ties
            self.tie(value if plain else self.gate(value, Value(value.type, f"{keeper.name}.next")), keeper)

    def keep(self, keeper: Value) -> None:
        self.keepers.append(keeper)
        self.ties[keeper] = keeper

    def tie(self, value: Value, keeper: Value) -> None:
        self.ties[value] = keeper
        self.ends.append(value)
        self.updates.append(keeper)

    def shell(self, node: Node) -> Node:
        """A manual computation without its body."""
        rule = unsplit_rule(node.operand_types, node.result_types)
        made = Node(node.op, node.operands, node.attrs, node.results, node.name, node.source, (), rule)
        self.shells[made] = node
        return made

    def leave(self, keeper: Value, result: Value) -> None:
        self.gate(keeper, result)
        self.leaving.append(self.gates[-1])

    def gate(self, value: Value, result: Value) -> Value:
        node = Node(lookup("Identity"), (value,), {}, (result,))
        self.nodes.append(node)
        self.gates.append(node)
        return result


# -- planning with it


def flat_problem(problem: Problem, form: Flat, manual: Plan | None) -> Problem:
    """The problem of the flat graph; `manual` is a plan that says how manual computations run."""
    graph = form.graph
    fixed = dict(problem.fixed)
    if manual is not None:
        fixed.update((shell, manual.strategy(node)) for shell, node in form.shells.items())
    places: dict[Value, Place] = dict(problem.places)
    for value, keeper in form.ties.items():
        if keeper in places or value.name.endswith((".start", ".next")):
            places.setdefault(value, places.get(keeper, ((), keeper)))
    extra = (None,) * (len(graph.outputs) - len(form.nested.outputs))
    asked = (*problem.asked_outputs, *extra) if problem.asked_outputs else ()
    return replace(
        problem,
        graph=graph,
        fixed=fixed,
        places=places,
        asked_outputs=asked,
        runs=form.runs,
        made=form.made,
        inside=form.inside,
        leaving_loops=form.leaving,
    )


def has_manual(graph: Graph) -> bool:
    """Whether a graph has manual computations, which run as people wrote them."""
    return any(node.op.name == "ManualComputation" for node in walk(graph.nodes))


def nested_plan(found: Plan, form: Flat, manual: Plan | None) -> Plan:
    """The plan of the graph with regions.

    Raises:
        PlanError: the mode plans another graph, the operators of which are not those of loops and branches.
    """
    if found.graph is not form.graph:
        raise PlanError(
            f"mode {found.search!r} changes the graph that it plans; {form.nested.name!r} has loops or branches"
        )
    layouts = dict(found.layouts)
    decisions = {node: one for node, one in found.decisions.items() if node not in form.gates}
    for node in walk(form.nested.nodes):
        if node not in decisions and is_nest(node) and node.op.name != "ManualComputation":
            decisions[node] = _border(node, found)
        if node.op.name == "ManualComputation" and manual is not None:
            inner = [one for region in node.regions for one in walk(region.nodes)]
            decisions.update((one, manual.decisions[one]) for one in (node, *inner))
            regions = (region for one in (node, *inner) for region in one.regions)
            layouts.update((value, manual.layouts[value]) for region in regions for value in region.values)
    layouts.update(_tested(form, found))
    known = {*form.nested.values, *inner_values(form.nested)}
    return replace(
        found,
        graph=form.nested,
        decisions={node: decisions[node] for node in walk(form.nested.nodes)},
        layouts={value: layout for value, layout in layouts.items() if value in known},
        outputs=found.outputs[: len(form.nested.outputs)],
        input_causes={value: cause for value, cause in found.input_causes.items() if value in known},
    )


def _tested(form: Flat, found: Plan) -> dict[Value, Layout]:
    """The layouts of what loops' conditions are given: that in which it is carried, from which each user there brings
    it to where it wants it."""
    loops = (node for node in walk(form.nested.nodes) if node.op.name == "While")
    pairs = (zip(*(region.args for region in node.regions), strict=True) for node in loops)
    known = ((tested, found.layouts.get(keeper)) for pair in pairs for tested, keeper in pair)
    return {tested: layout.final() for tested, layout in known if layout is not None}


def _border(node: Node, found: Plan) -> Decision:
    """The decision of a loop or a branch: its border lies as the keepers of its ties do."""
    is_loop = node.op.name == "While"
    keepers = node.regions[1].args if is_loop else node.results
    lie = tuple(found.layouts[value].final() for value in keepers)
    entering = lie if is_loop else tuple(Layout.replicated(found.mesh, value.type.rank) for value in node.operands)
    strategy = Boundary.of(node, found.mesh, entering, lie)
    causes = (found.input_causes.get(value) for value in keepers)
    names = dict.fromkeys(name for cause in causes if cause is not None for name in cause.neighbours)
    return Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(THROUGH, tuple(names)))
