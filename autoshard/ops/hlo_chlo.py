"""The operators of the CHLO dialect, which JAX emits beside StableHLO: special functions and top_k.

XLA writes them out in smaller operations before Shardy sees them, so that Shardy has no rules for them; ours say what
holds: all are elementwise, but for TopK, of whose last dim ranks exchange the best of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from autoshard.core.rule import REPLICATE, Rule
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops import integer_arithmetic as integers
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.options import Spreading
from autoshard.ops.registry import operator
from autoshard.ops.top_k import top_k_exchange
from autoshard.ops.unary import BOOL, elementwise, native, scipy_special
from autoshard.util.errors import ShapeError

_one = partial(elementwise, 1, flops=10.0, spread=Spreading(foreign=True))
# Shardy does not count those of two operands as elementwise, which tells when it copies constants.
_two = partial(elementwise, 2, flops=10.0, spread=Spreading(foreign=True, order=""))


def _polygamma(n: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The n-th derivative of digamma: (-1)^(n+1) n! zeta(n+1, x)."""
    from scipy.special import gamma, psi, zeta

    n, x = native(n), native(x)
    derivative = np.where(n % 2 == 0, -1, 1) * gamma(n + 1) * zeta(n + 1, x)
    return np.where(n == 0, psi(x), np.where((n < 0) | (n != np.floor(n)), np.nan, derivative))


def _next_after(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if element_type(x.dtype).extended:
        raise ShapeError(f"ChloNextAfter of {element_type(x.dtype)}: neighbours are known of f16, f32 and f64")
    return np.nextafter(x, y)


# -- trigonometry

acos = _one("ChloAcos", np.arccos, "The arc cosine.")
acosh = _one("ChloAcosh", np.arccosh, "The inverse hyperbolic cosine.")
asin = _one("ChloAsin", np.arcsin, "The arc sine.")
asinh = _one("ChloAsinh", np.arcsinh, "The inverse hyperbolic sine.")
atan = _one("ChloAtan", np.arctan, "The arc tangent.")
atanh = _one("ChloAtanh", np.arctanh, "The inverse hyperbolic tangent.")
cosh = _one("ChloCosh", np.cosh, "The hyperbolic cosine.")
sinh = _one("ChloSinh", np.sinh, "The hyperbolic sine.")
chlo_tan = _one("ChloTan", np.tan, "The tangent.")

# -- special functions

chlo_erf = _one("ChloErf", scipy_special("erf"), "The error function.")
erfc = _one("ChloErfc", scipy_special("erfc"), "1 minus the error function.")
erf_inv = _one("ChloErfInv", scipy_special("erfinv"), "The inverse of erf: infinite at 1 and -1, NaN beyond.")
lgamma = _one("ChloLgamma", scipy_special("gammaln"), "The logarithm of the size of the gamma function.")
digamma = _one("ChloDigamma", scipy_special("psi"), "The derivative of lgamma.")
bessel_i1e = _one("ChloBesselI1e", scipy_special("i1e"), "The modified Bessel function I1, scaled by exp(-|x|).")
polygamma = _two("ChloPolygamma", _polygamma, "The derivative of digamma of the order that the first operand tells.")
zeta = _two("ChloZeta", scipy_special("zeta"), "The Hurwitz zeta function.")

# -- arithmetic

chlo_square = _one("ChloSquare", np.square, "x * x.", flops=1)
conj = _one("ChloConj", np.conjugate, "The complex conjugate.", flops=1)
next_after = _two("ChloNextAfter", _next_after, "The next float after the first operand towards the second.", flops=1)
multiply_high = _two("ChloMulhi", integers.multiply_high, "The high half of a product of whole numbers.", flops=1)
is_inf = _one("ChloIsInf", np.isinf, "Whether it is infinite.", of=lambda x: BOOL, flops=1)
is_pos_inf = _one("ChloIsPosInf", np.isposinf, "Whether it is infinity.", of=lambda x: BOOL, flops=1)
is_neg_inf = _one("ChloIsNegInf", np.isneginf, "Whether it is minus infinity.", of=lambda x: BOOL, flops=1)


# -- top_k


def _top_rule(x: Sequence[int], k: int) -> Rule:
    if not x or not 0 <= k <= x[-1]:
        raise ShapeError(f"ChloTopK: the last dim of {tuple(x)} has no {k} elements")
    made = FactorBuilder([len(x)], [len(x)] * 2)
    for dim, size in enumerate(x[:-1]):
        made.along(dim, size)
    last = len(x) - 1
    if not 0 < 2 * k <= x[-1]:
        return made.along(last, x[-1], REPLICATE, blocked=k != x[-1]).build()
    made.factor({0: last}, x[-1], REPLICATE, blocked=True, exchange=x[-1])
    return made.factor({1: last, 2: last}, k, REPLICATE).join_last().build()


@operator(
    "ChloTopK",
    rule=_top_rule,
    shape=lambda x, k: ((*x[:-1], k),) * 2,
    dtype=lambda x, k: (x, "i32"),
    spread=Spreading(foreign=True),
)
def chlo_top_k(x, *, k):
    """The k largest of the last dim, the largest first, and where they stand; of equal ones the first comes first.

    NaN counts as larger than all else.
    """
    position = np.argsort(-integers.ranks(x), axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, position, -1), position


@chlo_top_k.exchange
def _(attrs, placement):
    return top_k_exchange(chlo_top_k, attrs, placement, placement.operands[0].rank - 1, attrs["k"])
