"""Batch parallel: operators without a strategy split the batch over all devices, and nothing is searched.

The batch is dim 0 of the data inputs. It is followed through the graph by the operators' rules: where an
operand has the batch in a dim, that dim's factors are split into as many parts as there are devices, or the
most that divide both (as MindSpore's semi_auto_parallel does). A batch that is summed away
ends there, as in a weight's gradient: behind it operators follow their operands' layouts, so that parameters
that no strategy splits stay whole.
"""

from __future__ import annotations

import math

from autoshard.core.place import place_parts
from autoshard.core.strategy import Strategy, is_legal, project, replicated_strategy
from autoshard.ir.graph import DATA, Node, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import size_of
from autoshard.plan.plan import ADOPTED, CONFIGURED, GIVEN, Cause, Decision, Plan
from autoshard.search.flat import CARRIED
from autoshard.search.greedy.choose import chooser
from autoshard.search.problem import Problem
from autoshard.search.registry import search_mode
from autoshard.util.errors import LayoutError

BATCH, FOLLOWED = "batch parallel", "followed"
Chosen = tuple[Strategy, str, int | None]
"""A strategy, why, and which operand it comes from."""


@search_mode("batch")
def batch_parallel(problem: Problem) -> Plan:
    """Configured operators as they are configured, all others batch parallel.

    Raises:
        StrategyError: an annotation that does not fit.
    """
    return _BatchParallel(problem).run()


class _BatchParallel:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.graph, self.mesh = problem, problem.graph, problem.mesh
        self.chooser = chooser(problem.mesh, problem.hardware)
        self.layouts: dict[Value, Layout] = dict(problem.input_layouts)
        self.causes: dict[Value, Cause] = {value: Cause(GIVEN) for value in self.layouts}
        self.batch: dict[Value, int] = {
            value: 0
            for value, role in zip(self.graph.inputs, self.graph.roles, strict=True)
            if role == DATA and value.type.rank
        }
        self.decisions: dict[Node, Decision] = {}
        self.chosen: dict[tuple, Chosen] = {}

    def run(self) -> Plan:
        for node, strategy in self.problem.configured.items():
            self._adopt(node, strategy)
        for value, role in zip(self.graph.inputs, self.graph.roles, strict=True):
            if role != CARRIED:
                self.layouts.setdefault(value, Layout.replicated(self.mesh, value.type.rank))
                self.causes.setdefault(value, Cause(GIVEN))
        for node in self.graph.nodes:
            self._decide(node)
        outputs = self.problem.outputs(self.layouts)
        return Plan(
            self.graph, self.mesh, self.decisions, self.layouts, outputs, self.causes,
            started_from=f"the batch, {self.mesh.devices} ways", search="batch",
        )  # fmt: skip

    def _adopt(self, node: Node, strategy: Strategy) -> None:
        """Graph inputs take the layout that their first configured user wants."""
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            if value in self.graph.role_of and value not in self.layouts:
                self.layouts[value], self.causes[value] = layout, Cause(ADOPTED, (node.label,))

    def _decide(self, node: Node) -> None:
        self._follow_batch(node)
        strategy, cause = self._strategy(node)
        option = self.chooser.following(node, strategy, [self.layouts[value] for value in node.operands])
        self.decisions[node] = Decision(option, cause)
        self.layouts.update(zip(node.results, self.problem.left(node, strategy), strict=True))
        for value in node.results:
            self._keep(node, value)

    def _keep(self, node: Node, value: Value) -> None:
        """Values that must lie alike lie as the first of them that is decided, and have the batch where it has it."""
        keeper = self.graph.tied.get(value)
        if keeper is not None and self.graph.role_of[keeper] == CARRIED and keeper not in self.layouts:
            self.layouts[keeper] = self.layouts[value].final()
            self.causes[keeper] = Cause(ADOPTED, (node.label,))
            if value in self.batch:
                self.batch[keeper] = self.batch[value]

    def _strategy(self, node: Node) -> tuple[Strategy, Cause]:
        if node in self.problem.configured:
            return self.problem.configured[node], Cause(CONFIGURED)
        key = node.key, tuple([(self.batch.get(value), self.layouts[value]) for value in node.operands])
        known = self.chosen.get(key)
        if known is None:
            known = self.chosen[key] = self._chosen(node)
        strategy, why, place = known
        return strategy, Cause(why, () if place is None else (node.operands[place].name,))

    def _chosen(self, node: Node) -> Chosen:
        """What is the same for equal nodes whose operands lie alike and have the batch alike."""
        for i, value in enumerate(node.operands):
            split = self._split(node, i, self.batch[value]) if value in self.batch else None
            if split is not None:
                return split, BATCH, i
        return self._following(node)

    def _split(self, node: Node, operand: int, dim: int) -> Strategy | None:
        """The batch dim's factors over all devices as far as they divide; None where nothing splits."""
        left, parts = self.mesh.devices, [1] * len(node.rule.factors)
        for i in node.rule.operands[operand][dim]:
            factor = node.rule.factors[i]
            parts[i] = math.gcd(left, factor.even) if factor.splittable else 1
            left //= parts[i]
            if parts[i] < factor.size:
                break
        if math.prod(parts) == 1 or not is_legal(node.rule, parts):
            return None
        try:
            return place_parts(node.rule, parts, self.mesh)
        except LayoutError:
            return None

    def _following(self, node: Node) -> Chosen:
        """As the first operand that lies split, where the operator can run so; else whole on every rank."""
        for i, (value, dims) in enumerate(zip(node.operands, node.rule.operands, strict=True)):
            axes = project(node.rule, dims, self.layouts[value])
            if any(axes) and is_legal(node.rule, [size_of(refs) for refs in axes]):
                return Strategy(node.rule, self.mesh, axes), FOLLOWED, i
        return replicated_strategy(node.rule, self.mesh), FOLLOWED, None

    def _follow_batch(self, node: Node) -> None:
        """Note in which dim of each result the batch lies: where its major factor leads."""
        lead = None
        for value, dims in zip(node.operands, node.rule.operands, strict=True):
            if lead is None and value in self.batch and dims[self.batch[value]]:
                lead = dims[self.batch[value]][0]
        for value, dims in zip(node.results, node.rule.results, strict=True):
            place = next((k for k, dim in enumerate(dims) if dim and dim[0] == lead), None)
            if lead is not None and place is not None:
                self.batch[value] = place
