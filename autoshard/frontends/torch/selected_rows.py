"""Programs with sizes that depend on the data, written with all rows; see `selected`."""

from __future__ import annotations

import copy
import operator
from typing import Any

from autoshard.frontends.torch import selected_places as _places  # registers its rules
from autoshard.frontends.torch.functional import for_checks_alone
from autoshard.frontends.torch.locations import source_line
from autoshard.frontends.torch.selected import ITEMS, NotSaid, Rows, RowsWriter, selected_dim, selected_dims
from autoshard.frontends.torch.selected_rules import rule_of
from autoshard.frontends.torch.table import CHECKS
from autoshard.util.errors import ShapeError, at

del _places


def has_selected(graph: Any) -> bool:
    """Whether sizes or numbers of a graph depend on the data, of what is not for checks alone."""
    checked = for_checks_alone(graph)
    return any(node not in checked and (selected_dims(node) or str(node.target) in ITEMS) for node in graph.nodes)


def with_all_rows(program: Any) -> Any:
    """The program with known sizes alone; itself if it has no others.

    Raises:
        ShapeError: something that all rows cannot say; the message names it and its line.
    """
    import torch

    if not has_selected(program.graph):
        return program
    signature = copy.deepcopy(program.graph_signature)
    graph = copy.deepcopy(program.graph_module.graph)
    module = torch.fx.GraphModule(program.graph_module, graph)
    for old, new in _written(graph).items():
        signature.replace_all_uses(old, new)
    graph.lint()
    module.recompile()
    return program._update(module, signature)


def _written(graph: Any) -> dict[str, str]:
    """Write a graph anew; what outputs that had names are called now."""
    writer, renamed = RowsWriter(graph), {}
    gone: list[Any] = []
    parts: dict[Any, list[Rows]] = {}
    checked = for_checks_alone(graph)
    for node in list(graph.nodes):
        if node.op == "output":
            _check_outputs(writer, node)
        if node.op != "call_function":
            continue
        if node in checked or str(node.target) in CHECKS or writer.is_count(node):
            gone.append(node)
            continue
        if not _concerned(writer, node):
            continue
        writer.node = node
        with graph.inserting_before(node):
            whole = parts.get(node.args[0]) if node.target is operator.getitem else None
            made = _standing_for(writer, node) if whole is None else whole[node.args[1]]
        gone.append(node)
        if isinstance(made, Rows):
            writer.found[node] = made
            continue
        if isinstance(made, list):
            parts[node] = made
            continue
        renamed[node.name] = made.name
        node.replace_all_uses_with(made)
    for node in reversed(gone):
        graph.erase_node(node)
    return renamed


def _concerned(writer: RowsWriter, node: Any) -> bool:
    if selected_dims(node):
        return True
    return any(one in writer.found or writer.is_count(one) for one in node.all_input_nodes)


def _standing_for(writer: RowsWriter, node: Any) -> Any:
    try:
        if node.target is operator.getitem and node.args[0] not in writer.found:
            return writer.again()  # of rows that are all known again
        if node.target is operator.getitem:
            made = writer.emit(operator.getitem, writer.found[node.args[0]].node, node.args[1])
            dim = selected_dim(node)
            return made if dim is None else Rows(made, writer.found[node.args[0]].selection, dim)
        one = rule_of(node)
        of_known = not any(each in writer.found or writer.is_count(each) for each in node.all_input_nodes)
        if of_known and one is not None and not _selects(node):
            return writer.again()  # of parts that are joined again
        if one is None:
            raise NotSaid("how it treats selected rows is not known here")
        return one(writer)
    except NotSaid as error:
        raise ShapeError(
            f"cannot import this program: {node.target}{at(source_line(node))}: {error}. A mask selects rows, and how "
            "many depends on the data; say it with all rows and torch.where"
        ) from None


def _selects(node: Any) -> bool:
    """Whether it makes selected rows of what has known sizes."""
    name = str(node.target).split(".")[1]
    indices = [one for one in node.args[1] if one is not None] if name == "index" else []
    return name in ("nonzero", "masked_select") or any(str(one.meta["val"].dtype) == "torch.bool" for one in indices)


def _check_outputs(writer: RowsWriter, node: Any) -> None:
    for one in node.all_input_nodes:
        if one in writer.found or writer.is_count(one):
            raise ShapeError(
                f"cannot import this program: it returns {one.name}{at(source_line(one))}, whose size depends on the "
                "data; return it with all rows, and the mask beside it"
            )
