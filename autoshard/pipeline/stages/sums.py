"""Sums over stages are made once after the micro batches: a tied weight's gradient has a term of each of its stages.

The terms are added up over the micro batches where they are made; so a step, not a micro batch, sends them on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoshard.ir.graph import Node, Value
from autoshard.pipeline.stages.assign import Assigned
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.micro.forms import Form, MicroPartial


def with_late_sums(step: StepParts, assigned: Assigned) -> tuple[StepParts, Assigned]:
    """The step in which operators on terms of several stages run after the micro batches, and its stages."""
    while (found := _next(step, assigned)) is not None:
        step = _moved(step, found)
        rest = {node: stage for node, stage in assigned.of.items() if node is not found}
        assigned = replace(assigned, of=rest, forward=assigned.forward - {found})
    return step, assigned


def _next(step: StepParts, assigned: Assigned) -> Node | None:
    """An operator of a micro batch that only makes an output, of terms that several stages make, or one other makes."""
    body = step.body
    wanted = Counter(one for one, _ in body.outputs.values())
    read = {value for node in body.nodes for value in node.uses}
    stage_of = {value: stage for node, stage in assigned.of.items() for value in node.results}
    for node in reversed(body.nodes):
        terms = [value for value in node.operands if value in body.terms]
        ends = bool(node.results) and all(wanted[value] == 1 and value not in read for value in node.results)
        if not terms or not ends or node not in body.of or not _is_all(node, body.terms, stage_of):
            continue
        if {stage_of[value] for value in terms} != {assigned.of[node]} and _known(step, node, terms):
            return node
    return None


def _is_all(node: Node, terms: dict[Value, MicroPartial], stage_of: dict[Value, int]) -> bool:
    """Whether all that it reads are terms, or there before the first micro batch."""
    return all(value in terms or value not in stage_of for value in node.uses) and all(
        value in terms for value in node.results
    )


def _known(step: StepParts, node: Node, terms: list[Value]) -> bool:
    """Whether a term can be accumulated instead: whatever it stands for is carried in one form only."""
    pairs = zip(node.operands, step.body.of[node].operands, strict=True)
    outputs = step.body.outputs
    return all(outputs.get(whole, (one, None))[0] is one for one, whole in pairs if one in terms)


def _moved(step: StepParts, node: Node) -> StepParts:
    body, original = step.body, step.body.of[node]
    outputs: dict[Value, tuple[Value, Form]] = {
        value: of for value, of in body.outputs.items() if value not in original.results
    }
    for one, whole in zip(node.operands, original.operands, strict=True):
        if one in body.terms:
            outputs[whole] = one, body.terms[one]
    nodes = tuple(one for one in body.nodes if one is not node)
    of = {one: its for one, its in body.of.items() if one is not node}
    after = (original, *step.after)
    return replace(step, body=replace(body, nodes=nodes, outputs=outputs, of=of), after=after)
