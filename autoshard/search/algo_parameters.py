"""What `set_algo_parameters` of MindSpore says of a search: which strategies of operators are candidates at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from autoshard.core.strategy import Strategy
from autoshard.ir.graph import Node
from autoshard.util.checks import positive
from autoshard.util.errors import PlanError

PRODUCTS = ("MatMul", "BatchMatMul")
MOST_ALIGNED = 1024
"""The largest `tensor_slice_align_size`, as MindSpore has it."""


@dataclass(frozen=True)
class SearchParameters:
    """Parameters of a search, by MindSpore's names and with its defaults.

    Attributes:
        fully_use_devices: only strategies that split an operator over all devices, or not at all.
        elementwise_op_strategy_follow: elementwise operators that use each other's results are split alike.
        enable_algo_approxi: of an operator's strategies at most 1 / `algo_approxi_epsilon` are looked at, evenly spread
            over all in order of what they take.
        tensor_slice_align_enable: products are split only into blocks whose last two sizes are multiples of
            `tensor_slice_align_size`.
    """

    fully_use_devices: bool = False
    elementwise_op_strategy_follow: bool = False
    enable_algo_approxi: bool = False
    algo_approxi_epsilon: float = 0.1
    tensor_slice_align_enable: bool = False
    tensor_slice_align_size: int = 16

    @staticmethod
    def of(options: Mapping[str, Any]) -> SearchParameters:
        """The parameters among a problem's options.

        Raises:
            PlanError: a value that a parameter cannot have.
        """
        given = {name: options[name] for name in NAMES if name in options}
        for name, value in given.items():
            if not _VALID[name](value):
                raise PlanError(f"{name} is {value!r}; it is {_MEANT[name]}")
        return SearchParameters(**given)

    @property
    def most(self) -> int | None:
        """How many strategies of an operator are looked at; None: all."""
        return math.ceil(1 / self.algo_approxi_epsilon) if self.enable_algo_approxi else None

    def admits(self, node: Node, strategy: Strategy) -> bool:
        """Whether a strategy is a candidate; that which splits nothing always is."""
        if strategy.work_split == 1:
            return True
        if self.fully_use_devices and strategy.work_split != strategy.mesh.devices:
            return False
        return not self.tensor_slice_align_enable or self.is_aligned(node, strategy)

    def is_aligned(self, node: Node, strategy: Strategy) -> bool:
        """Whether blocks of a product's operands and results have sizes that are multiples where they are split."""
        if node.op.name not in PRODUCTS:
            return True
        layouts = (*strategy.operand_layouts, *strategy.result_layouts)
        types = (*node.operand_types, *node.result_types)
        return all(
            parts == 1 or size % (parts * self.tensor_slice_align_size) == 0
            for layout, of in zip(layouts, types, strict=True)
            for parts, size in list(zip(layout.parts, of.shape, strict=True))[-2:]
        )


NAMES = tuple(one.name for one in fields(SearchParameters))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _is_size(value: Any) -> bool:
    return positive(value) is not None and value <= MOST_ALIGNED


_VALID = {
    **{name: (lambda value: isinstance(value, bool)) for name in NAMES},
    "algo_approxi_epsilon": _is_share,
    "tensor_slice_align_size": _is_size,
}
_MEANT = {
    **dict.fromkeys(NAMES, "True or False"),
    "algo_approxi_epsilon": "a number above 0, at most 1",
    "tensor_slice_align_size": f"a whole number from 1 to {MOST_ALIGNED}",
}


def is_elementwise(node: Node) -> bool:
    """Whether every element of the results is computed of the elements at its place, as far as operands have it."""
    rule = node.rule
    if not node.operands or not rule.results or not all(factor.splittable for factor in rule.factors):
        return False
    whole, shape = rule.results[0], node.result_types[0].shape
    missing = set(range(len(rule.factors))) - {i for dim in whole for i in dim}
    if missing or any(dims != whole for dims in rule.results):
        return False
    return any(of.shape == shape for of in node.operand_types) and all(
        dims == whole[len(whole) - len(dims) :] or 1 in of.shape
        for dims, of in zip(rule.operands, node.operand_types, strict=True)
    )
