"""Where gradients stop, said so that decompositions keep it.

torch.export writes `detach` for a tensor that is cut off, and a graph of its own for what runs under torch.no_grad();
decompositions drop both. Here the graph of a no_grad block is written out, cut off from all that goes into it, and what
is cut off is marked. A mark is a copy; where a tensor is changed in place after it was cut off, and both sides would
see that, there is no mark to say it and the program is refused.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Container, Iterator, Mapping
from typing import Any

from autoshard.frontends.torch.functional import SET_GRAD, nodes_at_any_depth
from autoshard.frontends.torch.locations import source_line
from autoshard.frontends.torch.markers import markers
from autoshard.util.errors import ShapeError, at

_DETACH, _DETACH_IN_PLACE = "aten.detach.default", "aten.detach_.default"


def with_stops(program: Any) -> Any:
    """The exported program with a mark wherever gradients of parameters stop; itself if they nowhere do.

    Raises:
        ShapeError: gradients stop at a tensor that is changed in place later on, or are on again inside of no_grad.
    """
    names = {str(node.target) for node in nodes_at_any_depth(program.graph_module)}
    if names.isdisjoint((SET_GRAD, _DETACH, _DETACH_IN_PLACE)):
        return program
    signature = copy.deepcopy(program.graph_signature)
    held = program.state_dict
    trained = {name for name, path in signature.inputs_to_parameters.items() if held[path].requires_grad}
    module, renamed = _stopped(program.graph_module, trained)
    for old, new in renamed.items():
        signature.replace_all_uses(old, new)
    return program._update(module, signature)


def _stopped(given: Any, inputs: Container[str]) -> tuple[Any, dict[str, str]]:
    """A graph module, and those inside it, with marks; what outputs that had names are called now.

    Args:
        inputs: names of the placeholders that may have a gradient.
    """
    import torch

    graph = copy.deepcopy(given.graph)
    module = torch.fx.GraphModule(given, graph)
    renamed = _written_out(module, graph)
    # Graphs inside, of torch.autocast, torch.cond, ...: nobody says which of their operands have a gradient.
    for name in {node.target for node in graph.nodes if node.op == "get_attr"}:
        inside = getattr(module, name, None)
        if isinstance(inside, torch.fx.GraphModule):
            setattr(module, name, _stopped(inside, {node.name for node in inside.graph.nodes})[0])
    renamed |= _Marking(graph, inputs).run()
    graph.lint()
    module.recompile()
    return module, renamed


def _written_out(module: Any, graph: Any) -> dict[str, str]:
    """Replace graphs of no_grad blocks by their nodes; what outputs that had names are called now."""
    renamed: dict[str, str] = {}
    while blocks := [node for node in graph.nodes if str(node.target) == SET_GRAD]:
        node = blocks[0]
        enabled, body, *operands = node.args
        found = _inlined(graph, node, getattr(module, body.target), operands, bool(enabled))
        for user in list(node.users):
            assert user.target is operator.getitem, f"{user} takes a block's results, which is not known"
            _replace(user, found[user.args[1]], renamed)
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)
    return renamed


def _replace(node: Any, by: Any, renamed: dict[str, str]) -> None:
    renamed[node.name] = by.name
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _inlined(graph: Any, before: Any, module: Any, operands: Any, enabled: bool) -> list[Any]:
    """The results of a block whose nodes are written before a node."""
    given, known = iter(operands), {}
    with graph.inserting_before(before):
        for node in module.graph.nodes:
            if node.op == "placeholder":
                operand = next(given)
                known[node] = operand if enabled else _cut(graph, operand, before)
            elif node.op == "output":
                return [known.get(one, one) for one in node.args[0]]
            elif str(node.target) == SET_GRAD and not enabled:
                where = next((at(source_line(one)) for one in nodes_at_any_depth(module) if source_line(one)), "")
                raise ShapeError(f"cannot import this program: gradients are on inside of torch.no_grad(){where}")
            elif node.op == "get_attr":
                known[node] = _brought(graph, node, module)
            else:
                known[node] = graph.node_copy(node, known.__getitem__)
    raise AssertionError("a graph without output")


def _brought(graph: Any, node: Any, module: Any) -> Any:
    """A graph or tensor inside of a block, held by the program itself."""
    owner, name = graph.owning_module, f"{node.target}_in_block"
    while hasattr(owner, name):
        name += "_"
    setattr(owner, name, getattr(module, node.target))
    return graph.get_attr(name)


def _cut(graph: Any, operand: Any, block: Any) -> Any:
    """An operand without a gradient; what is no float has none."""
    value = getattr(operand, "meta", {}).get("val")
    if value is None or not (value.is_floating_point() or value.is_complex()):
        return operand
    made = graph.call_function(_detach(), (operand,))
    made.meta.update(val=value, stack_trace=block.meta.get("stack_trace"))
    return made


def _detach() -> Any:
    import torch

    return torch.ops.aten.detach.default


class _Marking:
    """Puts marks into a graph without blocks."""

    def __init__(self, graph: Any, inputs: Container[str]) -> None:
        self.graph = graph
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.parent: dict[Any, Any] = {}
        self.changes: dict[Any, list[tuple[Any, Any]]] = {}
        for node in graph.nodes:
            for one in _aliased(node):
                self.join(node, one)
        for node in graph.nodes:
            for one in _changed(node):
                self.changes.setdefault(self.root(one), []).append((node, one))
        self.dependent = self.depending(inputs)
        self.renamed: dict[str, str] = {}

    def root(self, node: Any) -> Any:
        """Stands for all nodes whose memory may be that of a node."""
        while node in self.parent:
            node = self.parent[node]
        return node

    def join(self, one: Any, other: Any) -> None:
        one, other = self.root(one), self.root(other)
        if one is not other:
            self.parent[one] = other

    def depending(self, inputs: Container[str]) -> set[Any]:
        """The nodes that may have a gradient for one of the inputs; changes in place included."""
        found = {node for node in self.graph.nodes if node.op == "placeholder" and node.name in inputs}
        count = -1
        while count != len(found):
            count = len(found)
            memory = {self.root(node) for changes in self.changes.values() for node, _ in changes if node in found}
            for node in self.graph.nodes:
                cut = str(node.target) == _DETACH
                if self.root(node) in memory or not (cut or found.isdisjoint(node.all_input_nodes)):
                    found.add(node)
        return found

    def run(self) -> dict[str, str]:
        """Mark; what nodes that had names are called now."""
        for node in list(self.graph.nodes):
            name = str(node.target)
            if name in (_DETACH, _DETACH_IN_PLACE) and node.args[0] in self.dependent:
                self.check(node)
                self.mark(node, everywhere=name == _DETACH_IN_PLACE)
        return self.renamed

    def mark(self, node: Any, everywhere: bool) -> None:
        """Put a mark in the place of a detach; for one in place, in that of the tensor from here on, too."""
        (operand,) = node.args
        with self.graph.inserting_before(node):
            mark = self.graph.call_function(markers().stop_gradient.default, (operand,))
        mark.meta.update(node.meta)
        self.order[mark] = self.order[node]
        if everywhere:
            later = [user for user in operand.users if user is not mark and self.order[user] > self.order[node]]
            for user in later:
                user.replace_input_with(operand, mark)
        _replace(node, mark, self.renamed)

    def check(self, node: Any) -> None:
        """Raises ShapeError if the tensor that is cut off and what it is cut off from see each other's changes."""
        later = [(change, one) for change, one in self.changes.get(self.root(node), ()) if self.after(change, node)]
        # Of two sides that share memory, one goes on in the mark's: here the one of the fewer nodes.
        side = self.views(node) if str(node.target) == _DETACH else self.others(node)
        for change, one in later:
            if one in side or any(self.after(user, change) for view in side for user in view.users):
                raise ShapeError(
                    f"cannot import this program: gradients stop{at(source_line(node))} at a tensor that is changed in "
                    f"place afterwards{at(source_line(change))}; detach a clone of it, or change another one"
                )

    def others(self, node: Any) -> set[Any]:
        """What shared memory with the tensor before it was detached in place, but that itself."""
        memory = self.root(node)
        return {
            one for one in self.order if self.root(one) is memory and self.after(node, one) and one is not node.args[0]
        }

    def after(self, node: Any, other: Any) -> bool:
        return self.order[node] > self.order[other]

    def views(self, node: Any) -> set[Any]:
        """The node and all that was made of it without copying."""
        found = {node}
        for other in self.graph.nodes:
            if any(one in found for one in _aliased(other)):
                found.add(other)
        return found


def _aliased(node: Any) -> Iterator[Any]:
    """The nodes in whose memory the results of a node may lie."""
    if node.op != "call_function":
        return
    if node.target is operator.getitem:
        yield node.args[0]
        return
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    returned = {name for one in schema.returns if one.alias_info is not None for name in one.alias_info.before_set}
    for one, value in _arguments(node, schema):
        if one.alias_info is not None and not returned.isdisjoint(one.alias_info.before_set):
            yield from _nodes(value)


def _changed(node: Any) -> Iterator[Any]:
    """The nodes whose numbers a node changes."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or str(node.target) == _DETACH_IN_PLACE:
        return
    for one, value in _arguments(node, schema):
        if one.alias_info is not None and one.alias_info.is_write:
            yield from _nodes(value)


def _arguments(node: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    kwargs: Mapping[str, Any] = node.kwargs
    for i, one in enumerate(schema.arguments):
        if i < len(node.args):
            yield one, node.args[i]
        elif one.name in kwargs:
            yield one, kwargs[one.name]


def _nodes(value: Any) -> Iterator[Any]:
    for one in value if isinstance(value, tuple | list) else (value,):
        if hasattr(one, "users"):
            yield one
