"""Statistics of each micro batch by itself, instead of those of the whole batch, which a step in parts does not know.

Each micro batch then computes what follows from sums over the batch as if the whole batch were like it: a sum over its
rows, times the number of micro batches, stands for that of the whole batch, and a mean is that of its rows. Where one
result is wanted in the end, such as the loss, that is the mean over the micro batches; gradients are sums of what each
gives. States that the forward pass writes, such as running means, go from micro batch to micro batch.

Which values these are is found out in walks over the graph (`classify`), until one finds no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from autoshard.core.tensortype import dtype
from autoshard.ir.graph import PARAMETER, Graph, Node, Value, ancestors
from autoshard.ir.trips import constant_scalar
from autoshard.ops.attention_blocks import QUERY
from autoshard.ops.attention_dropout import split_operands
from autoshard.ops.hlo_batch_norm import batch_norm_grad, batch_norm_training
from autoshard.ops.hlo_reduce import reduce_add
from autoshard.ops.pointwise import div
from autoshard.ops.reduce import reduce_mean, reduce_sum, unbiased
from autoshard.ops.unary import cast, scalar_mul, stop_gradient
from autoshard.transform.micro.forms import LATE, OWN, Form, MicroPartial, MicroRows
from autoshard.transform.recompute import backward_begins
from autoshard.util.errors import GraphError

BATCH: Final = "batch"
MICRO_BATCH: Final = "micro_batch"
STATISTICS = (BATCH, MICRO_BATCH)
"""Whose statistics a step in micro batches takes: the whole batch's, or each micro batch's own."""

COMPOSITES: Mapping[Any, Form] = {batch_norm_training: OWN, batch_norm_grad: MicroPartial()}
"""Operators that take statistics inside, and the form of their results without rows."""


def check_statistics(statistics: str) -> str:
    """The same, if it says whose statistics a step takes.

    Raises:
        GraphError: it does not.
    """
    if statistics not in STATISTICS:
        raise GraphError(f"statistics is {statistics!r}; it can be {' or '.join(map(repr, STATISTICS))}")
    return statistics


class OwnStatistics:
    """What is known so far of the values that each micro batch computes of its own rows.

    Attributes:
        values: sums over the batch, and what follows from them, of which each micro batch takes its own.
        states: the states that are carried, and the outputs that they become.
    """

    def __init__(self, graph: Graph, parts: int) -> None:
        self.graph, self.parts = graph, parts
        self.values: set[Value] = set()
        self.states = dict(_written_forward(graph))
        self.forward = ancestors(graph, (*_results(graph), *self.states.values()))
        self.inside = self.forward | ancestors(graph, graph.cotangents)

    @property
    def size(self) -> tuple[int, int]:
        """Changes from walk to walk as long as more is found."""
        return len(self.values), len(self.states)

    def takes_data(self, node: Node, value: Value) -> bool:
        """Whether a node takes a value that follows from data alone as a statistic: no count, and not in the backward
        pass, where it weighs the loss."""
        return node in self.forward and not self._is_count(value)

    def _is_count(self, value: Value) -> bool:
        """Whether a value follows from truth values and constants alone, as the number of valid labels does."""
        waiting, found = [value], False
        while waiting:
            one = waiting.pop()
            if one.type.dtype == dtype("bool"):
                found = True
            elif one in self.graph.producers:
                waiting += self.graph.producers[one][0].uses
            else:
                return False
        return found

    def add(self, value: Value, forms: Mapping[Value, Form], node: Node) -> None:
        """Let each micro batch take its own of a value: of all sums over the batch that it follows from.

        Raises:
            GraphError: it is not known which values are gradients.
        """
        if not self.graph.cotangents and self.graph.updates:
            raise GraphError(
                f"{self.graph.name!r} cannot take statistics of each micro batch for {node.label}: it came with its "
                "gradients, and does not say which values these are; let autoshard or its importer differentiate it"
            )
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if one in self.values or forms.get(one) not in (LATE, OWN) and not isinstance(forms.get(one), MicroPartial):
                continue
            self.values.add(one)
            if forms[one] == LATE:
                waiting += self.graph.producers[one][0].uses

    def attributes(self, node: Node, forms: Mapping[Value, Form]) -> dict[str, Any]:
        """The attributes of a node that works on what is each micro batch's own: a variance counts the rows of one.

        Raises:
            GraphError: a micro batch has too few.
        """
        if node.op is not unbiased or not self._counts_rows(node, forms):
            return dict(node.attrs)
        count, less = node.attrs["count"] // self.parts, node.attrs["correction"]
        if count <= less:
            raise GraphError(
                f"{self.graph.name!r} cannot take statistics of each of {self.parts} micro batches: one has {count} "
                f"values for the variance {node.label}, whose count is less by {less}; take fewer micro batches"
            )
        return {**node.attrs, "count": count}

    def _counts_rows(self, node: Node, forms: Mapping[Value, Form]) -> bool:
        """Whether a variance, or its gradient, counts rows of the batch: of a gradient, if a variance that it may be of
        does."""
        if node in self.forward:
            return self._is_of_rows(node.operands[0], forms)
        alike = (one for one in self.forward if one.op is unbiased and one.key is node.key)
        return any(self._is_of_rows(one.operands[0], forms) for one in alike)

    def check_states(self, forms: Mapping[Value, Form]) -> None:
        """Refuse a state of sums over the batch that are no means: PyTorch would sum up the rows of a micro batch.

        Raises:
            GraphError: there is one.
        """
        for state, new in self.states.items():
            for value in self._terms_of(new, forms):
                if not self._is_mean(value):
                    raise GraphError(
                        f"{self.graph.name!r} cannot take statistics of each of {self.parts} micro batches: state "
                        f"{state.name} follows from {value.name}, a sum over the batch; make it a mean over the batch, "
                        "which does not depend on how many rows there are"
                    )

    def _terms_of(self, value: Value, forms: Mapping[Value, Form]) -> Iterator[Value]:
        """The sums over the batch that a value without rows follows from."""
        waiting, seen = [value], set()
        while waiting:
            one = waiting.pop()
            if one in seen or forms[one] != OWN and forms[one] != MicroPartial():
                continue
            seen.add(one)
            operands = self.graph.producers[one][0].uses if one in self.graph.producers else ()
            waiting += operands
            if forms[one] == MicroPartial() and any(isinstance(forms[of], MicroRows) for of in operands):
                yield one

    def _is_mean(self, value: Value) -> bool:
        """Whether a sum over the batch is a mean, or is divided by the number of its terms wherever it is read."""
        node, _ = self.graph.producers[value]
        if node.op is reduce_mean:
            return True
        count = node.operands[0].type.elements / max(value.type.elements, 1)
        return node.op in (reduce_sum, reduce_add) and all(
            np.isclose(self._divisor(user, one), count, rtol=1e-5) for one, user in self._readers(value)
        )

    def _readers(self, value: Value) -> Iterator[tuple[Value, Node]]:
        """What reads a value in the forward pass, where need be in another shape or type, and which value it reads."""
        for user, _ in self.graph.users[value]:
            if user not in self.forward:
                continue
            if user.op.view or user.op is cast or user.op is stop_gradient:
                yield from (pair for one in user.results for pair in self._readers(one))
            else:
                yield value, user

    def _divisor(self, node: Node, value: Value) -> float:
        """By which number a node divides a value; 0 if it does something else."""
        if node.op is scalar_mul:
            return 1 / node.attrs["factor"] if node.attrs["factor"] else 0.0
        if node.op is not div or node.operands[0] is not value:
            return 0.0
        number = same_everywhere(node.operands[1], {one: maker for one, (maker, _) in self.graph.producers.items()})
        return 0.0 if number is None else float(number)

    def _is_of_rows(self, value: Value, forms: Mapping[Value, Form]) -> bool:
        node, _ = self.graph.producers.get(value, (None, 0))
        return isinstance(forms[value], MicroPartial) or node is not None and node.op in COMPOSITES


def same_everywhere(value: Value, makers: Mapping[Value, Node]) -> np.ndarray | None:
    """The number that all elements of a value are; None if that is not known."""
    while (node := makers.get(value)) is not None and node.op.spread == "broadcast":
        value = node.operands[0]
    if node is not None and node.op.name == "Fill":
        return np.asarray(node.attrs["value"], value.type.dtype.numpy)
    return constant_scalar(value, makers)


def _written_forward(graph: Graph) -> Iterator[tuple[Value, Value]]:
    """The states that the forward pass writes and the outputs that they become, without what random numbers count."""
    begin = backward_begins(graph)
    counters = _counters(graph)
    trained = set(graph.cotangents.values())
    for new, state in graph.tied.items():
        node, _ = graph.producers.get(new, (None, 0))
        if node is None or state in trained or state in counters or graph.role_of[state] == PARAMETER:
            continue
        if node in set(graph.nodes[:begin]):
            yield state, new


def _counters(graph: Graph) -> set[Value]:
    """The inputs that operators that draw numbers count by."""
    found = {value for node in graph.nodes for value in _counts_by(node)}
    for node in reversed(graph.nodes):
        if found.intersection(node.results):
            found.update(node.operands)
    return found


def _counts_by(node: Node) -> Sequence[Value]:
    """The operand of a node that draws numbers which tells the draws apart."""
    if node.op.name in QUERY and node.attrs["dropout"]:
        return split_operands(node.operands, node.attrs)[2][:1]
    return [value for name, value in zip(node.op.operand_names, node.operands, strict=False) if name == "counter"]


def _results(graph: Graph) -> list[Value]:
    return [value for i, value in enumerate(graph.outputs) if i not in graph.updates]
