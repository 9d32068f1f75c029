"""Logits and loss in pieces: the last product of a model, its loss and their gradients for some rows at a time.

Logits of a large vocabulary are the largest values of a step: 8,192 tokens by 128,256 words are 4 GiB in f32, and a
loss holds several of the kind. No row needs another one's, so that rows are done in turn: of a piece the logits, the
loss, and what these give to the gradients of the hidden state and of the weight, before the next piece begins.
It is the loop of micro batches, about these nodes alone (fused kernels do the same: Hsu et al. 2024, Liger Kernel).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from autoshard.ir.graph import DATA, PARAMETER, STATE, Builder, Graph, Node, Region, Value, ancestors
from autoshard.ir.verify import describe
from autoshard.layout.mesh import Mesh
from autoshard.transform.inline import inline
from autoshard.transform.micro.accumulate import Accumulated, Loop, told_in_order
from autoshard.transform.micro.classify import Forms, classify, with_single_barriers
from autoshard.transform.micro.cuts import AXIS, MicroRefusal, cut_at
from autoshard.transform.micro.forms import Form, MicroRows, factor_of, part_in
from autoshard.transform.recompute import AGAIN
from autoshard.transform.simplify import with_nodes
from autoshard.util.checks import positive
from autoshard.util.errors import GraphError

NAME = "loss_pieces"


def loss_in_pieces(graph: Graph, pieces: int) -> Accumulated:
    """The same training step with its logits and loss for `pieces` parts of the rows, one after the other in a loop.

    The numbers are those of the step as it was, but for the order in which gradients are added. Of a step in micro
    batches the loss of each is in pieces.

    Args:
        graph: a training step: its gradients are known (`Graph.cotangents`).

    Returns:
        The graph, and for nodes of the loop those that they stand for.

    Raises:
        GraphError: no product of the step leads to a loss and its gradient without another one; rows that so many
            pieces do not divide; a loss that needs all rows at once.

    >>> import numpy as np
    >>> from autoshard import nn, ops
    >>> from autoshard.transform import train_step
    >>> head = nn.Dense(6, 50)
    >>> x, y = np.ones((8, 6), np.float32), np.zeros((8,), np.int32)
    >>> entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    >>> def loss(x, y):
    ...     return entropy(head(x), y)
    >>> step = train_step(loss, nn.SGD(head.trainable_params(), 0.1), x, y, loss_pieces=4)
    >>> [str(value.type) for value in step.graph.node("loss_pieces").results]  # a count, losses, two gradients
    ['i32[]', 'f32[2, 4]', 'f32[50]', 'f32[50, 6]']
    """
    if positive(pieces) is None:
        raise GraphError(f"the loss of {graph.name!r} cannot be done in {pieces!r} pieces: give a number from 1 on")
    if pieces == 1:
        return Accumulated(graph, {})
    graph = with_single_barriers(inline(graph))
    scope = _scope(graph)
    loop = _looped(scope, pieces, Builder.after(graph, graph.name))
    nodes = _with_scope(graph.nodes, scope.graph.nodes, loop.graph.nodes)
    told = told_in_order({**graph.cotangents, **loop.graph.cotangents}, graph.inputs, nodes)
    return Accumulated(with_nodes(replace(graph, cotangents=told), nodes), loop.stands_for)


# -- where the head lies


@dataclass(frozen=True)
class _Scope:
    """The nodes among which the head lies (of the step, or of a micro batch), as a graph, and its product: that of the
    largest result which only products of gradients need next."""

    graph: Graph
    forward: set[Node]
    head: Node

    @property
    def logits(self) -> Value:
        return self.head.results[0]


def _scope(graph: Graph) -> _Scope:
    for one in sorted(_products(graph), key=lambda one: -one.logits.type.nbytes):
        behind = _next_products(one.graph, one.head)
        if behind and one.forward.isdisjoint(behind):
            return one
    raise GraphError(
        f"the loss of {graph.name!r} cannot be done in pieces: it has no product whose result gradients read before "
        "another product does; give a training step whose logits are a product"
    )


def _products(graph: Graph) -> Iterator[_Scope]:
    """The products of the forward pass."""
    for scope in _scopes(graph):
        forward = _forward(scope)
        yield from (_Scope(scope, forward, node) for node in scope.nodes if node in forward and node.is_product)


def _forward(graph: Graph) -> set[Node]:
    """The nodes that need no gradient, and are not made again for the backward pass."""
    found, known = set(), set(graph.cotangents)
    for node in graph.nodes:
        needs = not known.isdisjoint(node.uses) or not known.isdisjoint(node.results)
        if not needs and not node.name.endswith(AGAIN):
            found.add(node)
        else:
            known.update(node.results)
    return found


def _next_products(graph: Graph, head: Node) -> list[Node]:
    """The products that a product leads to without others between."""
    found, known = [], set(head.results)
    for node in graph.nodes:
        if not known.isdisjoint(node.uses):
            if node.is_product:
                found.append(node)
            else:
                known.update(node.results)
    return found


def _scopes(graph: Graph) -> Iterator[Graph]:
    """The step itself, and the bodies of its loops."""
    yield graph
    data = _from_data(graph)
    for region in (region for node in graph.nodes for region in node.regions):
        inputs = (*region.args, *region.captured)
        roles = tuple(DATA if value in data or value in region.args else PARAMETER for value in inputs)
        yield Graph(graph.name, inputs, region.nodes, region.outputs, roles, cotangents=graph.cotangents)


def _descendants(graph: Graph, nodes: set[Node]) -> set[Node]:
    """The nodes that need what some make, and these."""
    found, known = set(nodes), {value for node in nodes for value in node.results}
    for node in graph.nodes:
        if node not in found and not known.isdisjoint(node.uses):
            found.add(node)
            known.update(node.results)
    return found


# -- what is done for a piece


def _looped(scope: _Scope, pieces: int, builder: Builder) -> Accumulated:
    """The nodes of the scope with those in a loop that are done for each piece; along the longest dim of the logits
    that allows it, as a batch that lies split over devices has few rows for each."""
    graph, head, refusal = scope.graph, scope.head, None
    for dim, (value, rows) in _rows(scope, pieces):
        inside = _of_pieces(scope, dim)
        try:
            forms = _forms(_part(graph, inside), pieces, {value: rows})
        except GraphError as error:
            refusal = refusal or error
            continue
        loop = Loop(forms, builder, NAME).written()
        nodes = tuple(_in_place(graph, inside, loop.graph.nodes))
        return replace(loop, graph=replace(graph, nodes=nodes, cotangents=loop.graph.cotangents))
    why = f"a loss that needs all rows at once: {refusal}" if refusal else _fitting(scope, pieces)
    raise GraphError(
        f"the loss of {graph.name!r} cannot be done in {pieces} pieces: {describe(head)}, which makes "
        f"{scope.logits.type}, has {why}"
    ) from refusal


def _forms(part: Graph, pieces: int, rows: dict[Value, MicroRows]) -> Forms:
    """How the nodes are done for each piece, and that only its rows are made of what nothing else needs whole."""
    while True:
        forms = classify(part, pieces, rows=rows)
        more = _wanted_rows(part, forms, Mesh(((AXIS, pieces),)))
        if more.keys() <= rows.keys():
            return forms
        rows = {**more, **rows}


def _wanted_rows(part: Graph, forms: Forms, mesh: Mesh) -> dict[Value, MicroRows]:
    """Of which inputs a piece takes rows, and which: for what has rows, and for what of the others is taken by rows."""
    wants: dict[Value, Form | None] = {}
    makers = {value: node for node in part.nodes for value in node.results}
    for node in reversed(part.nodes):
        wanted = next(((i, wants[value]) for i, value in enumerate(node.results) if value in wants), None)
        cut = forms.cuts.get(node)
        if cut is None and wanted is not None and isinstance(wanted[1], MicroRows):
            with suppress(MicroRefusal):
                cut = cut_at(node, wanted[0], wanted[1], mesh, makers)
        for value, form in zip(node.operands, cut.operands if cut else (), strict=False):
            if isinstance(form, MicroRows):
                wants.setdefault(value, form)
    return {value: form for value in part.inputs if isinstance(form := wants.get(value), MicroRows)}


def _fitting(scope: _Scope, pieces: int) -> str:
    """That no dim is divided, and by what one would be."""
    sizes = {scope.logits.type.shape[dim] for dim, _ in _rows(scope, 1)}
    counts = sorted({count for size in sizes for count in range(2, size + 1) if size % count == 0})
    shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
    return f"no dim of rows that {pieces} divides; {shown or 'nothing'} would"


def _rows(scope: _Scope, pieces: int) -> list[tuple[int, tuple[Value, MicroRows]]]:
    """The dims of the logits that are rows and may be dealt out, the longest first, and what of the product's operand
    that follows from data they are."""
    head, data = scope.head, _from_data(scope.graph)
    found = []
    for dim, factors in enumerate(head.rule.results[0]):
        for value, dims in zip(head.operands, head.rule.operands, strict=True):
            if value not in data or len(factors) != 1 or head.rule.factors[factors[0]].size % pieces:
                continue
            rows = part_in(head.rule, dims, factors[0], 1)
            if rows is not None:
                found.append((dim, (value, rows)))
                break
    return sorted(found, key=lambda one: -scope.logits.type.shape[one[0]])


def _from_data(graph: Graph) -> set[Value]:
    found = {value for value, role in zip(graph.inputs, graph.roles, strict=True) if role not in (PARAMETER, STATE)}
    for node in graph.nodes:
        if not found.isdisjoint(node.uses):
            found.update(node.results)
    return found


def _of_pieces(scope: _Scope, dim: int) -> set[Node]:
    """The product and all that reads logits, or what has each of their elements, as far as rows and columns go; what
    leads from one of these to another; and what is as large, is no weight, and is for these alone."""
    graph, rank = scope.graph, scope.logits.type.rank
    columns = [one for one in range(rank) if one != dim and _is_columns(scope, one)]
    spread = {scope.logits: tuple(MicroRows(one) for one in (dim, *columns))}
    core = {scope.head}
    for node in graph.nodes:
        if any(value in spread for value in node.operands):
            core.add(node)
            spread.update(_passed_on(node, spread))
    core |= ancestors(graph, (value for node in core for value in node.uses)) & _descendants(graph, core)
    data, size = _from_data(graph), scope.logits.type.elements
    before = ancestors(graph, scope.head.uses)  # what the rows are taken of stays, however wide it is
    for node in (node for node in reversed(graph.nodes) if node not in before):
        users = {user for value in node.results for user, _ in graph.users[value]}
        constant = node.op.constant or not data.isdisjoint(node.results)
        if constant and users and users <= core and any(value.type.elements >= size for value in node.results):
            core.add(node)
    return core


def _is_columns(scope: _Scope, dim: int) -> bool:
    """Whether a dim of the logits is the weight's."""
    head, data = scope.head, _from_data(scope.graph)
    factors = set(head.rule.results[0][dim])
    pairs = zip(head.operands, head.rule.operands, strict=True)
    return not any(value in data and factors & {one for part in dims for one in part} for value, dims in pairs)


Spread = tuple[MicroRows, ...]


def _passed_on(node: Node, spread: Mapping[Value, Spread]) -> Iterator[tuple[Value, Spread]]:
    """The results of a node that have rows and columns of the logits still."""
    if node.regions or not node.op.has_rule:
        return
    rule = node.rule
    for value, dims in zip(node.operands, rule.operands, strict=True):
        factors = [factor_of(rule, dims, part, 1) for part in spread.get(value, ())]
        for result, its in zip(node.results, rule.results, strict=True):
            parts = [part_in(rule, its, *one) for one in factors if one is not None]
            if parts and len(parts) == len(spread[value]) and None not in parts:
                yield result, tuple(part for part in parts if part is not None)


def _part(graph: Graph, inside: set[Node]) -> Graph:
    """The nodes that are done for each piece, as a graph of their own."""
    nodes = tuple(node for node in graph.nodes if node in inside)
    made = {value for node in nodes for value in node.results}
    used = {value for node in graph.nodes if node not in inside for value in node.uses} | set(graph.outputs)
    inputs = tuple(dict.fromkeys(value for node in nodes for value in node.uses if value not in made))
    outputs = tuple(value for node in nodes for value in node.results if value in used)
    part = Graph(graph.name, inputs, nodes, outputs, (PARAMETER,) * len(inputs), cotangents=graph.cotangents)
    return with_nodes(part, nodes)


def _in_place(graph: Graph, inside: set[Node], loop: tuple[Node, ...]) -> Iterator[Node]:
    """The nodes of a graph with others for some: what needs these comes behind, all else in its order before."""
    behind = _descendants(graph, inside)
    yield from (node for node in graph.nodes if node not in behind)
    yield from loop
    yield from (node for node in graph.nodes if node in behind and node not in inside)


def _with_scope(nodes: tuple[Node, ...], before: tuple[Node, ...], after: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes, where some are others now: themselves, or those of a region of theirs."""
    if nodes == before:
        return after

    def changed(region: Region) -> Region:
        return region.with_nodes(after if region.nodes == before else region.nodes)

    return tuple(node.with_regions(changed) for node in nodes)
