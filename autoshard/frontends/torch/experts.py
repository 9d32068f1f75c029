"""Mixtures of experts of the package transformers as what they mean: tokens to experts, products by expert, and back.

transformers says what its experts are in one place, the interface by which a model picks a form of computing them: a
loop over experts, a sort of all tokens, a look-up of weights. While a module is captured here, the interface gives the
form whose tokens lie by expert (`autoshard.ops.experts`), so that experts can be split, and tokens sent to them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from autoshard import ops
from autoshard.core.enumerate import divisors
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.markers import marker
from autoshard.frontends.torch.patch import Patch
from autoshard.frontends.torch.table import Call, do, translates
from autoshard.util.errors import ShapeError

_TO_EXPERTS = "to_experts(Tensor x, Tensor chosen, int experts, int blocks, int room) -> Tensor"
_FROM_EXPERTS = "from_experts(Tensor rows, Tensor chosen, Tensor gates, int blocks, int room) -> Tensor"
UNIFORM = 1.0
"""The capacity factor at which each expert has room for its equal share."""
_NEAR = 1.01
"""A block size whose room comes so near to what is asked is as good as any larger one."""
_FACTOR: ContextVar[float] = ContextVar("capacity_factor", default=UNIFORM)


@contextmanager
def tokens_to_experts(factor: float | None) -> Iterator[None]:
    """Capture experts so in this thread; None: in the form that the model has."""
    if factor is None:
        yield
        return
    if not factor >= UNIFORM:
        raise ShapeError(
            f"capacity_factor is {factor!r}; it is 1.0 (equal shares) or more, inf for room for all tokens"
        )
    token = _FACTOR.set(float(factor))
    try:
        if (patch := _patch()) is None:
            yield
            return
        with patch.active():
            yield
    finally:
        _FACTOR.reset(token)


def factor_for(module: Any, asked: float | None) -> float | None:
    """The capacity factor of a module: as asked; for one without numbers, which is not run, that of equal shares."""
    if asked is not None or not hasattr(module, "parameters"):
        return asked
    devices = {one.device.type for one in module.parameters()}
    return UNIFORM if devices == {"meta"} else None


def cut_tokens(tokens: int, choices: int, experts: int, factor: float) -> tuple[int, int]:
    """Into how many blocks tokens are cut, and the rows that each expert has for a block.

    As many blocks as can be with room for `factor` times the equal share; with room for all each token is a block.

    >>> cut_tokens(4096, 8, 128, 1.0), cut_tokens(4096, 8, 128, 1.25), cut_tokens(12, 2, 4, float("inf"))
    ((256, 1), (64, 5), (12, 1))
    """
    share = factor * choices / experts
    if share >= 1:
        return tokens, 1
    sizes = [size for size in reversed(divisors(tokens)) if size * share >= 1 - 1e-9]
    rooms = {size: math.ceil(size * share - 1e-9) for size in sizes} or {tokens: 1}
    least = min(room / size for size, room in rooms.items())
    size = next(size for size, room in rooms.items() if room / size <= least * _NEAR)
    return tokens // size, rooms[size]


def _patch() -> Patch | None:
    """The interface replaced; None where nobody has imported it: then the module has none of these experts."""
    known = sys.modules.get("transformers.integrations.moe")
    owner = getattr(known, "ExpertsInterface", None)
    return None if owner is None else _patch_of(owner)


@lru_cache(maxsize=8)
def _patch_of(owner: type) -> Patch:
    return Patch(owner, "get_interface", _dispatcher)


def _dispatcher(own: Callable, inside: Callable[[], bool]) -> Callable:
    def get_interface(self: Any, implementation: Any, default: Callable) -> Callable:
        return _experts if inside() else own(self, implementation, default)

    return get_interface


def _experts(module: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """What transformers' experts compute, for tokens [t, d], chosen experts [t, k] and their gates [t, k]."""
    experts, tokens = module.num_experts, hidden_states.shape[0]
    blocks, room = cut_tokens(tokens, top_k_index.shape[1], experts, _FACTOR.get())
    rows = marker(_TO_EXPERTS, _to_experts)(hidden_states, top_k_index, experts, blocks, room)
    up = "gate_up_proj" if module.has_gate else "up_proj"
    wide = _product(module, rows, up)
    wide = module._apply_gate(wide) if module.has_gate else module.act_fn(wide)
    rows = _product(module, wide, "down_proj")
    if getattr(module, "has_post_expert_norm", False):
        rows = module.post_expert_norm(rows)
    made = marker(_FROM_EXPERTS, _from_experts)(rows, top_k_index, top_k_weights, blocks, room)
    return made.to(hidden_states.dtype)


def _product(module: Any, rows: Any, name: str) -> Any:
    """Rows by expert [e, c, d] times the experts' matrices, and their biases."""
    weight = getattr(module, name)
    made = rows @ (weight if module.is_transposed else weight.transpose(1, 2))
    return made + getattr(module, f"{name}_bias")[:, None] if module.has_bias else made


def _to_experts(x: Any, chosen: Any, experts: int, blocks: int, room: int) -> Any:
    return x.new_empty((experts, blocks * room, x.shape[1]))


def _from_experts(rows: Any, chosen: Any, gates: Any, blocks: int, room: int) -> Any:
    import torch

    return rows.new_empty((chosen.shape[0], rows.shape[2]), dtype=torch.promote_types(rows.dtype, gates.dtype))


@translates("autoshard.to_experts.default")
def _(call: Call, x: Any, chosen: Any, experts: int, blocks: int, room: int) -> Any:
    ones = ops.fill(shape=tuple(chosen.shape), value=1, dtype=dtype(x.dtype).name)
    return do(ops.dispatch_tokens, x, chosen, ones, experts=experts, blocks=blocks, room=room)


@translates("autoshard.from_experts.default")
def _(call: Call, rows: Any, chosen: Any, gates: Any, blocks: int, room: int) -> Any:
    return call.cast(do(ops.combine_tokens, rows, chosen, gates, blocks=blocks, room=room))
