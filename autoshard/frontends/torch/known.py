"""Numbers that are known while a module is captured: what is made of constants, and of buffers that count or say sizes.

    mask = torch.ones(ids.shape)                 if mask.bool().all(): ...
    self.register_buffer("stride", torch.tensor(2))    steps = torch.ceil(length / self.stride).int()

torch.export knows no tensor's numbers, so that a module cannot ask for them. Beside each tensor that such numbers alone
go into, there is one here that holds them: what the module asks of it has an answer. Numbers that an argument, a
parameter or anything random goes into are not known. What is asked of a buffer is taken as it is for all runs: one that
the module changes is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

from autoshard.util.errors import ParseError

_MOST = 2**16
"""Elements of a tensor that is computed twice."""
_DEVICES = frozenset(("cpu", "cuda", "mps", "xpu"))
"""Where captured tensors may be; what is known of them is on the CPU, whose random numbers tell what is random."""
_MADE = frozenset(
    ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros")
)
"""Functions without tensors among their arguments that make known numbers."""
_OF_ONE_LIKE = {
    **dict.fromkeys(("full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_tensor", "new_zeros"), 0),
    **dict.fromkeys(("expand_as", "reshape_as", "to", "type_as", "view_as"), 1),
}
"""Functions of which one argument is asked for its shape and type alone; which one."""
_WITH_SIZES = {
    **dict.fromkeys(
        ("expand", "interpolate", "narrow", "new_full", "new_ones", "new_zeros", "pad", "repeat", "reshape", "view"), 1
    ),
    **dict.fromkeys(("arange", "eye", "full", "ones", "zeros"), 0),
}
"""Functions that take sizes, which may be tensors of one integer; from which argument on."""
_SIZED_BY_NUMBERS = frozenset(("argwhere", "nonzero", "unique", "unique_consecutive"))
"""Functions whose results are as large as the numbers of their arguments say."""


class _Unknown(Exception):
    """An argument whose numbers are not known."""


class _Random(Exception):
    """A result that is another one each time."""


class KnownNumbers:
    """What is known of the tensors of one capture.

    Args:
        module: what is captured; its buffers of integers are known.
    """

    def __init__(self, module: Any) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.buffers = [*_integer_buffers(module)]
        self.numbers: Any = WeakIdKeyDictionary()  # the known tensor by the captured one; None: it is not
        self.lost: dict[int, Any] = {}  # memory in which something is unknown, by address
        self.sources: dict[int, set[str]] = {}  # names of buffers that what lies in a memory is made of
        self.asked: set[str] = set()

    def call(self, func: Any, instead: Callable, args: Any, kwargs: Any) -> Any:
        """What a function that the module calls returns."""
        if func in _asking():
            answer = self.computed(func, args, kwargs)
            return instead(*args, **kwargs) if answer is None else answer[0]
        name = getattr(func, "__name__", "").partition(".")[0]
        if (first := _WITH_SIZES.get(name)) is not None:
            args = (*args[:first], *self.sized(args[first:]))
            kwargs = {key: self.sized(value) for key, value in kwargs.items()}
        if (name in _SIZED_BY_NUMBERS or name == "where" and len(args) == 1) and (
            answer := self.computed(func, args, kwargs)
        ):
            self.asked |= answer[1]
            return self.constant(*answer)
        instead, args, kwargs = self.by_places(name, instead, args, kwargs)
        changed = kwargs.get("out", args[0] if args and _changes(name) else None)
        found = instead(*args, **kwargs)
        if changed is not None:
            if self.computed(func, args, kwargs) is None:
                self.lose(changed)
        elif self.may_be_known(name, found, args, kwargs) and (known := self.computed(func, args, kwargs)):
            self.keep(found, known[0], known[1])
        return found

    def may_be_known(self, name: str, found: Any, args: Any, kwargs: Any) -> bool:
        one: Any = found[0] if isinstance(found, tuple | list) and found else found
        if not _is_captured(one) or one.device.type == "meta" or _count(one) > _MOST or "empty" in name:
            return False
        return name in _MADE or any(map(_has_tensor, (*args, *kwargs.values())))

    def keep(self, found: Any, known: Any, sources: set[str]) -> None:
        """Remember what one or several tensors hold."""
        if isinstance(found, tuple | list):
            if isinstance(known, tuple | list) and len(known) == len(found):
                for one, other in zip(found, known, strict=True):
                    self.keep(one, other, sources)
        elif _is_captured(found) and getattr(known, "shape", None) == found.shape and known.dtype == found.dtype:
            self.numbers[found] = known
            self.sources.setdefault(_memory(known), set()).update(sources)

    def lose(self, changed: Any) -> None:
        """Tensors take on what is not known; so does all that shares their memory."""
        if isinstance(changed, tuple | list):
            for one in changed:
                self.lose(one)
            return
        known = self.of(changed) if _is_captured(changed) else None
        if known is not None:
            self.lost[_memory(known)] = known  # kept, so that no other tensor comes to lie there

    def of(self, tensor: Any) -> Any:
        """The tensor that holds the numbers of a captured one; None: they are not known."""
        if tensor in self.numbers:
            known = self.numbers[tensor]
        else:
            known = self.numbers[tensor] = self.of_buffer(tensor)
        return None if known is None or _memory(known) in self.lost else known

    def of_buffer(self, tensor: Any) -> Any:
        if tensor.is_floating_point() or tensor.is_complex() or _count(tensor) > _MOST:
            return None
        for owner, name, path, numbers in self.buffers:
            if owner._buffers.get(name) is tensor:
                known = _really(lambda numbers=numbers: numbers.detach().to("cpu", copy=True))
                self.sources[_memory(known)] = {path}
                return known
        return None

    def computed(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, set[str]] | None:
        """What a function makes of known numbers, and the buffers that they are made of; None: not all are known."""
        like = _OF_ONE_LIKE.get(getattr(func, "__name__", ""))
        sources: set[str] = set()
        try:
            given = [self.really(one, sources, at == like) for at, one in enumerate(args)]
            named = {key: self.really(value, sources) for key, value in kwargs.items()}
            found = _really(lambda: func(*given, **named))
        except _Random:
            self.lose((*args, *kwargs.values()))  # which it may have changed
            return None
        except Exception:  # of any kind: then it is torch's to say so, or only nothing is known
            return None
        if func in _asking():
            self.asked |= sources
        return found, sources

    def really(self, value: Any, sources: set[str], alike: bool = False) -> Any:
        """An argument with known tensors in the place of captured ones; `alike`: its shape and type are enough.

        Raises:
            _Unknown: one is not known.
        """
        import torch

        if isinstance(value, tuple | list):
            return type(value)([self.really(one, sources) for one in value])
        if isinstance(value, slice):
            return slice(*(self.really(one, sources) for one in (value.start, value.stop, value.step)))
        if isinstance(value, torch.device) or isinstance(value, str) and value.partition(":")[0] in _DEVICES:
            return "cpu"
        if not isinstance(value, torch.Tensor):
            return value
        known = self.of(value) if _is_captured(value) else None
        if known is not None:
            sources |= self.sources.get(_memory(known), set())
            return known
        if alike:
            return _really(lambda: torch.empty(tuple(value.shape), dtype=value.dtype))
        raise _Unknown

    def constant(self, known: Any, sources: set[str]) -> Any:
        """Known numbers as a tensor of the capture, or several."""
        import torch

        if isinstance(known, tuple | list):
            return type(known)([self.constant(one, sources) for one in known])
        made = torch.tensor(known.tolist(), dtype=known.dtype).reshape(known.shape)
        self.keep(made, known, sources)
        return made

    def by_places(self, name: str, instead: Callable, args: Any, kwargs: Any) -> tuple[Callable, Any, Any]:
        """A call that takes elements by known masks, or repeats them, as one that takes them by their places."""
        import torch

        if name in ("__getitem__", "__setitem__"):
            return instead, (args[0], self.index(args[1]), *args[2:]), kwargs
        if name == "masked_select" and len(args) == 2 and not kwargs:
            taken, mask = self.call(torch.broadcast_tensors, torch.broadcast_tensors, args, {})
            known = self.computed(lambda mask: mask.expand(taken.shape), args[1:], {})
            if known is not None:
                self.keep(mask, *known)
            if (places := self.places(mask)) is not None:
                return torch.Tensor.__getitem__, (taken, places), kwargs
        if name == "repeat_interleave" and (call := self.repeated(*args, **kwargs)):
            return torch.index_select, call, {}
        return instead, args, kwargs

    def index(self, index: Any) -> Any:
        """An index with places for its known masks."""
        parts = index if isinstance(index, tuple) else (index,)
        places = [self.places(one) for one in parts]
        if all(one is None for one in places):
            return index
        return tuple(new for one, of in zip(parts, places, strict=True) for new in ((one,) if of is None else of))

    def repeated(
        self, x: Any, repeats: Any = None, dim: int | None = None, output_size: int | None = None
    ) -> tuple[Any, int, Any] | None:
        """Operands of an index_select for elements repeated known numbers of times; None: they are not known."""
        import torch

        if not _is_captured(repeats):
            return None
        x = x.flatten() if dim is None else x
        count = x.shape[dim or 0]
        known = self.computed(lambda times: torch.arange(count).repeat_interleave(times), (repeats,), {})
        if known is None:
            return None
        self.asked |= known[1]
        return x, dim or 0, self.constant(*known)

    def places(self, mask: Any) -> tuple[Any, ...] | None:
        """Where a known mask holds, by dim; None: it is none."""
        import torch

        if not _is_captured(mask) or mask.dtype != torch.bool or not mask.dim():
            return None
        known = self.computed(torch.Tensor.nonzero, (mask,), {"as_tuple": True})
        if known is None:
            return None
        self.asked |= known[1]
        return self.constant(*known)

    def sized(self, value: Any) -> Any:
        """Sizes that are known tensors, as numbers."""
        if isinstance(value, tuple | list):
            return type(value)([self.sized(one) for one in value])
        if not _is_captured(value) or value.dim() or value.is_floating_point():
            return value
        number = self.computed(_item(), (value,), {})
        return value if number is None else number[0]


def check_asked(program: Any, asked: Collection[str]) -> None:
    """Check that a program changes no buffer whose numbers it was captured for.

    Raises:
        ParseError: it does.
    """
    changed = sorted({*asked} & {*program.graph_signature.buffers_to_mutate.values()})
    if changed:
        raise ParseError(
            f"cannot import this program: the module asks for the value of its buffer {changed[0]!r}, which it "
            "changes, so that each run would do what the first one does; say it by torch.where or torch.cond"
        )


def _integer_buffers(module: Any) -> Iterator[tuple[Any, str, str, Any]]:
    """Modules, names in them, names in the whole, and numbers of buffers that may count or say sizes."""
    for path, owner in module.named_modules():
        for name, numbers in owner._buffers.items():
            if numbers is None or numbers.is_floating_point() or numbers.is_complex() or numbers.device.type == "meta":
                continue
            if numbers.numel() <= _MOST:
                yield owner, name, f"{path}.{name}" if path else name, numbers


def _really(make: Callable[[], Any]) -> Any:
    """What a function makes outside of the capture.

    Raises:
        _Random: it is random.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        before = torch.get_rng_state()
        made = make()
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
            raise _Random
    return made


def _memory(known: Any) -> int:
    return known.untyped_storage()._cdata


def _is_captured(value: Any) -> bool:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FakeTensor | FunctionalTensor) and not isinstance(value, torch.nn.Parameter)


def _count(value: Any) -> float:
    """How many elements a captured tensor has; infinitely many if nothing knows it."""
    return math.prod(value.shape) if all(isinstance(size, int) for size in value.shape) else math.inf


def _has_tensor(value: Any) -> bool:
    return any(map(_has_tensor, value)) if isinstance(value, tuple | list) else _is_captured(value)


def _changes(name: str) -> bool:
    """Whether a function changes its first argument."""
    if name.endswith("__"):
        return name in ("__set__", "__setitem__") or name.startswith("__i") and name not in _KEEPING
    return name.endswith("_")


_KEEPING = frozenset(("__index__", "__int__", "__invert__"))


@cache
def _asking() -> frozenset[Any]:
    """Functions that ask for numbers."""
    import torch

    own = torch.Tensor
    return frozenset(
        (
            own.__bool__, own.__contains__, own.__float__, own.__format__, own.__index__, own.__int__, own.allclose,
            own.equal, own.is_nonzero, own.item, own.tolist, torch.allclose, torch.equal, torch.is_nonzero,
        )
    )  # fmt: skip


def _item() -> Any:
    import torch

    return torch.Tensor.item
