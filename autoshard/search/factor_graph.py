"""The factor graph of a problem: variables with domains, unary costs, and one multi-layout cost per value.

A variable is an operator (its domain: strategies) or an input that nobody fixed (its domain: the layouts that its users
can want). Each value has one factor: what it takes to bring it from the layout it is left in to every other layout in
which it is wanted, each once however many users want it. The sum of all costs of an assignment is
`evaluate_plan(...).seconds`.

Equal operators share a domain, and factors of equal surroundings are one array object: the solver works them out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.blocks import moved
from autoshard.cost.prices import Prices
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.partition.manual import is_manual_collective
from autoshard.search.assignment import Use
from autoshard.search.constraints import is_constraint, permits
from autoshard.search.domains import Domain, DomainBuilder, MeshUnits, encode, partials_reached
from autoshard.search.multi_layout import MultiLayoutCost
from autoshard.search.problem import Problem
from autoshard.search.redistribution_tables import ALL, Detours, RedistributionTables
from autoshard.util.errors import PlanError, at

Variable = Node | Value


@dataclass(frozen=True, eq=False)
class InputDomain:
    """The layouts that an input can have, as numbers, of tensors of one type; equal inputs share one."""

    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class ValueFactor:
    """The redistributions of one value: `shared` over the positions of its variables in `FactorGraph.variables`."""

    value: Value
    scope: tuple[int, ...]
    multi_layout: MultiLayoutCost


Candidates = Callable[[Node, Domain], Sequence[int]]
"""The strategies of an operator that are looked at, as rows of its domain."""


class FactorGraph:
    """All variables and prices of a problem.

    Attributes:
        variables: operators in graph order behind the inputs; `choices` has what each can be.
        unary: per variable, [choices] seconds of the operator's own work.
        prices: of values; those that are always 0 are left out.

    Raises:
        PlanError: an operator with regions.
    """

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        units: MeshUnits,
        transfers: RedistributionTables | None = None,
        candidates: Candidates | None = None,
        detours: Detours = ALL,
    ) -> None:
        self.problem, self.graph, self.units, self.cost = problem, problem.graph, units, prices
        self.transfers: RedistributionTables = transfers or RedistributionTables(prices, units)
        self.detours: Detours = detours
        self.menus = _menus(problem, units, candidates)
        self._codes: dict[tuple, np.ndarray] = {}
        self._lying: dict[tuple, InputDomain] = {}
        self._work: dict[tuple, np.ndarray] = {}
        self._shared: dict[tuple, MultiLayoutCost | None] = {}
        self.choices: list[Domain | InputDomain] = [self._input(value) for value in self.graph.inputs]
        self.choices += [self.menus[node] for node in self.graph.nodes]
        self.variables: tuple[Variable, ...] = (*self.graph.inputs, *self.graph.nodes)
        self.position = {variable: i for i, variable in enumerate(self.variables)}
        self.unary = [np.zeros(0)] * len(self.graph.inputs) + [self._works(node) for node in self.graph.nodes]
        self.factors = list(self._value_factors())
        self.sizes = tuple(map(len, self.choices))

    # -- what a choice means

    def strategy(self, node: Node, choice: Sequence[int]) -> Strategy:
        return self.menus[node].strategy(int(choice[self.position[node]]))

    def lies(self, value: Value, choice: Sequence[int]) -> Layout:
        """The layout of a graph input."""
        i = self.position[value]
        lying = self.choices[i]
        assert isinstance(lying, InputDomain)
        return self.transfers.layout(int(lying.codes[int(choice[i])]), value.type.rank)

    def seconds(self, choice: Sequence[int]) -> float:
        """The sum of all prices."""
        work = sum(float(costs[choice[i]]) for i, costs in enumerate(self.unary) if len(costs))
        return work + sum(factor.multi_layout.at([choice[i] for i in factor.scope]) for factor in self.factors)

    def agreement(self, value: Value, user: Node, operand: int) -> np.ndarray:
        """[maker's choices, user's choices]: whether the user wants a computed value as it is left."""
        return self._left(value)[:, None] == self._operand_codes(self.menus[user], user, operand)[None, :]

    # -- choices as layout numbers

    def _operand_codes(self, menu: Domain, node: Node, operand: int) -> np.ndarray:
        def found() -> np.ndarray:
            if menu.fixed:
                return np.array([self.transfers.code(one.operand_layouts[operand]) for one in menu.fixed])
            return encode(menu.operand_digits(operand), node.operand_types[operand].rank)

        return self._remember((menu, "operand", operand), found)

    def _result_codes(self, menu: Domain, node: Node, result: int) -> np.ndarray:
        """How a result is left."""

        def found() -> np.ndarray:
            if menu.fixed:
                return np.array([self.transfers.code(self.problem.left(node, one)[result]) for one in menu.fixed])
            return encode(menu.result_digits(result), node.result_types[result].rank)

        own = node if node in self.problem.annotations else None
        return self._remember((menu, "result", result, own), found)

    def _remember(self, key: tuple, make) -> np.ndarray:
        if key not in self._codes:
            self._codes[key] = make()
        return self._codes[key]

    def _left(self, value: Value) -> np.ndarray:
        """[choices of what makes it], how the value is left."""
        made = self.graph.producers.get(value)
        if made is None:
            lying = self.choices[self.position[value]]
            assert isinstance(lying, InputDomain)
            return lying.codes
        return self._result_codes(self.menus[made[0]], made[0], made[1])

    def _input(self, value: Value) -> InputDomain:
        """The layouts that users of an input can want, or the one that is settled."""
        settled = self.problem.input_layouts.get(value)
        if settled is not None:
            return self._shared_lying(("settled", settled), lambda: [np.array([self.transfers.code(settled)])])
        replaced = [out for out, into in self.graph.tied.items() if into is value and out in self.graph.producers]
        made = [self.graph.producers[out] for out in replaced]
        users = self.graph.users[value]
        key = (value.type, *((self.menus[node], i) for node, i in users), None, *((self.menus[n], i) for n, i in made))

        def found() -> list[np.ndarray]:
            rank = value.type.rank
            wanted = [self._operand_codes(self.menus[node], node, i) for node, i in users]
            left = [self._result_codes(self.menus[node], node, i) for node, i in made]
            return [self.transfers.final(np.unique(codes), rank) for codes in (np.zeros(1, np.int64), *wanted, *left)]

        return self._shared_lying(key, found)

    def _shared_lying(self, key: tuple, make) -> InputDomain:
        if key not in self._lying:
            self._lying[key] = InputDomain(np.unique(np.concatenate(make())))
        return self._lying[key]

    # -- work

    def _works(self, node: Node) -> np.ndarray:
        menu = self.menus[node]
        own, runs = node if node in self.problem.annotations else None, self.problem.runs.get(node, 1)
        key = (menu, own, runs)
        if key not in self._work:
            self._work[key] = runs * self._worked(node, menu)
        return self._work[key]

    def _worked(self, node: Node, menu: Domain) -> np.ndarray:
        if menu.fixed or node.op.uneven or is_manual_collective(node):
            return np.array([self._one_work(node, menu.strategy(row)) for row in range(len(menu))])
        sides = [(of, menu.operand_digits(i)) for i, of in enumerate(node.operand_types)]
        sides += [(of, menu.result_digits(i)) for i, of in enumerate(node.result_types)]
        through = moved(node, sides)
        nbytes = sum(of.nbytes // self._blocks(digits) for of, digits in through) + np.zeros(len(menu), np.int64)
        seconds = np.array(self.cost.works(node, menu.work_split, nbytes), dtype=np.float64)
        exchanging = [i for i, factor in enumerate(node.rule.factors) if factor.exchange]
        for row in np.flatnonzero((menu.parts[:, exchanging] > 1).any(axis=1)):
            seconds[row] = self._one_work(node, menu.strategy(int(row)))
        return seconds

    def _blocks(self, digits: np.ndarray) -> np.ndarray:
        return np.where(digits >= 2, self.units.sizes, 1).prod(axis=1)

    def _one_work(self, node: Node, strategy: Strategy) -> float:
        seconds = self.cost.work(node, strategy)
        for before, after, of in zip(
            strategy.result_layouts, self.problem.left(node, strategy), node.result_types, strict=True
        ):
            seconds += self.cost.redistribution(before, after, of)
        return seconds

    # -- prices of values

    def _value_factors(self) -> Iterator[ValueFactor]:
        outputs: dict[Value, list[int]] = {}
        for i, value in enumerate(self.graph.outputs):
            outputs.setdefault(value, []).append(i)
        for value in self.graph.values:
            users, leaving = self.graph.users[value], self.problem.leaving_loops
            inside = [use for use in users if use[0] not in leaving]
            found = [self._factor(value, outputs.get(value, []), inside, self.problem.times(value))]
            for use in users:
                if use[0] in leaving:
                    found.append(self._factor(value, [], [use], self.problem.times(use[0].results[0])))
            yield from (factor for factor in found if factor is not None)

    def _factor(self, value: Value, outputs: list[int], uses: Sequence[Use], times: int) -> ValueFactor | None:
        made = self.graph.producers.get(value)
        maker = self.position[value if made is None else made[0]]
        users: dict[int, list[tuple[tuple, np.ndarray]]] = {}
        for node, i in uses:
            menu = self.menus[node]
            users.setdefault(self.position[node], []).append(((menu, i), self._operand_codes(menu, node, i)))
        left, into = self._left(value), self.graph.tied.get(value)
        if outputs and into is not None and into is not value:
            at_input = self.position[into]
            lying = self.choices[at_input]
            assert isinstance(lying, InputDomain)
            users.setdefault(at_input, []).append(((lying,), lying.codes))
        leaving = tuple(outputs) if into is None else ()
        asked = tuple(i for i in leaving if self.problem.asked_outputs and self.problem.asked_outputs[i] is not None)
        key = (
            value.type,
            self.choices[maker],
            None if made is None else (made[1], made[0] if made[0] in self.problem.annotations else None),
            tuple((at_user == maker, *(key for key, _ in uses)) for at_user, uses in users.items()),
            asked or bool(leaving),
            times,
            self.problem.share(value),
        )
        if key not in self._shared:
            own = {at_user: [codes for _, codes in uses] for at_user, uses in users.items()}
            self._shared[key] = self._share(value, left, own, maker, leaving, times)
        multi_layout = self._shared[key]
        return (
            None
            if multi_layout is None
            else ValueFactor(value, (maker, *(one for one in users if one != maker)), multi_layout)
        )

    def _share(
        self,
        value: Value,
        left: np.ndarray,
        users: dict[int, list[np.ndarray]],
        maker: int,
        leaving: Sequence[int],
        times: int,
    ) -> MultiLayoutCost | None:
        of = value.type
        before, which = np.unique(left, return_inverse=True)
        after = np.unique(np.concatenate([codes for uses in users.values() for codes in uses] or [before[:0]]))
        ends = np.stack([self._leaving(before, i, of.rank) for i in leaving]) if leaving else np.zeros((0, 0), np.int64)
        after = np.union1d(after, ends.reshape(-1)) if leaving else after
        if not len(after):
            return None
        seconds = times * self.transfers.table(of, before, after, self.problem.share(value), self.detours)
        wants = [
            np.stack([np.searchsorted(after, codes) for codes in uses], axis=1)
            for at_user, uses in users.items()
            if at_user != maker
        ]
        own = [np.searchsorted(after, codes) for codes in users.get(maker, [])]
        own += [np.searchsorted(after, end)[which] for end in ends]
        multi_layout = MultiLayoutCost.of(seconds, which, own, wants)
        return None if multi_layout.is_free else multi_layout

    def _leaving(self, before: np.ndarray, output: int, rank: int) -> np.ndarray:
        if not self.problem.asked_outputs or self.problem.asked_outputs[output] is None:
            return self.transfers.final(before, rank)
        layouts = [self.problem.leaving(output, self.transfers.layout(int(code), rank)) for code in before]
        return np.array([self.transfers.code(layout) for layout in layouts])


def _menus(problem: Problem, units: MeshUnits, candidates: Candidates | None) -> dict[Node, Domain]:
    """The domain of every operator, in graph order: what can come as terms decides what can be carried."""
    fewer: dict[tuple, Domain] = {}
    lister, graph = DomainBuilder(units), problem.graph
    reached: dict[Value, frozenset[int]] = {}
    menus: dict[Node, Domain] = {}
    for node in graph.nodes:
        if node in problem.configured:
            menus[node] = lister.fixed(node, problem.configured[node])
        else:
            _check_plain(node, graph)
            menus[node] = lister.menu(node, tuple(reached.get(value, frozenset()) for value in node.operands))
            if is_constraint(node):
                menus[node] = _permitted(node, menus[node], problem, lister)
            elif candidates is not None:
                key = node.key, id(menus[node])
                fewer[key] = fewer.get(key) or _chosen(menus[node], candidates(node, menus[node]))
                menus[node] = fewer[key]
        for i, value in enumerate(node.results):
            reached[value] = partials_reached(menus[node], i)
    return menus


def _permitted(node: Node, menu: Domain, problem: Problem, lister: DomainBuilder) -> Domain:
    """The strategies of a constraint that keep what it asks; where that leaves ranks without work, which no domain has,
    what it asks."""
    rows = [row for row in range(len(menu)) if permits(node, menu.strategy(row))]
    asked = None if rows else problem.asked_strategy(node)
    if asked is not None:
        return lister.fixed(node, asked)
    return menu if len(rows) == len(menu) else _chosen(menu, rows)


def _chosen(menu: Domain, rows: Sequence[int]) -> Domain:
    """The domain with some of its strategies."""
    rows = list(rows)
    return (
        menu
        if len(rows) == len(menu)
        else Domain(menu.rule, menu.units, menu.slots[rows], menu.passing[rows], menu.linear)
    )


def _check_plain(node: Node, graph: Graph) -> None:
    if node.regions:
        raise PlanError(
            f"search mode 'optimal' cannot plan {node.op.name} yet: {node.label}{at(node.source)} in {graph.name!r} "
            "holds operators of its own; choose another mode, such as 'sharding_propagation'"
        )
