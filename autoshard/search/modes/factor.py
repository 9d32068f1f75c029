"""Shardings spread by rules alone, and run as they are (search mode "factor"): no price decides.

What people ask for is propagated by Shardy's pipeline; each operator then follows the shardings of its operands and
results as far as ranks can run it, see `follow`. Where it cannot, its cause says what was left out and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoshard.core.strategy import Strategy
from autoshard.ir.flow import Boundary, borders, is_nest, manual_axes
from autoshard.ir.graph import Node, Value, inner_values, region_values, walk
from autoshard.layout.layout import Layout
from autoshard.layout.sharding import Sharding, divisible
from autoshard.plan.plan import CONFIGURED, GIVEN, Cause, Decision, Plan
from autoshard.search.greedy.choose import chooser
from autoshard.search.problem import Problem
from autoshard.search.registry import search_mode
from autoshard.search.rules.spread_constraints import PropagatedShardings
from autoshard.search.rules.strategy_from_shardings import ANY, TensorSharding, fitting, strategy_from_shardings
from autoshard.util.errors import PlanError
from autoshard.util.text import first_of

# Operators whose one purpose is that their result lies as asked.
_ASKING = ("ShardingConstraint",)


@search_mode("factor", regions=True)
def factor(problem: Problem) -> Plan:
    """Spread the shardings that are asked for by rules alone, as Shardy does.

    Raises:
        PlanError: a problem that does not come with what people ask for, or with shardings on another mesh.
        StrategyError: an annotation that its operator cannot follow.
    """
    if problem.work is None:
        raise PlanError(
            f"the search mode factor needs the shardings that are asked for, but {problem.graph.name!r} comes without; "
            "plan a model, a traced function or a StableHLO module"
        )
    return _Following(problem, PropagatedShardings(problem.work(), problem)).run()


# -- strategies that follow them


class _Following:
    def __init__(self, problem: Problem, spread: PropagatedShardings) -> None:
        self.problem, self.graph, self.mesh, self.spread = problem, problem.graph, problem.mesh, spread
        self.chooser = chooser(problem.mesh, problem.hardware)
        self.layouts: dict[Value, Layout] = {}
        self.input_causes: dict[Value, Cause] = {}
        self.decisions: dict[Node, Decision] = {}
        self.shardings = {value: spread.sharding(value) for value in self.graph.values}
        bodies = [region for node in walk(self.graph.nodes) if manual_axes(node) for region in node.regions]
        self.manual = {node for region in bodies for node in walk(region.nodes)}
        inner = set(region_values(bodies))
        for value in inner_values(self.graph):
            sharding = spread.sharding(value)
            self.shardings[value] = evenly(sharding, value) if value in inner else sharding
        self.constant = self._constants()

    def _constants(self) -> set[Value]:
        """Values that depend on no input: whole, they can be cut for each use without communication."""
        constant: set[Value] = set()
        for node in walk(self.graph.nodes):
            if constant.issuperset(node.uses) and not node.op.has_effects(node.attrs):
                constant.update(node.results)
        return constant

    def run(self) -> Plan:
        for value in self.graph.inputs:
            self._input(value)
        self._walk(self.graph.nodes)
        outputs, lost = self._outputs()
        return Plan(
            self.graph,
            self.mesh,
            self.decisions,
            self.layouts,
            outputs,
            self.input_causes,
            started_from=self._told(lost),
            search="factor",
        )

    def _walk(self, nodes: Iterable[Node]) -> None:
        configured = self.problem.annotated
        for node in nodes:
            if node in configured:
                self._settle(node, configured[node], Cause(CONFIGURED))
            elif is_nest(node):
                self._nest(node)
            else:
                self._settle(node, *self._followed(node))

    def _nest(self, node: Node) -> None:
        """A node with regions: its border lies as the values there, and each region begins and ends so."""
        even = node in self.manual or bool(manual_axes(node))
        around = self.spread.around(node)
        layouts = [[self._border(value, asked, even) for value, asked in side] for side in around]
        strategy = Boundary.of(node, self.mesh, *layouts)
        option = self.chooser.following(node, strategy, [self.layouts[value] for value in node.operands])
        self.decisions[node] = Decision(option, Cause(*self.spread.cause([*node.operands, *node.results], node.label)))
        self.layouts.update(zip(node.results, strategy.result_layouts, strict=True))
        for i, region in enumerate(node.regions):
            self.layouts.update(zip(region.args, borders(node, strategy, i).args, strict=True))
            self._walk(region.nodes)

    def _border(self, value: Value, asked: Sharding | None, even: bool) -> Layout:
        """The layout at a border of regions; unreduced values leave a manual computation as terms of a sum."""
        if asked is None or not asked.used:
            return Layout.replicated(self.mesh, value.type.rank)
        if even:
            return divisible(asked, value.type.shape).layout()
        return self._bounded(value, asked)[0]

    def _input(self, value: Value) -> None:
        sharding, given = self.shardings[value], self.problem.given.get(value)
        if given is not None:
            self.layouts[value], self.input_causes[value] = given, Cause(GIVEN)
            return
        layout, lost = self._bounded(value, sharding)
        self.layouts[value] = layout
        self.input_causes[value] = Cause(*self.spread.cause([value]), lost) if sharding else Cause(GIVEN)

    def _bounded(self, value: Value, sharding: TensorSharding) -> tuple[Layout, tuple[str, ...]]:
        """The layout in which a value enters or leaves: what divides it, with nothing unreduced; and what is lost."""
        if not isinstance(sharding, Sharding):
            return Layout.replicated(self.mesh, value.type.rank), ()
        sizes = value.type.shape
        layout = Layout(self.mesh, [fitting(size, dim.axes) for dim, size in zip(sharding.dims, sizes, strict=True)])
        if layout is sharding.layout():
            return layout, ()
        return layout, (f"of {sharding} stays [{layout}], as far as it divides {value.type} and is complete",)

    def _followed(self, node: Node) -> tuple[Strategy, Cause]:
        """The strategy that follows the shardings of the node's operands and results, and its cause."""
        operands = [ANY if value in self.constant else self.shardings[value] for value in node.operands]
        results = [self.shardings[value] for value in node.results]
        if node.op.name in _ASKING:
            operands = [ANY] * len(operands)
        sizes = tuple(of.elements for of in (*node.operand_types, *node.result_types))
        strategy, lost = strategy_from_shardings(node.rule, self.mesh, (*operands, *results), sizes)
        if node in self.manual:
            strategy = _even(strategy)
        strategy = self._carrying(node, strategy)
        lost += self._unbegun(node, strategy)
        if not node.op.has_rule:
            lost += (f"how {node.op.name} runs on blocks is not known, every rank runs all of it",)
        return strategy, Cause(*self.spread.cause([*node.operands, *node.results], node.label), lost)

    def _carrying(self, node: Node, strategy: Strategy) -> Strategy:
        """Terms of a sum pass through where the results are to be unreduced along the axes that the operands are."""
        asked = [
            sharding.unreduced if isinstance(sharding, Sharding) else ()
            for sharding in map(self.shardings.get, node.results)
        ]
        if node.rule.reduction != "sum" or not asked or not all(asked):
            return strategy
        for members in node.op.linear_in(len(node.operands)):
            held = [self.layouts[node.operands[i]] for i in members]
            common = [ref for ref in asked[0] if all(ref in one.partial and one.reduction == "sum" for one in held)]
            carried = tuple(ref for ref in common if not any(ref.overlaps(one) for one in strategy.used))
            if carried:
                return replace(strategy, carried=carried, carriers=members)
        return strategy

    def _unbegun(self, node: Node, strategy: Strategy) -> tuple[str, ...]:
        """What results should be unreduced along but are not."""
        lost = []
        for value, layout in zip(node.results, strategy.result_layouts, strict=True):
            sharding = self.shardings[value]
            wanted = sharding.unreduced if isinstance(sharding, Sharding) else ()
            missing = [ref for ref in wanted if not any(one.contains(ref) for one in layout.partial)]
            if missing:
                axes = ".".join(map(self.mesh.show_ref, missing))
                lost.append(f"{value.name} is not left unreduced along {axes}: the operator makes no terms along them")
        return tuple(lost)

    def _settle(self, node: Node, strategy: Strategy, cause: Cause) -> None:
        option = self.chooser.following(node, strategy, [self.layouts[value] for value in node.operands])
        self.decisions[node] = Decision(option, cause)
        self.layouts.update(zip(node.results, self.problem.left(node, strategy), strict=True))

    # -- the end

    def _outputs(self) -> tuple[tuple[Layout, ...], list[str]]:
        """How outputs leave: as asked, where that divides; else as they come."""
        layouts, lost = list(self.problem.outputs(self.layouts)), []
        for i, (value, sharding) in enumerate(
            zip(self.graph.outputs, self.spread.outputs, strict=False)
        ):  # first the program's own
            if value not in self.graph.tied and sharding is not None and sharding.used:
                layouts[i], missing = self._bounded(value, sharding)
                lost += [f"output {i} ({value.name}): {one}" for one in missing]
        return tuple(layouts), lost

    def _told(self, lost: list[str]) -> str:
        """Where it began, and what could not be followed."""
        labels = [node.label for node, one in self.decisions.items() if getattr(one.cause, "lost", ())]
        partly = [f"{len(labels)} operators follow in part ({first_of(labels, 5)})"] if labels else []
        return "; ".join((self.spread.told, *partly, *lost))


# -- inside of regions


def evenly(sharding: TensorSharding, value: Value) -> TensorSharding:
    """The part of a sharding that divides the value: what a manual computation has inside."""
    return divisible(sharding, value.type.shape) if isinstance(sharding, Sharding) else sharding


def _even(strategy: Strategy) -> Strategy:
    """The strategy without the splits of factors that do not divide."""
    pairs = zip(strategy.rule.factors, strategy.axes, strategy.parts, strict=True)
    axes = tuple(refs if factor.size % parts == 0 else () for factor, refs, parts in pairs)
    return strategy if axes == strategy.axes else replace(strategy, axes=axes)
