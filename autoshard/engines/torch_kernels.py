"""`k` of a text on one rank of torch: operators one by one, or stretches of them as `torch.compile` makes them.

What a stretch asks of torch is noted on a tape when it first runs; the tape is what is compiled, so that nothing of
numpy's meanings is traced. A stretch that no tape can say (it looks at numbers of a tensor) runs as without.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from autoshard.core.tensortype import DType, dtype
from autoshard.engines.kernels import Kernels, kernels_of
from autoshard.engines.per_rank import on_rank
from autoshard.engines.tape import Tape, same_objects
from autoshard.engines.torch_collectives import TorchControl
from autoshard.ops.registry import lookup

MOST_BYTES = 1 << 26
"""Bytes of constants of one compiled stretch at most."""


_PLAIN = (bool, int, float, str, type(None))
"""Values of attributes that are the same on all ranks."""


@cache
def _kinds(of: str | tuple[str, ...]) -> tuple[DType, ...]:
    return tuple(map(dtype, (of,) if isinstance(of, str) else of))


class TorchKernels(TorchControl):
    """`k` of a text on one rank."""

    def __init__(self, rank: int, kernels: Kernels) -> None:
        self._rank, self._kernels = rank, kernels
        self.library: Any = kernels.library
        """What makes tensors of the rank's device."""

    def __getattr__(self, name: str) -> Callable:
        op, rank, run = lookup(name), self._rank, self._kernels.run

        def call(*operands: Any, of: str | tuple[str, ...], **attrs: Any) -> Any:
            own = {n: v if type(v) in _PLAIN else on_rank(v, rank) for n, v in attrs.items()}
            made = run(op, operands, own, _kinds(of))
            return made[0] if type(of) is str else made

        setattr(self, name, call)  # once: a step has hundreds of them
        return call


class CompiledKernels(TorchKernels):
    """`k` of a text with stretches on one rank."""

    def __init__(self, rank: int, kernels: Kernels) -> None:
        super().__init__(rank, kernels)
        self._of: dict[Any, Callable] = {}
        self._compiled: dict[Any, tuple[Callable, Callable]] = {}
        """By what tapes say, what is compiled and what is played: layers that are alike are compiled once."""

    def stretch(self, name: str, run: Callable, *operands: Any) -> tuple:
        """What a function of the text makes of the operands, which is compiled when it is first run."""
        key = (name, same_objects(operands), *map(_lies, operands))
        found = self._of.get(key)
        if found is not None:
            return found(run, *operands)
        try:
            made, tape = self._kernels.noted(lambda: run(*operands), operands, largest=MOST_BYTES, is_blind=True)
        except NotImplementedError:  # it cannot do without numbers
            self._of[key] = _plain
            return run(*operands)
        self._of[key] = self._made(tape, made, operands)
        return made

    def _made(self, tape: Tape, made: tuple, operands: tuple) -> Callable:
        played = tape.played(made)
        if played is None:
            return _plain
        key = (tape.says, *map(_lies, operands))
        if key not in self._compiled:
            from torch.fx.experimental.proxy_tensor import make_fx

            graph = make_fx(played, tracing_mode="fake", _allow_non_fake_inputs=True)(*operands)
            # What guards would ask again in each step is what the key says. They are what tells functions with the same
            # code apart, too: `graph.forward` has code of its own, calls of modules go through code that all share.
            made_fast = torch.compile(
                graph.forward, dynamic=False, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
            )
            self._compiled[key] = made_fast, played
        compiled, _ = self._compiled[key]
        return lambda _, *operands: compiled(*operands)


def _plain(run: Callable, *operands: Any) -> tuple:
    return run(*operands)


def _lies(raw: torch.Tensor) -> Any:
    """All that compiled code depends on of a tensor that it takes."""
    return raw.shape, raw.stride(), raw.dtype


def kernels_on(rank: int, device: str, compiled: bool) -> TorchKernels:
    """`k` of a text on a rank that computes on a device; of a text with stretches these are compiled."""
    return (CompiledKernels if compiled else TorchKernels)(rank, kernels_of("torch", device))


__all__ = ["CompiledKernels", "TorchKernels", "kernels_on"]
