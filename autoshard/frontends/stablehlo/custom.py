"""Translators of custom calls, composites and tokens.

Infeed, outfeed, send and recv have no translator: nothing in a graph could stand for the other side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import parse_sdy_rule
from autoshard.core.tensortype import TensorType
from autoshard.frontends.stablehlo.attributes import attribute, tensor_type, value_of
from autoshard.frontends.stablehlo.table import Translation, plain, translates
from autoshard.ops.hlo_custom import has_custom_call_rule

_RULE = "sdy.sharding_rule"
_MOVES = ("MoveToDevice", "MoveToHost")

plain({"stablehlo.create_token": "CreateToken", "stablehlo.after_all": "AfterAll"})


@translates("stablehlo.custom_call")
def _(op: Any) -> Translation:
    target = attribute(op, "call_target_name")
    config = _config(op)
    attrs = {
        "target": target,
        "types": _types(op),
        "config": tuple(sorted(config.items())),
        "effects": attribute(op, "has_side_effect", False),
    }
    rule = _carried_rule(op, int(config.get("num_batch_dims", 0)))
    if rule is None and not (has_custom_call_rule(target) and len(op.operands) and len(op.results)):
        return "UnruledCustomCall", attrs
    if target in _MOVES and len(op.operands) == 1:
        return "MoveCall", {**attrs, "rule": rule}
    return "CustomCall", {**attrs, "rule": rule, "fixed": _feeds_generator(op)}


@translates("stablehlo.composite")
def _(op: Any) -> Translation:
    return "Composite", {"name": attribute(op, "name"), "callee": attribute(op, "decomposition"), "types": _types(op)}


def _types(op: Any) -> tuple[TensorType, ...]:
    return tuple(tensor_type(str(result.type)) for result in op.results)


def _config(op: Any) -> dict[str, Any]:
    """What the call says to its target, from all places where JAX puts it."""
    found: dict[str, Any] = {}
    for name in ("mhlo.attributes", "mhlo.frontend_attributes", "mhlo.backend_config", "backend_config"):
        attr = op.attributes.get(name)
        if isinstance(attr, ir.DictAttr):
            found.update({entry.name: value_of(entry.attr) for entry in attr})
        elif attr is not None and value_of(attr):
            found["backend_config"] = value_of(attr)
    if "called_computations" in op.attributes:
        found["called_computations"] = " ".join(str(one) for one in op.attributes["called_computations"])
    return found


def _carried_rule(op: Any, batch_dims: int) -> Rule | None:
    """The rule that stands on the operation.

    It says where shardings go, not whether the target computes in parts: only along the dims that the call counts as
    its batch is that so.
    """
    if _RULE not in op.attributes:
        return None
    rule, _ = parse_sdy_rule(str(op.attributes[_RULE]))
    batch = {i for dims in (*rule.operands, *rule.results) for dim in dims[:batch_dims] for i in dim}
    factors = (factor if i in batch else replace(factor, whole=True) for i, factor in enumerate(rule.factors))
    return replace(rule, factors=tuple(factors))


def _feeds_generator(op: Any) -> bool:
    """Whether a random generator uses a result as its state."""
    users = (use.owner for result in op.results for use in result.uses)
    return any(user.operation.name == "stablehlo.rng_bit_generator" for user in users)
