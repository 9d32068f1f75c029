"""Kernels of an engine: what each operator computes on the tensors of torch or JAX, with numpy's types and shapes.

    kernels = kernels_of("torch")
    (y,) = kernels.run(softmax, [x], {"axis": -1}, (x_type.dtype,))

The meaning is the operator's own, retargeted (`retarget.py`); a few have another one (`overrides.py`), and some an
engine lacks: `kernels.lacking(op, attrs)` says why, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from autoshard.core.tensortype import TOKEN, DType
from autoshard.engines.namespace import Namespace
from autoshard.engines.numpy_library import Known
from autoshard.engines.overrides import helpers, override
from autoshard.engines.retarget import Retarget, unsaid
from autoshard.engines.scipy_names import modules, of_jax, of_torch
from autoshard.engines.tape import Tape, Tapes, told_apart
from autoshard.ops.body import Body
from autoshard.ops.registry import Operator
from autoshard.util.errors import UnknownNameError

COMPILED = "torch-compiled"
ENGINES = ("numpy", "torch", COMPILED, "xla")
"""What can run a program; numpy is the one of `autoshard.runtime`, COMPILED the one of torch with `torch.compile`."""

_LAPACK = "it calls LAPACK's routines by name"
_BESSEL = "JAX has no such function"
_LACKING: dict[str, dict[str, str]] = {
    "torch": {"CholeskyInfo": _LAPACK, "Lu": _LAPACK, "Geqrf": _LAPACK, "CustomCall": _LAPACK},
    "xla": {
        **dict.fromkeys(("CholeskyInfo", "Lu", "Geqrf", "CustomCall"), _LAPACK),
        **dict.fromkeys(
            ("Erfcx", "BesselJ0", "BesselJ1", "BesselY0", "BesselY1", "BesselK0", "BesselK0e", "BesselK1", "BesselK1e"),
            _BESSEL,
        ),
        "AiryAi": _BESSEL,
    },
}
"""Operators that an engine does not run, each with the reason; `tests/engines/test_operators.py` holds the list."""


class Kernels:
    """The operators on one library's tensors."""

    def __init__(self, engine: str, library: Any, functions: Mapping[str, Mapping[str, Callable]]) -> None:
        self.engine, self.library = engine, library
        self.space = Namespace(Known(library))
        self._retarget = Retarget(self.space, modules(self.space, functions), helpers(library.name))
        self._meanings: dict[str, Callable] = {}
        self._tapes = Tapes(self.space.library.noting, library.owns)

    def lacking(self, op: Operator, attrs: Mapping[str, Any]) -> str | None:
        """Why the engine does not run the operator; None if it does."""
        if op.takes_regions:
            return "it holds bodies"
        bodies = (unsaid(value) for value in attrs.values() if isinstance(value, Body))
        return _LACKING[self.engine].get(op.name) or next(filter(None, bodies), None)

    def meaning(self, op: Operator) -> Callable:
        """What the operator computes, as a function of Arrays."""
        if op.name not in self._meanings:
            self._meanings[op.name] = override(op.name, self.space) or self._retarget.value(op.run)
        return self._meanings[op.name]

    def run(
        self, op: Operator, raws: Sequence[Any], attrs: Mapping[str, Any], kinds: Sequence[DType]
    ) -> tuple[Any, ...]:
        """The operator on the library's tensors; results have exactly these element types.

        What calls torch was asked for operands, attributes and types like these is noted once, and played then.
        """

        def meaning() -> tuple[Any, ...]:
            given = {name: self._retarget.value(value) for name, value in attrs.items()}
            made = self.meaning(op)(*map(self.space.asarray, raws), **given)
            parts = made if isinstance(made, tuple) else (made,)
            return tuple(self._final(part, of) for part, of in zip(parts, kinds, strict=True))

        if self._tapes.is_noting:
            return meaning()
        key = self._key(op, raws, attrs, kinds)
        return meaning() if key is None else self._tapes.run(key, raws, meaning)

    def noted(self, run: Callable[[], tuple], operands: Sequence[Any], **options: Any) -> tuple[tuple, Tape]:
        """What a function makes of the operands by these kernels, and the tape of it, which has the options."""
        return self._tapes.noted(run, operands, **options)

    def _key(self, op: Operator, raws: Sequence[Any], attrs: Mapping[str, Any], kinds: Sequence[DType]) -> Any:
        """What a tape is for; None: the library has none, or what it is asked cannot be told from all else."""
        of = self.library.kinds(raws)
        if of is None:
            return None
        return op, of, tuple([one.name for one in kinds]), tuple(attrs), told_apart(tuple(attrs.values()))

    def _final(self, part: Any, of: DType) -> Any:
        kind = np.dtype(bool) if of is TOKEN else of.numpy
        known = self.space.library
        return known.cast(known.final(self.space.raw(part)), kind)


def kernels_of(engine: str, device: str = "cpu") -> Kernels:
    """The kernels of an engine by its name, torch or xla.

    Args:
        device: of torch, on which device constants are made, by torch's name; what XLA makes lies where it computes.

    Raises:
        UnknownNameError: there is no such engine, or it has none: numpy's operators are what they are.
    """
    return _kernels(engine, device)


@cache
def _kernels(engine: str, device: str) -> Kernels:
    if engine == "torch":
        from autoshard.engines import torch_library

        return Kernels(engine, torch_library.on(device), of_torch())
    if engine == "xla":
        from autoshard.engines import jax_library

        return Kernels(engine, jax_library, of_jax())
    raise UnknownNameError(f"unknown engine {engine!r}; kernels are there for torch, xla")
