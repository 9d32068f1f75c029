"""What composites of torch return for tensors without numbers, worked out once for arguments of equal types.

While a module is captured, torch finds the type of each result by taking the operator apart, which for a `linear` costs
thirty times what looking it up does; and deep models do the same in each layer. A result is known by all that it can
depend on: shapes, strides, element types, other arguments, and what torch is set to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

COMPOSITES = ("linear", "matmul", "scaled_dot_product_attention", "layer_norm", "rms_norm", "conv2d", "einsum")
"""Operators that torch takes apart, whose result is always a new tensor."""

_OWN_WAY = object()


class _Odd(Exception):
    """An argument that results may depend on in a way that is not known here."""


@contextmanager
def known_results() -> Iterator[None]:
    """Look the results of composites up, in this thread."""
    import torch
    from torch._ops import OpOverload
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    called, thread, known = OpOverload.__call__, get_ident(), {}
    packets = (getattr(torch.ops.aten, name) for name in COMPOSITES)
    some = frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())
    some = frozenset(one for one in some if _makes_one_tensor(one))

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # While the tracer's mode is on, the call is the user's and has to be noted.
        if self not in some or get_ident() != thread or get_proxy_mode() is not None:
            return called(self, *args, **kwargs)
        return _result(lambda: called(self, *args, **kwargs), (self, args, kwargs), known)

    OpOverload.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        OpOverload.__call__ = called  # type: ignore[method-assign]


def _makes_one_tensor(overload: Any) -> bool:
    schema = overload._schema
    returns = [(str(one.type), one.alias_info) for one in schema.returns]
    return not schema.is_mutable and returns == [("Tensor", None)]


def _result(call: Any, of: tuple[Any, Sequence[Any], Mapping[str, Any]], known: dict[Any, Any]) -> Any:
    import torch

    try:
        key = (of[0], _settings(), _key(of[1]), _key(of[2]))
        model = known.get(key)
    except (_Odd, TypeError):
        return call()
    if model is None:
        found = call()
        known[key] = _model(found)
        return found
    return call() if model is _OWN_WAY else torch.ops.aten.clone.default(model)


def _settings() -> tuple[Any, ...]:
    import torch

    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise _Odd
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()


def _key(part: Any) -> Any:
    """Equal for arguments for which an operator returns tensors of one type; numbers with their kind."""
    import torch

    if isinstance(part, torch.Tensor):
        return _tensor_key(part)
    if isinstance(part, tuple | list):
        return tuple(map(_key, part))
    if isinstance(part, dict):
        return tuple((name, _key(one)) for name, one in part.items())
    if part is None or isinstance(part, bool | int | float | str | torch.dtype | torch.device):
        return type(part), part
    raise _Odd


def _tensor_key(tensor: Any) -> tuple[Any, ...]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise _Odd
    sizes = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    if not all(isinstance(one, int) for one in (*sizes[0], *sizes[1], sizes[2])):
        raise _Odd
    return (*sizes, tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_inference())


def _model(found: Any) -> Any:
    """A tensor whose clones are as the one found, or that none is; part of no graph of gradients itself."""
    import torch

    if found._is_view() or found.storage_offset():
        return _OWN_WAY
    model = found.detach().requires_grad_(found.requires_grad)
    clone = torch.ops.aten.clone.default(model)
    return model if clone.stride() == found.stride() and clone.is_leaf == found.is_leaf else _OWN_WAY
