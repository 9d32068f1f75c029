"""What operators import of scipy, by engine: stand-ins for `scipy.special` and `scipy.linalg` on Arrays.

Names that an engine lacks say so when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from autoshard.engines.namespace import Namespace


class ScipyModule:
    """A module of scipy's whose functions are another library's."""

    def __init__(self, space: Namespace, name: str, functions: Mapping[str, Callable]) -> None:
        self._space, self.__name__, self._functions = space, name, functions

    def __getattr__(self, name: str) -> Callable:
        if name not in self._functions:
            raise NotImplementedError(f"{self._space.library.name} has no {self.__name__}.{name}")
        return self._on_floats(self._functions[name])

    def _on_floats(self, of: Callable) -> Callable:
        def call(*operands: Any) -> Any:
            arrays = [self._space.asarray(one) for one in operands]
            common = np.result_type(np.float32, *(one.dtype for one in arrays))
            raws = [self._space.library.final(self._space.raw(one, common)) for one in arrays]
            return self._space.wrapped(self._space.library.do(of, *raws))

        return call


def modules(space: Namespace, functions: Mapping[str, Mapping[str, Callable]]) -> dict[str, Any]:
    """The modules by name; `scipy` itself has them as parts."""
    made: dict[str, Any] = {name: ScipyModule(space, name, of) for name, of in functions.items()}
    made["scipy"] = SimpleNamespace(**{name.removeprefix("scipy."): one for name, one in made.items()})
    return made


def of_torch() -> dict[str, dict[str, Callable]]:
    """Torch's functions by scipy's names."""
    import torch
    from torch import special

    known = {
        "erf": special.erf, "erfc": special.erfc, "expit": special.expit, "erfinv": special.erfinv,
        "i0": special.i0, "i0e": special.i0e, "i1": special.i1, "i1e": special.i1e, "j0": special.bessel_j0,
        "j1": special.bessel_j1, "y0": special.bessel_y0, "y1": special.bessel_y1, "k0": special.modified_bessel_k0,
        "k0e": special.scaled_modified_bessel_k0, "k1": special.modified_bessel_k1,
        "k1e": special.scaled_modified_bessel_k1, "erfcx": special.erfcx, "ndtri": special.ndtri,
        "log_ndtr": special.log_ndtr, "gammainc": special.gammainc, "gammaincc": special.gammaincc,
        "gammaln": special.gammaln, "psi": special.psi, "digamma": special.digamma, "zeta": special.zeta,
        "gamma": lambda x: torch.exp(special.gammaln(x)), "airy": lambda x: (special.airy_ai(x),),
    }  # fmt: skip
    return {"scipy.special": known, "scipy.linalg": {"expm": torch.linalg.matrix_exp}}


def of_jax() -> dict[str, dict[str, Callable]]:
    """JAX's functions by scipy's names."""
    from jax.scipy import linalg, special

    names = (
        "erf", "erfc", "expit", "erfinv", "i0", "i0e", "i1", "i1e", "ndtri", "log_ndtr", "gammainc", "gammaincc",
        "gammaln", "digamma", "zeta", "gamma",
    )  # fmt: skip
    known = {name: getattr(special, name) for name in names}
    return {"scipy.special": {**known, "psi": special.digamma}, "scipy.linalg": {"expm": linalg.expm}}
