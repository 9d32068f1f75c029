"""Values that are made again for the backward pass are so within their stage: what came from another one is kept.

A chain of operators that are made again would else go back into the stages before, and all gradients with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoshard.ir.graph import Node, Value
from autoshard.pipeline.stages.assign import Assigned, assign_nodes, by_name
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.recompute import AGAIN
from autoshard.transform.simplify import reading


def with_inputs_kept(step: StepParts, assigned: Assigned, cut: Mapping[Node, int]) -> tuple[StepParts, Assigned]:
    """The step in which stages read what they were sent, instead of making it again, and its stages.

    Args:
        cut: the stage of each operator of the forward pass, a node of `step.graph`.
    """
    twins = _twins(step, assigned)
    if not twins:
        return step, assigned
    stage_named = {node.name: stage for node, stage in assigned.of.items() if node in assigned.forward}
    made_in = {value: assigned.of[node] for node in assigned.forward for value in node.results}
    originals, nodes = dict(step.body.of), []
    for node in step.body.nodes:
        own = 0 if node in assigned.forward else by_name(node, stage_named) or 0
        kept = {value: twins[value] for value in node.uses if value in twins}
        kept = {value: one for value, one in kept.items() if made_in.get(one, own) < own}
        nodes.append(reading(node, kept) if kept else node)
        if kept and node in originals:
            originals[nodes[-1]] = originals.pop(node)
    if all(new is old for new, old in zip(nodes, step.body.nodes, strict=True)):
        return step, assigned
    body = replace(step.body, nodes=tuple(nodes), of=originals).giving(step.body.outputs)
    step = replace(step, body=body)
    return step, assign_nodes(step, cut, assigned.count, assigned.parameters)


def _twins(step: StepParts, assigned: Assigned) -> dict[Value, Value]:
    """Values that are made again to those that the forward pass makes, by the same operators from the same values."""
    named: dict[str, list[Node]] = {}
    nodes = (*step.before, *step.body.nodes)  # constants are made before the micro batches, once more too
    again = [node for node in nodes if node.name.endswith(AGAIN) and node not in assigned.forward]
    for node in (*step.before, *assigned.forward, *assigned.free) if again else ():
        named.setdefault(node.name, []).append(node)
    found: dict[Value, Value] = {}
    for node in again:
        operands = [found.get(value, value) for value in node.operands]
        for one in named.get(node.name.removesuffix(AGAIN), ()):
            if one.op is node.op and one.attrs == node.attrs and operands == list(one.operands) and not one.regions:
                found.update(zip(node.results, one.results, strict=True))
    return found
