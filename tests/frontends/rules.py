"""The rules that we and Shardy give to the operations of a module, side by side, in sdy's text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxlib.mlir.passmanager import PassManager

from autoshard.core.rule_sdy import show_sdy
from autoshard.frontends.stablehlo.attributes import tensor_type
from autoshard.frontends.stablehlo.reader import load_translators, parse_module
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.ops.registry import lookup

_RULE = "sdy.sharding_rule"


class Pair(NamedTuple):
    """One operation, our rule of it and Shardy's; None where there is none."""

    operation: str
    ours: str | None
    shardys: str | None


def one_op(op: str, operands: str, results: str) -> str:
    """A module of one operation in generic form, `"stablehlo.add"(%0, %1) {...}`; operand i is called %i.

    `operands` and `results` are types separated by commas: "tensor<4xf32>, tensor<f32>".
    """
    types = [one.strip() for one in operands.split(", ")] if operands else []
    arguments = ", ".join(f"%{i}: {one}" for i, one in enumerate(types))
    many = f":{results.count(', ') + 1}" if ", " in results else ""
    return f"func.func @main({arguments}) {{\n  %r{many} = {op} : ({operands}) -> ({results})\n  return\n}}\n"


def rules_of(text: str, conservative: bool = False) -> list[Pair]:
    """Both rules of each operation of the functions in the module text, those inside regions left out."""
    load_translators()
    module = parse_module(text)
    with module.context:
        ours = [(op.name, our_rule(op, conservative)) for op in _operations(module)]
        option = "{conservative-propagation=true}" if conservative else ""
        PassManager.parse(f"builtin.module(func.func(sdy-populate-op-sharding-rules{option}))").run(module.operation)
        shardys = [_attached(op) for op in _operations(module)]
    return [Pair(name, mine, theirs) for (name, mine), theirs in zip(ours, shardys, strict=True)]


def assert_equal_rules(text: str, conservative: bool = False) -> int:
    """Every operation has the same rule here and there, or none; returns how many have one."""
    pairs = rules_of(text, conservative)
    for pair in pairs:
        assert pair.ours == pair.shardys, f"{pair.operation}: {pair.ours} is not Shardy's {pair.shardys} in\n{text}"
    return sum(pair.ours is not None for pair in pairs)


def our_rule(op: Any, conservative: bool = False) -> str | None:
    """Our rule of an MLIR operation, None without translator or rule, or where Shardy is known to have none."""
    if op.name not in TABLE:
        return None
    name, attrs = TABLE[op.name](op)
    operator = lookup(name)
    if not operator.has_rule or operator.foreign or not op.operands:
        return None
    types = tuple(tensor_type(str(operand.type)) for operand in op.operands)
    make = operator.conservative_rule if conservative else operator.rule
    return show_sdy(make(types, operator.check_attributes(attrs)))


def _operations(module: Any) -> Iterator[Any]:
    for function in module.body.operations:
        for block in function.regions[0].blocks:
            *operations, _ = block.operations
            yield from (op.operation for op in operations)


def _attached(op: Any) -> str | None:
    if _RULE not in op.attributes:
        return None
    text = str(op.attributes[_RULE])
    return text.removeprefix("#sdy.op_sharding_rule<").removesuffix(">")
