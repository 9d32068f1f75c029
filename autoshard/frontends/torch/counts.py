"""torch.bincount with as many bins as it is asked for at least: how many more there are depends on the data.

A value that has no bin then is an index beyond the end, which is an error of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard import ops
from autoshard.frontends.torch.markers import marker
from autoshard.frontends.torch.table import Call, do, translates
from autoshard.util.errors import GraphError

_SCHEMA = "bincount(Tensor x, Tensor weights, int bins) -> Tensor"


def count_functions() -> dict[Any, Callable]:
    """What stands for counting."""
    import torch

    return dict.fromkeys((torch.bincount, torch.Tensor.bincount), _bincount)


def _bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    import torch

    if not minlength:
        raise GraphError(
            "the number of bins of torch.bincount depends on the data; give `minlength`, a number above all values"
        )
    if weights is None:
        weights = torch.ones_like(input, dtype=torch.int64)
    elif not weights.is_floating_point():
        weights = weights.double()
    return marker(_SCHEMA, _empty)(input, weights.detach(), minlength)


def _empty(input: Any, weights: Any, bins: int) -> Any:
    return weights.new_empty(bins)


@translates("autoshard.bincount.default")
def _(call: Call, x: Any, weights: Any, bins: int) -> Any:
    return do(ops.gather_grad, weights, x, size=bins, bound=bins)
