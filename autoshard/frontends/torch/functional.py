"""Whether an exported graph can be read as it is: decomposing it again would double the time that importing takes.

torch.export's own graph still changes tensors in place where the model does. A change of a tensor that nothing else
shares memory with is the same as a new tensor that takes its name from there on; any other one is left to
decompositions, which make the whole graph functional.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from autoshard.frontends.torch.table import CHECKS, TABLE

SET_GRAD = "wrap_with_set_grad_enabled"
"""The higher order operator that export makes of `with torch.no_grad()`."""

COND, WHILE = "cond", "while_loop"
"""Those of torch.cond and of torch's while_loop."""

EFFECTS = "with_effects"
"""What decompositions make of an overload that may raise: (token, overload, *arguments) -> (token, *results)."""


def nodes_at_any_depth(module: Any) -> Iterator[Any]:
    """The nodes of a graph module and of those inside it."""
    yield from module.graph.nodes
    for child in module.children():
        if hasattr(child, "graph"):
            yield from nodes_at_any_depth(child)


def for_checks_alone(graph: Any) -> set[Any]:
    """The nodes of a graph whose results only checks look at, as those of `torch._check(mask.sum() == n)`."""
    found: set[Any] = set()
    for node in reversed(graph.nodes):
        pure = node.op == "call_function" and not changes_first(node)
        if pure and node.users and all(user in found or _is_check(user) for user in node.users):
            found.add(node)
    return found


def _is_check(node: Any) -> bool:
    """Whether a node computes nothing, but raises where something does not hold."""
    return str(node.args[1] if str(node.target) == EFFECTS else node.target) in CHECKS


def node_ready(node: Any) -> bool:
    """Whether a node has a translator and changes nothing that others see."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output", "get_attr")
    name = str(node.target)
    if node.target is operator.getitem or name in CHECKS or name in (COND, WHILE, EFFECTS):
        return True
    if changes_first(node):
        return functional_name(node) in TABLE and _alone(node.args[0], node)
    return name in TABLE and not _hidden_change(node, name)


def _hidden_change(node: Any, name: str) -> bool:
    """Batch norm moves its running statistics without its schema saying so."""
    return name == "aten.batch_norm.default" and bool(node.args[5]) and node.args[3] is not None


def changes_first(node: Any) -> bool:
    """Whether an overload changes its first argument, such as aten.add_.Tensor."""
    schema = getattr(node.target, "_schema", None)
    first = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
    return first is not None and first.is_write


def functional_name(node: Any) -> str:
    """The overload that gives the changed tensor as a new one: aten.add.Tensor of aten.add_.Tensor."""
    space, name, overload = str(node.target).split(".", 2)
    return f"{space}.{name.rstrip('_')}.{overload}"


def _alone(tensor: Any, change: Any) -> bool:
    """Whether nothing shares memory with a tensor but what is made of it after the change."""
    if tensor.op != "call_function" or _shares(tensor):
        return False
    before = set()
    for node in tensor.graph.nodes:
        if node is change:
            break
        before.add(node)
    return not any(user in before and _shares(user) for user in tensor.users)


def _shares(node: Any) -> bool:
    """Whether what a node returns may lie in the memory of an argument."""
    if node.target is operator.getitem:
        return _shares(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return True
    return any(one.alias_info is not None for one in schema.returns)
