"""torch.autograd.Function with its own backward: both passes go into the captured graph.

torch.export inlines the forward pass of a Function and forgets the backward one, so that a straight-through estimator
would learn nothing. While a module is captured here, `apply` runs both: the backward pass on stand-ins for the
gradients of the results (`cotangent`), and `with_gradient` ties them together. See `markers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard.frontends.torch.checkpoints import note_checkpoint
from autoshard.frontends.torch.markers import markers
from autoshard.frontends.torch.patch import WHILE_CAPTURING


@WHILE_CAPTURING.replaces("torch.autograd:Function", "apply")
def _dispatcher(own: Any, inside: Callable[[], bool]) -> Any:
    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        # Of torch's own machinery torch takes care.
        if not inside() or cls.__module__.startswith("torch._"):
            return own.__get__(None, cls)(*args, **kwargs)
        if not _wanted(args, kwargs):
            return _run(cls, _bound(cls, args, kwargs))
        if _is_checkpoint(cls):
            note_checkpoint(args[0])
            return args[0](*args[2:])
        return _applied(cls, _bound(cls, args, kwargs))

    return classmethod(apply)


def _is_checkpoint(cls: type) -> bool:
    """Whether it runs a function without gradients, to run it again for them: a matter of memory, not of numbers."""
    from torch.utils.checkpoint import CheckpointFunction

    return cls is CheckpointFunction


def _wanted(args: Sequence[Any], kwargs: Any) -> bool:
    """Whether a call has a gradient."""
    import torch

    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)


def _run(cls: Any, args: tuple[Any, ...]) -> Any:
    """What the forward pass alone returns.

    Not torch's own `apply`: it turns gradients off without a trace, and a `torch.no_grad()` in the forward pass would
    then seem to leave them off for good.
    """
    import torch

    with torch.no_grad():
        return _forward(cls, _context(args), args)


def _applied(cls: Any, args: tuple[Any, ...]) -> Any:
    import torch

    ctx = _context(args)
    with torch.no_grad():
        found = _forward(cls, ctx, args)
        single = not isinstance(found, tuple | list)
        outputs = [found] if single else list(found)
        if ctx.dirty_tensors:
            raise NotImplementedError(f"{cls.__qualname__} changes its arguments in place (ctx.mark_dirty)")
        fixed = {id(one) for one in ctx.non_differentiable or ()}
        trained = [i for i, one in enumerate(outputs) if _is_real(one) and id(one) not in fixed]
        inputs, cotangents, gradients, refusal = _backward(cls, ctx, args, outputs, trained)
    results = [outputs[i] for i in trained]
    # Gradients are on here, so that what comes out asks for one as what a Function returns does.
    tied = markers().with_gradient.default(results, inputs, cotangents, gradients, refusal)
    for i, one in zip(trained, tied, strict=True):
        outputs[i] = one if one.requires_grad else one.requires_grad_()
    return outputs[0] if single else tuple(outputs)


def _bound(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position."""
    import inspect

    from torch.autograd.function import _is_setup_context_defined

    split = _is_setup_context_defined(cls.setup_context)
    if not split and not kwargs:
        return args
    given = inspect.signature(cls.forward).bind(*(() if split else (None,)), *args, **kwargs)
    given.apply_defaults()
    return given.args if split else given.args[1:]


def _context(args: tuple[Any, ...]) -> Any:
    import torch
    from torch.autograd.function import FunctionCtx

    class Context(FunctionCtx):
        """What a Function's `ctx` is, with saved tensors at hand at once."""

        to_save: tuple = ()
        dirty_tensors: tuple = ()
        non_differentiable: tuple = ()
        needs_input_grad = tuple(isinstance(one, torch.Tensor) and one.requires_grad for one in args)

        @property
        def saved_tensors(self) -> tuple:
            return tuple(self.to_save)

    return Context()


def _forward(cls: Any, ctx: Any, args: tuple[Any, ...]) -> Any:
    from torch.autograd.function import _is_setup_context_defined

    if not _is_setup_context_defined(cls.setup_context):
        return cls.forward(ctx, *args)
    found = cls.forward(*args)
    cls.setup_context(ctx, args, found)
    return found


def _backward(
    cls: Any, ctx: Any, args: tuple[Any, ...], outputs: list[Any], trained: Sequence[int]
) -> tuple[list[Any], list[Any], list[Any], str]:
    """Inputs with their gradients, by cotangents of the trained outputs; or why there are none."""
    import torch

    mine = [i for i, needed in enumerate(ctx.needs_input_grad) if needed and _is_real(args[i])]
    cotangents = {i: markers().cotangent.default(outputs[i], i) for i in trained}
    given = [
        _conjugate(cotangents[i]) if i in cotangents else torch.zeros_like(one) if _is_tensor(one) else None
        for i, one in enumerate(outputs)
    ]
    try:
        found = cls.backward(ctx, *given)
    except Exception as error:  # of any kind: it is the user's code, or torch cannot capture it
        return [args[i] for i in mine], [], [], _why(cls, error)
    found = found if isinstance(found, tuple | list) else (found,)
    pairs = [(args[i], found[i]) for i in mine if i < len(found) and found[i] is not None]
    odd = [gradient for one, gradient in pairs if gradient.shape != one.shape]
    if odd:
        return [args[i] for i in mine], [], [], _why(cls, f"it returns a gradient of shape {tuple(odd[0].shape)}")
    gradients = [_conjugate(gradient) for _, gradient in pairs]
    return [one for one, _ in pairs], list(cotangents.values()), gradients, ""


def _conjugate(gradient: Any) -> Any:
    """From a gradient of torch to one here, and back: of complex numbers, each is the other's conjugate."""
    return gradient.conj().resolve_conj() if gradient.is_complex() else gradient


def _why(cls: Any, error: Any) -> str:
    text = str(error).strip().splitlines() or [type(error).__name__]
    return f"the backward of {cls.__qualname__} cannot be captured: {text[0][:200]}"


def _is_tensor(one: Any) -> bool:
    import torch

    return isinstance(one, torch.Tensor)


def _is_real(one: Any) -> bool:
    return _is_tensor(one) and (one.is_floating_point() or one.is_complex())
