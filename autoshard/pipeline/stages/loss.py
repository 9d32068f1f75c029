"""Logits and loss in pieces where a step lies in stages: a loop in the stage of the logits, for each micro batch.

The loop makes the loss and its gradients at once, so it goes forward. What it gives back to the stages before leaves
with the gradients of the stage's input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from autoshard.ir.graph import DATA, PARAMETER, STATE, Graph, Node, Value
from autoshard.ir.verify import describe
from autoshard.ops.registry import lookup
from autoshard.pipeline.stages.assign import Assigned
from autoshard.transform.micro.accumulate import Accumulated, StepParts, told_in_order
from autoshard.transform.micro.loss_pieces import loss_in_pieces
from autoshard.util.errors import StageError


def looped_body(step: StepParts) -> Accumulated:
    """A micro batch with its loss in as many pieces as the step says, as a graph.

    Raises:
        GraphError: as `transform.micro.loss_pieces`.
    """
    return loss_in_pieces(_body(step), step.loss_pieces)


def nodes_of_loss(step: StepParts) -> set[Node]:
    """The nodes of a micro batch that are done for each piece of the loss; none of a loss in one piece.

    Raises:
        GraphError: as `transform.micro.loss_pieces`.
    """
    return set() if step.loss_pieces == 1 else {*step.body.nodes} - {*looped_body(step).graph.nodes}


def with_loss_in_pieces(step: StepParts, assigned: Assigned) -> tuple[StepParts, Assigned]:
    """The step whose micro batches have their loss in pieces, and its stages.

    Raises:
        GraphError: as `transform.micro.loss_pieces`.
        StageError: logits and loss lie in several stages.
    """
    if step.loss_pieces == 1:
        return step, assigned
    loop, body = looped_body(step), step.body
    kept = {*loop.graph.nodes}
    inside = [node for node in body.nodes if node not in kept]
    stage = _stage(step, assigned, inside)
    of = {node: its for node, its in body.of.items() if node in kept}
    of |= {node: body.of[its] for node, its in loop.stands_for.items() if its in body.of}
    back = _gradients_of_rows(step, assigned, inside)
    nodes = tuple(_leaving_apart(loop.graph.nodes, back))
    stages = {node: assigned.of.get(node, stage) for node in nodes if node not in assigned.free}
    added = {*nodes} - {*body.nodes}
    forward = (assigned.forward & kept) | {node for node in added if back.isdisjoint(node.results)}
    assigned = replace(assigned, of=stages, forward=forward, free=assigned.free & kept)
    _check_order(step, assigned)
    step = _adding_up_wide(replace(step, body=replace(body, nodes=nodes, of=of)), added)
    kept = {*step.body.nodes}
    return step, replace(assigned, of={node: its for node, its in stages.items() if node in kept})


def _body(step: StepParts) -> Graph:
    """What is done for a micro batch, as a graph: its rows are data, and what follows from data alone."""
    body, data = (
        step.body,
        {
            value
            for value, role in zip(step.graph.inputs, step.graph.roles, strict=True)
            if role not in (PARAMETER, STATE)
        },
    )
    for node in step.before:
        if not data.isdisjoint(node.uses):
            data.update(node.results)
    rows = dict.fromkeys(body.slices)
    made = {value for node in body.nodes for value in node.results}
    used = (value for node in body.nodes for value in node.uses if value not in made)
    inputs = tuple(dict.fromkeys((*rows, *used)))
    roles = tuple(DATA if value in rows or value in data else PARAMETER for value in inputs)
    outputs = tuple(dict.fromkeys(one for one, _ in body.outputs.values()))
    return Graph(step.graph.name, inputs, body.nodes, outputs, roles, cotangents=_cotangents(step, inputs))


def _cotangents(step: StepParts, inputs: Collection[Value]) -> dict[Value, Value]:
    """Which gradients of a micro batch are gradients of which of its values, and of what all micro batches use."""
    stands_for = {
        value: one
        for node, original in step.body.of.items()
        for one, value in zip(node.results, original.results, strict=True)
    }
    stands_for |= {whole: one for one, (whole, _) in step.body.slices.items()}
    pairs = step.graph.cotangents.items()
    inside = {stands_for[grad]: stands_for.get(of, of) for grad, of in pairs if grad in stands_for}
    return told_in_order(inside, inputs, step.body.nodes)


def _stage(step: StepParts, assigned: Assigned, inside: Collection[Node]) -> int:
    """The stage of logits and loss."""
    found: dict[int, Node] = {}
    for node in inside:
        if node in assigned.forward:
            found.setdefault(assigned.of[node], node)
    if len(found) > 1:
        said = ", ".join(f"{describe(node)} in stage {stage}" for stage, node in sorted(found.items()))
        raise StageError(
            f"the loss of {step.graph.name!r} cannot be done in {step.loss_pieces} pieces: logits and loss are done "
            f"together, but {said}; give all of these to one stage"
        )
    return next(iter(found))


def _gradients_of_rows(step: StepParts, assigned: Assigned, inside: Collection[Node]) -> set[Value]:
    """What the backward pass makes of logits and loss that is no term of a sum: it is read by what goes back."""
    nodes = (node for node in inside if node in assigned.of and node not in assigned.forward)
    return {value for node in nodes for value in node.results if value not in step.body.terms}


def _leaving_apart(nodes: Iterable[Node], back: Collection[Value]) -> Iterator[Node]:
    """The nodes, where the loop does not itself make what goes back: that leaves behind it."""
    op = lookup("Identity")
    for node in nodes:
        made = {one: Value(one.type, f"{one.name}.made") for one in node.results if node.regions and one in back}
        yield replace(node, results=tuple(made.get(one, one) for one in node.results)) if made else node
        yield from (Node(op, (one,), op.check_attributes({}), (value,)) for value, one in made.items())


def _adding_up_wide(step: StepParts, added: Collection[Node]) -> StepParts:
    """The step in which terms that the loop has added up in wide numbers are so over the micro batches, too, and become
    narrow once: ranks then need not put each micro batch's together."""
    body = step.body
    outputs, terms, after = dict(body.outputs), dict(body.terms), list(step.after)
    read = {value for node in body.nodes for value in node.uses}
    gone = []
    for node in added:
        wholes = [value for value, (one, _) in outputs.items() if one in node.results]
        if node.op.name != "Cast" or len(wholes) != 1 or not read.isdisjoint(node.results):
            continue
        (wide,), (narrow,) = node.operands, wholes
        total = Value(wide.type, f"{narrow.name}.sum")
        form = terms[node.results[0]]
        terms[wide], outputs = form, {**{v: of for v, of in outputs.items() if v is not narrow}, total: (wide, form)}
        after.insert(0, replace(node, operands=(total,), results=(narrow,)))
        gone.append(node)
    kept = tuple(node for node in body.nodes if node not in gone)
    return replace(step, body=replace(body, nodes=kept, outputs=outputs, terms=terms), after=tuple(after))


def _check_order(step: StepParts, assigned: Assigned) -> None:
    """That nothing of the forward pass waits for gradients."""
    back = {value for node in assigned.of if node not in assigned.forward for value in node.results}
    for node in assigned.forward:
        if (wrong := next((value for value in node.uses if value in back), None)) is not None:
            raise StageError(
                f"the loss of {step.graph.name!r} cannot be done in {step.loss_pieces} pieces in stages: "
                f"{describe(node)} needs {wrong.name}, a gradient of what is not in pieces"
            )
