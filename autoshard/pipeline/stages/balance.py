"""Stages of equal cost: cuts of the forward pass, in its order, that let the slowest stage be as fast as can be.

The cost of a stage is the seconds of its operators, forward and backward, whole on one of its devices, and of what its
cuts send there and back. Of cuts that are as good (within `SLACK`) those are taken over which least is sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.prices import Prices, prices_for
from autoshard.ir.graph import Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.stages.assign import by_name, forward_nodes, made_of_parameters
from autoshard.pipeline.stages.loss import nodes_of_loss
from autoshard.transform.micro.accumulate import StepParts
from autoshard.util.errors import StageError
from costmodel import Hardware

SLACK = 0.02
"""By how much, relatively, the slowest stage may be slower where less is sent then."""


@dataclass(frozen=True)
class Chain:
    """The forward pass of a micro batch as a chain that can be cut anywhere.

    Attributes:
        nodes: of the step's graph, in order, without those that every stage runs for itself.
        seconds: of each node and of the backward nodes that were made for it.
        sent: bytes that are alive between node i and node i + 1, for each i but the last.
        joined: the i for which no cut lies between both, as a state is read and written around it, or logits and loss
            are done in pieces.
    """

    nodes: tuple[Node, ...]
    seconds: tuple[float, ...]
    sent: tuple[int, ...]
    joined: frozenset[int] = frozenset()


def balanced_stages(
    step: StepParts, devices: Sequence[int], hardware: Hardware, kinds: Sequence[Hardware]
) -> dict[Node, int]:
    """The stage of each operator of the forward pass, for `assign_nodes`.

    Args:
        devices: how many devices each stage has: one with twice as many is given twice the work.
        hardware: whose links join the stages.
        kinds: the hardware of each stage: a faster one is given more.

    Raises:
        StageError: more stages than there are operators to be cut between.
    """
    chain, count = chain_of(step, hardware), len(devices)
    if not 1 <= count <= len(chain.nodes):
        raise StageError(
            f"{step.graph.name!r} cannot be cut into {count} stages: its forward pass has {len(chain.nodes)} operators "
            "that can be stages"
        )
    link = hardware.topology.levels[-1][1]
    talk = [2 * (link.latency + nbytes / link.bandwidth) for nbytes in chain.sent]
    talk = [np.inf if i in chain.joined else one for i, one in enumerate(talk)]
    known = {hardware: chain.seconds} | {kind: chain_of(step, kind).seconds for kind in {*kinds} - {hardware}}
    cuts = best_cuts([known[kind] for kind in kinds], talk, devices)
    return {node: bisect_right(cuts, i) for i, node in enumerate(chain.nodes)}


def best_cuts(seconds: Sequence[Sequence[float]], talk: Sequence[float], devices: Sequence[int]) -> tuple[int, ...]:
    """Where the stages begin (without the first): positions in the chain, by dynamic programming.

    Args:
        seconds: for each stage of each piece of the chain, on one device.
        devices: of each stage, in order, which share its pieces evenly.
        talk: seconds of a cut behind piece i, which both of its stages count.
    """
    done = [np.array([0.0, *accumulate(one)]) for one in seconds]
    edge = np.array([0.0, *talk, 0.0])
    worst = _least(done, edge, devices, np.zeros_like(edge), np.inf)[1]
    return _least(done, edge, devices, edge, worst * (1 + SLACK))[0]


def _least(
    done: Sequence[np.ndarray], edge: np.ndarray, devices: Sequence[int], price: np.ndarray, most: float
) -> tuple[tuple[int, ...], float]:
    """Cuts of the least sum of `price`, no stage slower than `most`; without a limit of the least slowest stage."""
    pieces = len(edge) - 1
    bottleneck = np.isinf(most)
    value = np.full(pieces + 1, np.inf)
    value[0] = 0.0
    chosen = []
    for share, own in zip(devices, done, strict=True):
        # stage_seconds[i, j]: a stage of the pieces i..j-1.
        stage_seconds = (own[None, :] - own[:, None]) / share + edge[None, :] + edge[:, None]
        stage_seconds[np.tril_indices(pieces + 1)] = np.inf
        stage_seconds[stage_seconds > most] = np.inf
        joined = (
            np.maximum(value[:, None], stage_seconds)
            if bottleneck
            else value[:, None] + np.where(np.isinf(stage_seconds), np.inf, price[None, :])
        )
        chosen.append(joined.argmin(axis=0))
        value = joined.min(axis=0)
    cuts, end = [], pieces
    for choice in reversed(chosen[1:]):
        end = int(choice[end])
        cuts.append(end)
    return tuple(reversed(cuts)), float(value[pieces])


def chain_of(step: StepParts, hardware: Hardware) -> Chain:
    """The forward pass as a chain."""
    forward, weights = forward_nodes(step.graph), made_of_parameters(step)
    prices, mesh = prices_for(hardware), Mesh.flat(1)
    nodes: list[Node] = []
    alive: list[tuple[Value, ...]] = []
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    seconds: list[float] = []
    place: dict[str, int] = {}
    for node in step.body.nodes:
        original = step.body.of.get(node)
        own = original in forward if original is not None else not any(v in made for v in node.uses)
        if own and original is not None and any(value in made or value in weights for value in node.uses):
            for value in node.uses:
                if value in made:
                    last[value] = len(nodes)
            made.update(dict.fromkeys(node.results, len(nodes)))
            place.setdefault(node.name, len(nodes))
            nodes.append(original)
            alive.append(node.results)
            seconds.append(_seconds(node, prices, mesh))
        elif original is None and (read := [made[value] for value in node.uses if value in made]):
            made.update(dict.fromkeys(node.results, max(read)))
        elif not own and original is not None:
            at = by_name(node, place)
            if at is not None:
                seconds[at] += _seconds(node, prices, mesh)
    places = {value: i for i, node in enumerate(nodes) for value in node.results}
    own = [made[value] for node in nodes_of_loss(step) for value in node.results if value in made]
    loss = frozenset(range(min(own, default=0), max(own, default=0)))
    return Chain(tuple(nodes), tuple(seconds), _sent(made, last, len(nodes)), _joined(step, places) | loss)


def _joined(step: StepParts, places: Mapping[Value, int]) -> frozenset[int]:
    """Behind which places of the chain no stage ends: between the first and the last one at which a state that micro
    batches hand on, or what follows from it alone, is read or written."""
    found: set[int] = set()
    for state, new in step.body.carried.items():
        around: set[int] = set()
        follows = {state}
        for node in step.graph.nodes:
            if follows.isdisjoint(node.uses):
                continue
            at = next((places[value] for value in node.results if value in places), None)
            if at is None:
                follows.update(node.results)
            else:
                around.add(at)
        around.update({places[new]} if new in places else ())
        found.update(range(min(around, default=0), max(around, default=0)))
    return frozenset(found)


def _sent(made: Mapping[Value, int], last: Mapping[Value, int], count: int) -> tuple[int, ...]:
    """Bytes of the values that are made up to each place and read behind it."""
    change = [0] * (count + 1)
    for value, end in last.items():
        change[made[value]] += value.type.nbytes
        change[end] -= value.type.nbytes
    return tuple(accumulate(change[: max(count - 1, 0)]))


def _seconds(node: Node, prices: Prices, mesh: Mesh) -> float:
    if node.regions or not node.op.has_rule:
        return 0.0
    return prices.local_work(node, Strategy(node.rule, mesh, ((),) * len(node.rule.factors)))
