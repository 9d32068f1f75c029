"""What a training graph is made of, found by its roles and rules, never by names.

Which node updates which parameter and states, which gradient goes in, which nodes are of the forward pass, and which of
these multiply data by a weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from autoshard.ir.graph import DATA, PARAMETER, Graph, Node, Value
from autoshard.search.problem import CARRIED


@dataclass(frozen=True, eq=False)
class Update:
    """A node that makes the next values of inputs: `parameter` (None: only states), `states`, from `gradient`. `owner`
    is the parameter whose states they are (None where that cannot be told)."""

    node: Node
    parameter: Value | None
    states: tuple[Value, ...]
    gradient: Value | None
    owner: Value | None


@dataclass(frozen=True, eq=False)
class WeightUse:
    """A forward node that contracts data with a parameter, or looks rows of one up.

    Factors of the node's rule by number: `contracted` are in data and weight and not in the result, `kept` in weight
    and result alone, `batch` in all three (experts; the groups of a convolution do not count).
    """

    node: Node
    data: int
    weight: int
    contracted: tuple[int, ...]
    kept: tuple[int, ...]
    batch: tuple[int, ...]


class Structure:
    """Facts about a graph, worked out when first asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @cached_property
    def fed(self) -> frozenset[Value]:
        """Values that depend on data."""
        return self._made_of({DATA})

    @cached_property
    def grounded(self) -> frozenset[Value]:
        """Values that depend on any input; all others are constants, counters of loops, room for what these collect."""
        return self._made_of({*self.graph.roles} - {CARRIED})

    def _made_of(self, roles: Collection[str]) -> frozenset[Value]:
        """Values that depend on inputs of these roles; what loops carry, and branches yield, does if one of its tie
        does."""
        inputs = zip(self.graph.inputs, self.graph.roles, strict=True)
        found, before = {value for value, role in inputs if role in roles}, -1
        while before < len(found):
            before = len(found)
            for node in self.graph.nodes:
                if any(value in found for value in node.operands):
                    found.update(node.results)
                    found.update(self.keepers[value] for value in node.results if value in self.keepers)
            if not self.keepers:
                break
        return frozenset(found)

    @cached_property
    def keepers(self) -> dict[Value, Value]:
        """What loops carry, and branches yield, to what it lies alike with."""
        role_of = self.graph.role_of
        return {value: keeper for value, keeper in self.graph.tied.items() if role_of[keeper] == CARRIED}

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """The nodes that take a gradient and make new values of parameters or states, in graph order."""
        tied, roles = self.replacing, self.graph.role_of
        choosing = {user for new in self._chosen for user, _ in self.graph.users[new] if user.op.name == "Select"}
        found = []
        for node in self.graph.nodes:
            if node in choosing:
                continue
            replaced = [tied[value] for value in node.results if value in tied and value not in self.keepers]
            others = [one for one in node.operands if one not in roles and one in self.fed]
            if not replaced or not others:
                continue
            parameter = next((one for one in replaced if roles[one] == PARAMETER), None)
            states = tuple(one for one in replaced if one is not parameter)
            alike = [one for one in others if one.type.shape == replaced[0].type.shape]
            owner = parameter or next((self.owners[one] for one in states if one in self.owners), None)
            found.append(Update(node, parameter, states, alike[0] if alike else None, owner))
        return tuple(found)

    @cached_property
    def replacing(self) -> dict[Value, Value]:
        """Values to what takes them up: inputs, what loops carry; also where a step may be skipped, by a choice between
        a new value and the old one."""
        return {**self.graph.tied, **{new: self.graph.tied[value] for new, value in self._chosen.items()}}

    @cached_property
    def _chosen(self) -> dict[Value, Value]:
        """New values of inputs that a choice takes or leaves, to its results."""
        found: dict[Value, Value] = {}
        for value, old in self.graph.tied.items():
            made = value
            while (new := self._new_of(made, old)) is not None:
                found[new], made = value, new
        return found

    def _new_of(self, value: Value, old: Value) -> Value | None:
        """What a value is where it is not the old one, if it is a choice between the two."""
        node, _ = self.graph.producers.get(value, (None, 0))
        if node is None or node.op.name != "Select" or old not in node.operands[1:]:
            return None
        return node.operands[1 if node.operands[2] is old else 2]

    @cached_property
    def owners(self) -> dict[Value, Value]:
        """The parameters that states belong to, where an optimizer is written in operators of its own: inputs of a
        parameter's shape that its next value is made of, element by element."""
        found: dict[Value, Value] = {}
        for value, parameter in self.graph.tied.items():
            if self.graph.role_of[parameter] == PARAMETER:
                found |= {state: parameter for state in self._states_in(value, parameter) if state not in found}
        return found

    def _states_in(self, value: Value, parameter: Value) -> Iterator[Value]:
        replaced, forward = {*self.graph.tied.values()} - {*self.keepers.values()}, self.forward_nodes
        seen, ahead = {value}, [value]
        for one in ahead:
            if one in replaced and self.graph.role_of[one] != PARAMETER:
                yield one
            node, _ = self.graph.producers.get(one, (None, 0))
            if node is not None and node.op.has_rule and not node.rule.summed and node not in forward:
                more = [of for of in node.operands if of.type.shape == parameter.type.shape and of not in seen]
                seen.update(more)
                ahead += more

    def is_made_of_states(self, update: Update) -> bool:
        """Whether what a parameter is updated from is made of its states, by other operators."""
        return update.owner in self.owners.values() and not update.states

    def is_spread(self, value: Value) -> bool:
        """Whether a value is also spread over tokens, in its own pass, as gradients of a norm over the batch are: these
        want all of it, and would follow it if it lay in parts."""
        ahead, seen, forward = [value], {value}, self.forward_nodes
        is_forward = self.graph.producers.get(value, (None, 0))[0] in forward
        for one in ahead:
            users = (user for user, _ in self.graph.users[one] if not is_forward or user in forward)
            made = (result for user in users for result in user.results)
            for result in (result for result in made if result.type.dtype.is_float):
                if result.type.elements > one.type.elements:
                    return True
                if result.type.elements == one.type.elements and result not in seen and result not in self.graph.tied:
                    seen.add(result)
                    ahead.append(result)
        return False

    @cached_property
    def forward(self) -> tuple[Node, ...]:
        """The nodes that come before the first gradient, and up to the last that what is returned is made by."""
        gradients = set(self.graph.cotangents)
        for i, node in enumerate(self.graph.nodes):
            if any(value in gradients for value in node.results):
                return self.graph.nodes[: min(i, self._last_returned + 1)]
        return self.graph.nodes

    @cached_property
    def forward_nodes(self) -> frozenset[Node]:
        return frozenset(self.forward)

    @property
    def _last_returned(self) -> int:
        """The number of the last node that what is returned depends on."""
        updated, number = self.graph.updates, {node: i for i, node in enumerate(self.graph.nodes)}
        ahead = [value for i, value in enumerate(self.graph.outputs) if i not in updated and value in self.fed]
        made = (self.graph.producers.get(value) for value in ahead)
        return max((number[one[0]] for one in made if one is not None), default=len(number))

    @cached_property
    def weight_uses(self) -> tuple[WeightUse, ...]:
        """Products of data with parameters in the forward pass, in graph order."""
        found = (self._weight_use(node) for node in self.forward)
        return tuple(one for one in found if one is not None)

    @cached_property
    def lookups(self) -> tuple[tuple[Node, int], ...]:
        """Forward nodes that look rows of a parameter up by indices, and the factor of these rows."""
        found = []
        for node in self.forward:
            if len(node.operands) != 2 or self.parameter_of(node.operands[0]) is None:
                continue
            table, indices = node.operands
            if indices.type.dtype.is_float or table.type.rank < 2:
                continue
            rows = _factors(node, 0) - _factors(node, 1) - _result_factors(node)
            splittable = [i for i in sorted(rows) if node.rule.factors[i].splittable]
            if splittable:
                found.append((node, splittable[0]))
        return tuple(found)

    def _weight_use(self, node: Node) -> WeightUse | None:
        if len(node.operands) != 2 or not node.op.has_rule or not node.rule.contracted:
            return None
        sides = [self.parameter_of(value) is not None for value in node.operands]
        if sides[0] == sides[1]:
            return None
        weight = sides.index(True)
        if node.operands[weight].type.rank < 2 or node.operands[1 - weight] not in self.fed:
            return None
        if not node.operands[1 - weight].type.dtype.is_float:
            return None
        own, data, made = _factors(node, weight), _factors(node, 1 - weight), _result_factors(node)
        contracted = tuple(sorted((own & data) - made))
        if not contracted:
            return None
        batch = tuple(sorted(own & data & made)) if self._sums_whole_dims(node, 1 - weight, contracted) else ()
        return WeightUse(node, 1 - weight, weight, contracted, tuple(sorted((own & made) - data)), batch)

    @staticmethod
    def _sums_whole_dims(node: Node, data: int, contracted: tuple[int, ...]) -> bool:
        """Whether data is summed along dims of its own; not so windows and groups of channels, which are no experts."""
        dims = [set(dim) for dim in node.rule.operands[data]]
        return all({i} in dims and not node.rule.factors[i].exchange for i in contracted)

    def terms_from(self, weights: Collection[Value | None]) -> Iterator[tuple[Value, list[int]]]:
        """Which terms of a gradient come from products with these weights, where several do, and others do not."""
        for node in self.graph.nodes:
            if node.op.name != "AddN":
                continue
            places = [i for i, value in enumerate(node.operands) if self._is_product_with(value, weights)]
            if 1 < len(places) < len(node.operands):
                yield node.results[0], places

    def _is_product_with(self, value: Value, weights: Collection[Value | None]) -> bool:
        """Whether a value is a product of data with one of these weights, or another form of such a one."""
        while (made := self.graph.producers.get(value)) is not None and len(made[0].operands) == 1:
            value = made[0].operands[0]
        if made is None or not made[0].op.has_rule or not made[0].rule.contracted:
            return False
        plain = (one for one in made[0].operands if one not in self.fed)
        return any(self.parameter_of(one) in weights for one in plain)

    def parameter_of(self, value: Value) -> Value | None:
        """The parameter that a value is, or is another form of (cast, transposed, the part for one turn of a loop)."""
        while self.graph.role_of.get(value, CARRIED) == CARRIED:
            source = self.form_of(value)
            if source is None:
                return None
            value = source
        return value if self.graph.role_of[value] == PARAMETER else None

    def form_of(self, value: Value) -> Value | None:
        """What a value is another form of: what a loop carries unchanged, the one operand that depends on inputs."""
        if value in self.fed:
            return None
        if value in self.graph.role_of:
            return self._carried_unchanged.get(value)
        node, _ = self.graph.producers[value]
        place = self.only_source(node)
        return None if place is None else node.operands[place]

    def only_source(self, node: Node) -> int | None:
        """The operand that depends on inputs, if it is one alone: others are constants, such as which part of it."""
        if len(node.operands) == 1:
            return 0
        found = [i for i, value in enumerate(node.operands) if value in self.grounded]
        return found[0] if len(found) == 1 else None

    def forms_beside(self, in_forward: bool) -> frozenset[Node]:
        """Nodes that make another form of a parameter which the forward pass takes as it is, too: a table of words that
        is looked up and turned for the head. Of the forward pass alone, or of both."""
        found: set[Node] = set()
        for parameter, role in zip(self.graph.inputs, self.graph.roles, strict=True):
            users = [user for user, _ in self.graph.users[parameter]] if role == PARAMETER else []
            forms = {user for user in users if self.only_source(user) is not None}
            first = self.forward_nodes.intersection(users)
            if not first <= forms:
                found |= forms & first if in_forward else forms
        return frozenset(found)

    @cached_property
    def counted(self) -> frozenset[Value]:
        """Values that differ from one turn of a loop to the next and depend on no input: counters, and what is made of
        them."""
        return self._made_of({CARRIED}) - self.grounded if self.keepers else frozenset()

    def dims_of_turns(self, parameter: Value) -> frozenset[int]:
        """The dims of a parameter of which each turn of a loop takes a part: its layers."""
        found: set[int] = set()
        ahead = [(parameter, dim, dim) for dim in range(parameter.type.rank)] if self.keepers else []
        for value, dim, of in ahead:
            for node, operand in self.graph.users[value]:
                if not node.op.has_rule or self.only_source(node) != operand:
                    continue
                factors = {*node.rule.operands[operand][dim]}
                sides = zip(node.results, node.rule.results, strict=True)
                made = [(one, i, of) for one, dims in sides for i, own in enumerate(dims) if factors & {*own}]
                is_turn = any(other in self.counted for i, other in enumerate(node.operands) if i != operand)
                found |= {of} if is_turn and not made else set()
                made += [(self.keepers[one], i, of) for one, i, _ in made if one in self.keepers]
                ahead += [spot for spot in made if spot not in ahead]
        return frozenset(found)

    def into_loops(self) -> Iterator[Node]:
        """The nodes through which parameters enter loops: what these start with, or take of one from outside."""
        for value in self.graph.inputs:
            if self.graph.role_of[value] != PARAMETER or not self.keepers:
                continue
            for node, operand in self.graph.users[value]:
                others = (other for i, other in enumerate(node.operands) if i != operand)
                if node.results[0] in self.keepers or any(one in self.counted for one in others):
                    yield node

    @cached_property
    def _carried_unchanged(self) -> dict[Value, Value]:
        """What loops carry and give on as it is, to what they start with."""
        starts: dict[Value, set[Value]] = {}
        for value, keeper in self.keepers.items():
            node, _ = self.graph.producers[value]
            alone = len(node.operands) == 1 and node.op.name == "Identity"
            starts.setdefault(keeper, set()).add(node.operands[0] if alone else value)
        found = {keeper: values - {keeper} for keeper, values in starts.items()}
        return {keeper: values.pop() for keeper, values in found.items() if len(values) == 1}


def _factors(node: Node, operand: int) -> set[int]:
    return {i for dim in node.rule.operands[operand] for i in dim}


def _result_factors(node: Node) -> set[int]:
    return {i for dims in node.rule.results for dim in dims for i in dim}
