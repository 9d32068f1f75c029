"""Which values' collectives can share a common buffer with others: `latency_shares(graph)`, `bundled(program)`.

Frameworks gather parameters before they are needed and reduce gradients when many are there, in buckets (PyTorch DDP,
Li et al. 2020, section 3.2.3; FSDP, Zhao et al. 2023, section 3.3): what stands at the ends of a step waits for little
and is waited for by little. Said so that it follows from the graph alone, whatever its plan:

- a value is *early* if it depends on parameters, states and constants only, on one of the former at least, through no
  contraction;
- it is *late* if only updates of parameters and states depend on it, through no contraction.

A graph that updates nothing has neither.

Contractions are products of two tensors that are summed over a common dim. Redistributions of all other values keep
the latency of their links to themselves, so that a bound below the price of any plan can count it. Of those of early
values, as of those of late ones, all that share a buffer pay it once: a bound counts an equal part of it for each that
there can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from autoshard.ir.graph import DATA, PARAMETER, STATE, Graph, Node, Value
from autoshard.partition.program import Bundle, Collective, Compute, Instruction, Program, Register

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class _BundlePiece(Generic[Item]):
    """Something that makes results of operands; `heavy` where it is a contraction, or not known to be none."""

    operands: Sequence[Item]
    results: Sequence[Item]
    heavy: bool


@dataclass(frozen=True)
class Ends(Generic[Item]):
    """What is early, and what is late and not early."""

    early: frozenset[Item] = frozenset()
    late: frozenset[Item] = frozenset()

    def of(self, item: Item) -> str:
        """ "early", "late", or "" for what is neither."""
        return "early" if item in self.early else "late" if item in self.late else ""


_SHARES: WeakKeyDictionary[Graph, Mapping[Value, float]] = WeakKeyDictionary()
"""What is known of graphs, as long as somebody holds them: every price of every plan of a graph asks for it."""


def latency_shares(graph: Graph, inside: Collection[Node] = ()) -> Mapping[Value, float]:
    """For early and late values the part of its links' latency that a redistribution counts: at most 1 for all that can
    be bundled.

    Only where early values are used by others, and where late ones are made of others, anything counts: there most
    plans redistribute. With loops or branches nothing does.

    Args:
        inside: nodes that come from loops and branches; what these make is neither early nor late.
    """
    if inside:
        return _shares(graph, inside)
    if graph not in _SHARES:
        _SHARES[graph] = _shares(graph, ())
    return _SHARES[graph]


def _shares(graph: Graph, inside: Collection[Node]) -> Mapping[Value, float]:
    ends = bundled_values(graph, inside)
    shares = dict.fromkeys(ends.early | ends.late, 0.0)
    if inside or any(node.regions for node in graph.nodes):
        return shares
    leaving = Counter(graph.outputs)
    uses = {value: len(graph.users[value]) + leaving[value] for value in shares}
    for first in (_used_by_others(graph, ends), _made_of_others(graph, ends)):
        count = sum(uses[value] for value in first)
        shares |= dict.fromkeys(first, 1 / count if count else 0.0)
    return shares


def _used_by_others(graph: Graph, ends: Ends[Value]) -> list[Value]:
    users = {value: graph.users[value] for value in ends.early}
    return [value for value, uses in users.items() if any(not ends.early.issuperset(node.results) for node, _ in uses)]


def _made_of_others(graph: Graph, ends: Ends[Value]) -> list[Value]:
    makers = {value: graph.producers[value][0] for value in ends.late if value in graph.producers}
    return [value for value, maker in makers.items() if any(not ends.of(one) for one in maker.operands)]


def bundled_values(graph: Graph, inside: Collection[Node] = ()) -> Ends[Value]:
    """The values of a graph that are early or late.

    Args:
        inside: as for `latency_shares`.
    """
    pieces = [_BundlePiece(node.operands, node.results, node in inside or is_heavy(node)) for node in graph.nodes]
    starts = {value for value, role in graph.role_of.items() if role in (PARAMETER, STATE)}
    updates = {i for i, into in graph.updates.items() if graph.roles[into] in (PARAMETER, STATE)}
    plain = [value for i, value in enumerate(graph.outputs) if i not in updates]
    return _ends_of(pieces, starts, plain) if updates else Ends()


def bundled(program: Program) -> Ends[Register]:
    """The registers of a program, outside of its loops and branches, that hold early or late values."""
    pieces = [_BundlePiece(one.operands, one.results, _is_heavy(one)) for one in program.instructions]
    roles = program.roles or (DATA,) * len(program.inputs)
    starts = {one for one, role in zip(program.inputs, roles, strict=True) if role in (PARAMETER, STATE)}
    updates = {i for i, into in program.updates.items() if roles[into] in (PARAMETER, STATE)}
    plain = [register for i, register in enumerate(program.outputs) if i not in updates]
    return _ends_of(pieces, starts, plain) if updates else Ends()


def is_heavy(node: Node) -> bool:
    """Whether an operator contracts tensors, or holds others, or has no rule that tells."""
    if node.regions or not (node.op.has_rule or node.given_rule is not None):
        return True
    return len(node.operands) > 1 and bool(node.rule.contracted)


def _is_heavy(one: Instruction) -> bool:
    if isinstance(one, Collective | Bundle):
        return False
    return not isinstance(one, Compute) or is_heavy(one.node)


def _ends_of(pieces: Sequence[_BundlePiece[Item]], starts: Iterable[Item], plain: Collection[Item]) -> Ends[Item]:
    """What is early or late, for pieces in an order of execution; `plain` leaves and updates nothing."""
    early, constant = set(starts), set[Item]()
    for one in pieces:
        if not one.heavy and all(item in early or item in constant for item in one.operands):
            (constant if early.isdisjoint(one.operands) else early).update(one.results)
    needed = set(plain)
    for one in reversed(pieces):
        if one.heavy or not needed.isdisjoint(one.results):
            needed.update(one.operands)
    every = {item for one in pieces for item in (*one.operands, *one.results)}
    return Ends(frozenset(early), frozenset(every - needed - early))
