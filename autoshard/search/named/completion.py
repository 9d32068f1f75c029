"""Completion: from the layouts of a graph's inputs, and strategies of some nodes, to a plan by following operands.

Nodes are visited in order. One without a strategy splits its factors as its operands lie: those computed from data
first, parameters last; where they disagree what leaves no sum wins, then the first. Sums stay open while the operators
they pass are linear, up to where several make more of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from autoshard.core.strategy import Strategy, is_legal, project
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.plan.plan import GIVEN, Cause, Decision, Option, Plan
from autoshard.search.named.structure import Structure
from autoshard.search.problem import CARRIED, Problem
from autoshard.util.errors import PlanError

NAMED, FOLLOWED = "named", "followed"
_LAST = {"CombineTokens": 0}
"""Operands that are followed after the others: rows of experts come back to where their tokens lie."""
Axes = tuple[Refs, ...]


class Completion:
    """Completes one plan.

    Args:
        inputs: layouts of the graph's inputs; those left out are whole.
        adjust: `adjust(node, strategy)` is the strategy of a node that would follow its operands by `strategy`, or None
            to let it.
        pinned: layouts that computed values are left in whatever their operator does, by value; `adjust` may add those
            of its node's results.
        settle: `settle(value, layout)`, where a sum cannot stay open: the layout in which it is completed.
        parts: in how many parts a result will lie that is split for what it is the gradient of.
        ends: whether a value that is a sum is completed, even if all that use it are linear in it.
        gathered: axes over which what is made of parameters alone lies in parts, but is gathered where it meets others,
            or is spread over more.
    """

    def __init__(
        self,
        problem: Problem,
        structure: Structure,
        inputs: Mapping[Value, Layout],
        adjust: Callable[[Node, Strategy], Strategy | None],
        pinned: Mapping[Value, Layout] | None = None,
        settle: Callable[[Value, Layout], Layout] = lambda value, layout: layout.final(),
        gathered: Refs = (),
        parts: Callable[[Value], int] = lambda value: 1,
        ends: Callable[[Value], bool] = lambda value: False,
    ) -> None:
        self.problem, self.structure = problem, structure
        self.graph: Graph = problem.graph
        self.adjust, self.pinned, self.settle = adjust, {} if pinned is None else pinned, settle
        self.gathered, self.parts, self.ends = gathered, parts, ends
        roles = zip(self.graph.inputs, self.graph.roles, strict=True)
        whole = {value: Layout.replicated(problem.mesh, value.type.rank) for value, role in roles if role != CARRIED}
        carried = {value: layout for value, layout in self.pinned.items() if self.graph.role_of.get(value) == CARRIED}
        self.layouts: dict[Value, Layout] = {**whole, **inputs, **problem.given, **carried}
        """What loops carry, and branches yield, has none until it is adopted: of what it starts with, if that is no
        constant, else of its first user."""
        self.decisions: dict[Node, Decision] = {}
        self._passing: dict[Value, bool] = {}
        self._followed: dict[tuple, Strategy] = {}

    def plan(self, name: str, words: str) -> Plan:
        """The plan, which tells that it comes from the named plan `name`, in `words`.

        Raises:
            PlanError: the graph has loops or branches, through which no named plan leads yet.
        """
        self.decide(name, self.graph.nodes)
        for value, keeper in self.structure.keepers.items():  # a tie of constants that no operator wants in some way
            self.layouts.setdefault(keeper, self.layouts[value].final())
        for value in self.structure.keepers:
            self.layouts[value] = self._carried_on(value, self.layouts[value])
        for node in self.graph.nodes:
            if node.op.constant == "source":
                self._split_source(node)
        causes = {value: Cause(NAMED, (name,)) for value in self.graph.inputs}
        causes.update({value: Cause(GIVEN) for value in self.problem.given})
        outputs = self.problem.outputs(self.layouts)
        made = self.graph, self.problem.mesh, self.decisions, self.layouts, outputs, causes
        return Plan(*made, started_from=words, search=name)

    def decide(self, name: str, nodes: Sequence[Node]) -> None:
        """Settles strategies of the first of the graph's nodes, or of all, as `plan` does."""
        nest = next((node for node in self.graph.nodes if node.regions), None)
        if nest is not None:
            raise PlanError(
                f"the named plan {name!r} does not lead through loops and branches, and {self.graph.name!r} has "
                f"{nest.label} ({nest.op.name}); use a search"
            )
        early = []
        for node in nodes:
            if node in self.problem.leaving_loops and node.operands[0] not in self.layouts:
                early.append(node)
            self._decide(node)
        for node in early:  # to conditions, which stand before all other users
            self._decide(node)

    def _decide(self, node: Node) -> None:
        following = self._following(node)
        strategy = self.adjust(node, following) or following
        cause = Cause(FOLLOWED if strategy is following else NAMED)
        prices, edges = self.problem.prices, 0.0
        for value, need in zip(node.operands, strategy.operand_layouts, strict=True):
            if value not in self.layouts:
                if node not in self.problem.leaving_loops:
                    self.layouts[value] = need.final()
            elif self.layouts[value] is not need:
                edges += prices.redistribution(self.layouts[value], need, value.type)
        self.decisions[node] = Decision(Option(strategy, edges, 0.0, prices.work(node, strategy)), cause)
        for value, layout in zip(node.results, strategy.result_layouts, strict=True):
            self.layouts[value] = self._carried_on(value, self.pinned.get(value, layout))

    def _carried_on(self, value: Value, layout: Layout) -> Layout:
        """How a value is left: what loops carry, and branches yield, lies as the first of its tie does."""
        keeper = self.structure.keepers.get(value)
        if keeper is None:
            return layout
        if keeper not in self.layouts and value not in self.structure.grounded:
            return layout
        return self.layouts.setdefault(keeper, layout.final())

    def _split_source(self, node: Node) -> None:
        """Makes what is made of nothing as all that use it want it, where they want the same."""
        (value,) = node.results
        users = [self.decisions[user].strategy.operand_layouts[i] for user, i in self.graph.users[value]]
        wanted = {*users, *([self.layouts[value]] if value in self.graph.outputs else ())}
        if len(wanted) != 1 or (layout := wanted.pop()) is self.layouts[value] or layout.partial:
            return
        axes = project(node.rule, node.rule.results[0], layout)
        if not is_legal(node.rule, [size_of(refs) for refs in axes]):
            return
        strategy = Strategy(node.rule, self.problem.mesh, axes)
        if strategy.result_layouts[0] is layout:
            option = Option(strategy, 0.0, 0.0, self.problem.prices.work(node, strategy))
            self.decisions[node] = Decision(option, Cause(FOLLOWED))
            self.layouts[value] = layout

    def _following(self, node: Node) -> Strategy:
        """`_follow`, once for all equal nodes whose operands lie alike."""
        lie = tuple([(self.layouts.get(value), value in self.structure.fed) for value in node.operands])
        known = self._followed.get((node.key, lie))
        if known is None:
            known = self._followed[node.key, lie] = self._follow(node)
        return known

    def _follow(self, node: Node) -> Strategy:
        fed, last = self.structure.fed, _LAST.get(node.op.name)
        order = sorted(range(len(node.operands)), key=lambda i: (i == last, i))
        gathers = bool(self.gathered) and self._gathers(node)
        carried, carriers = self._carried(node)
        taken = list(carried)
        axes: Axes = ((),) * len(node.rule.factors)
        summed = set(node.rule.summed)
        for from_data, is_summed in itertools.product((True, False), (False, True) if summed else (False,)):
            for i in order:
                if (node.operands[i] in fed) is not from_data or node.operands[i] not in self.layouts:
                    continue
                layout = self.layouts[node.operands[i]]
                if gathers and not from_data:
                    layout = layout.with_dims(without(refs, self.gathered) for refs in layout.dims)
                if layout.partial and not (carried and i in carriers):
                    layout = self._completed(node, i, axes)
                more = project(node.rule, node.rule.operands[i], layout)
                more = tuple(refs if (factor in summed) is is_summed else () for factor, refs in enumerate(more))
                axes = joined(node, axes, more, taken) if any(more) else axes
        return Strategy(node.rule, self.problem.mesh, axes, carried, carriers if carried else ())

    def _gathers(self, node: Node) -> bool:
        """Whether a node takes whole parameters: with data, or with others in the forward pass; not in an update."""
        real = [value for value in node.operands if value in self.structure.grounded]
        if len(real) > 1:
            return node in self.structure.forward_nodes or any(value in self.structure.fed for value in real)
        return any(one.type.elements > value.type.elements for value in real for one in node.results)

    def _completed(self, node: Node, i: int, axes: Axes) -> Layout:
        """How an operand that is a sum is completed: as the operands before it lie, else as `settle` says."""
        value, layout = node.operands[i], self.layouts[node.operands[i]]
        open_axes = {ref.name for ref in layout.partial}
        if any(ref.name in open_axes for refs in axes for ref in refs):
            return layout.final()
        return self.settle(value, layout)

    def _carried(self, node: Node) -> tuple[Refs, tuple[int, ...]]:
        """The axes along which operands are terms of a sum that may pass, and these operands.

        Several terms of a sum that pass together take others with them, which lie whole there: these count on one
        rank. A term that is completed for another user besides may pass with one that is not.
        """
        if node.rule.reduction != "sum":
            return (), ()
        open_sums = [layout.partial if layout.reduction == "sum" else () for layout in map(self._of, node.operands)]
        used = {ref.name for layout in map(self._of, node.operands) for refs in layout.dims for ref in refs}
        for members in node.op.linear_in(len(node.operands)):
            outside = (i for i, refs in enumerate(open_sums) if refs and i not in members)
            if any(self._passes(node.operands[i]) for i in outside):
                continue  # others are completed for all that use them
            first, *others = [i for i in members if open_sums[i]] or (members[0],)
            if not any(self._passes(node.operands[i]) for i in (first, *others)):
                continue
            along = open_sums[first]
            if any(open_sums[i] != along for i in others):
                if any(node.operands[i].type.rank for i in members):
                    continue
                along = _union(open_sums[i] for i in members)
            if not others and len(members) > 1 and not self._takes_along(node, members, first):
                continue
            if along and not any(ref.name in used for ref in along):
                return along, members
        return (), ()

    def _takes_along(self, node: Node, members: Sequence[int], term: int) -> bool:
        """Whether a term alone takes with it what is made of parameters (a bias): where that is one sum less, as the
        result of another product is added to it next, or fewer bytes, as less is made of it; and a constant (room for
        rows) where the result is no more than the term."""
        value, *further = node.results
        others = [node.operands[i] for i in members if i != term]
        if further or any(one in self.structure.fed for one in others):
            return False
        is_room = not any(one in self.structure.grounded for one in others)
        if is_room and value.type.elements // self.parts(value) <= node.operands[term].type.elements:
            return True
        users = self.graph.users[value]
        if self._passes(value) and self._made_of(value) < value.type.elements:
            return True
        if len(users) != 1:
            return False
        others = [other for other in users[0][0].operands if other is not value]
        return users[0][0].op.name == "Add" and any(map(self._is_of_product, others))

    def _is_of_product(self, value: Value) -> bool:
        """Whether a value is a product of data by a weight, but for what is made of parameters and added."""
        products = {use.node for use in self.structure.weight_uses}
        while (node := self.graph.producers.get(value, (None, 0))[0]) is not None and node not in products:
            fed = [one for one in node.operands if one in self.structure.fed]
            if len(fed) != 1 or node.op.name != "Add":
                return False
            (value,) = fed
        return node is not None

    def _passes(self, value: Value) -> bool:
        """Whether all that use a value are linear in it, make no more of it than it is itself, and are no products that
        weights' gradients come from, of which more ranks would have terms; else its sum is completed once, for all."""
        if value not in self._passing:
            near = self._made_of(value) <= value.type.elements and not self.ends(value)
            users = self.graph.users[value]
            self._passing[value] = near and all(
                _is_linear(node, i) and not self._is_gradient_of_weight(node) for node, i in users
            )
        return self._passing[value]

    def _is_gradient_of_weight(self, node: Node) -> bool:
        fed = [one for one in node.operands if one in self.structure.fed and one.type.dtype.is_float]
        multiplies = node.is_product and len(fed) > 1  # and does not only add rows up, as for tables
        of = [self.graph.cotangents.get(value) for value in node.results] if multiplies else []
        return any(one is not None and self.structure.parameter_of(one) is not None for one in of)

    def _made_of(self, value: Value) -> int:
        """How many elements all that use a value make, on a rank."""
        made = (result for node, _ in self.graph.users[value] for result in node.results)
        return sum(one.type.elements // self.parts(one) for one in made)

    def _of(self, value: Value) -> Layout:
        return self.layouts.get(value) or Layout.replicated(self.problem.mesh, value.type.rank)


def _union(sums: Iterable[Refs]) -> Refs:
    """All axes along which one of several values is terms of a sum, none where they overlap in part."""
    every = tuple(dict.fromkeys(ref for refs in sums for ref in refs))
    return every if len({ref.name for ref in every}) == len(every) else ()


def _is_linear(node: Node, operand: int) -> bool:
    return any(operand in members for members in node.op.linear_in(len(node.operands)))


def joined(node: Node, axes: Axes, more: Axes, taken: list[AxisRef]) -> Axes:
    """The axes with those of another operand, where factors and mesh axes are free and the operator can run so; a
    factor that is split already may be cut further, which costs nothing."""
    new = list(axes)
    for i, refs in enumerate(more):
        if not refs:
            continue
        used = [ref for j, one in enumerate(new) for ref in one if j != i] + taken
        more_of = without(refs, new[i])
        begins_so = merge_refs((*new[i], *more_of)) == merge_refs(refs)
        if not more_of or not begins_so or any(ref.clashes(other) for ref in refs for other in used):
            continue
        tried = [*new[:i], merge_refs(refs), *new[i + 1 :]]
        if is_legal(node.rule, [size_of(one) for one in tried]):
            new = tried
    return tuple(new)


def split(node: Node, factors: Mapping[int, Refs], strategy: Strategy, keep_rest: bool = False) -> Strategy | None:
    """The strategy with some factors split anew by these axes; itself if they are split so already, or cut further;
    None if the operator cannot run so. Whatever else was split by one of the axes is whole then, or with `keep_rest`
    split by what is left of it."""
    if all(strategy.axes[i][: len(refs)] == refs for i, refs in factors.items()):
        return strategy
    taken = [ref for refs in factors.values() for ref in refs]
    anew = {ref.name for ref in taken}
    if keep_rest:
        axes = [without(refs, taken) for refs in strategy.axes]
    else:
        axes = [tuple(ref for ref in refs if ref.name not in anew) for refs in strategy.axes]
    for i, refs in factors.items():
        axes[i] = merge_refs((*(ref for ref in axes[i] if ref.name not in anew), *refs))
    if not is_legal(node.rule, [size_of(refs) for refs in axes]):
        return None
    clash = any(ref.name in anew for ref in strategy.carried)
    carried, carriers = ((), ()) if clash else (strategy.carried, strategy.carriers)
    return Strategy(node.rule, strategy.mesh, tuple(axes), carried, carriers)


def without(refs: Refs, taken: Iterable[AxisRef]) -> Refs:
    """What is left of some axes without others."""
    for other in taken:
        pieces = ((one.prefix_without_overlap(other), one.suffix_without_overlap(other)) for one in refs)
        refs = tuple(dict.fromkeys(piece for pair in pieces for piece in pair if piece is not None))
    return merge_refs(refs)


def forms_of(
    graph: Graph, value: Value, layout: Layout, fed: Container[Value]
) -> tuple[dict[Value, Layout], dict[Value, Layout]]:
    """How a value lies, and all that it is another form of (cast, transposed, scaled by a number), so that it then lies
    in that layout; and how what it is a sum of would lie so, with all that this is a form of."""
    found: dict[Value, Layout] = {}
    summands: dict[Value, Layout] = {}
    ahead = [(value, layout, found)]
    for one, of, into in ahead:
        into[one] = of
        node, i = graph.producers.get(one, (None, 0))
        if node is None or not node.op.has_rule or node.rule.summed or node.regions:
            continue
        strategy = Strategy(node.rule, of.mesh, project(node.rule, node.rule.results[i], of))
        if strategy.result_layouts[i] == of:
            sides = enumerate(zip(node.operands, strategy.operand_layouts, strict=True))
            forms = {i: side for i, side in sides if side[0] in fed and side[0].type.elements == one.type.elements}
            is_sum = len(forms) > 1 and any({*forms} <= {*all_of} for all_of in node.op.linear_in(len(node.operands)))
            ahead += [(x, need, summands if is_sum else into) for x, need in forms.values()]
    return found, summands
