"""Contractions: matrix products and einsum. Splitting a contracted factor leaves the product a partial sum.

The rules list factors in MindSpore's order of the device matrix: batch dims, m, k, n.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoshard.ops.axes import words
from autoshard.ops.folding import widened
from autoshard.ops.reduce import spread, sum_to
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
_EACH_OF_TWO = ((0,), (1,))


# -- matrix products


def _matrix_rule(name: str, x: Shape, w: Shape, transpose_a: bool, transpose_b: bool, batch: str) -> str:
    if len(x) < 2 or len(w) < 2 or (not batch and len(w) > 2):
        wanted = "operands of 2 or more dims" if batch else "x of 2 or more dims and w of 2 (else use BatchMatMul)"
        raise ShapeError(f"{name} takes {wanted}, not {tuple(x)} and {tuple(w)}")
    left = "k m" if transpose_a else "m k"
    right = "n k" if transpose_b else "k n"
    return f"... {left}, {batch}{right} -> ... m n"


def _turned(x: np.ndarray, turn: bool) -> np.ndarray:
    return x.swapaxes(-1, -2) if turn else x


@operator(
    "MatMul",
    rule=lambda x, w, *, transpose_a, transpose_b: _matrix_rule("MatMul", x, w, transpose_a, transpose_b, ""),
    linear=_EACH_OF_TWO,
)
def matmul(x, w, *, transpose_a=False, transpose_b=False):
    """x @ w for a matrix w; leading dims of x are kept. The attributes swap the last two dims first."""
    w = _turned(w, transpose_b)
    if x.ndim == 2 or transpose_a:
        return np.matmul(_turned(x, transpose_a), w)
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return np.matmul(flat, w).reshape(*x.shape[:-1], w.shape[1])


@matmul.gradient
def _(g, y, x, w, transpose_a, transpose_b):
    if transpose_a:
        product = matmul if len(x.shape) == 2 else batch_matmul
        dx = product(w, g, transpose_a=transpose_b, transpose_b=True)
    else:
        dx = matmul(g, w, transpose_b=not transpose_b)
    if len(x.shape) > 2:
        return dx, einsum(x, g, equation=_weight_equation(len(x.shape) - 2, transpose_a, transpose_b))
    if transpose_b:
        return dx, matmul(g, x, transpose_a=True, transpose_b=transpose_a)
    return dx, matmul(x, g, transpose_a=not transpose_a)


def _weight_equation(lead: int, transpose_a: bool, transpose_b: bool, own: int = 0) -> str:
    """Gradient of the matrix of a product with `lead` leading dims, which are contracted with m, but for the last ones
    that the matrix has as its `own`."""
    batch = string.ascii_uppercase[:lead]
    left, weight = "km" if transpose_a else "mk", "nk" if transpose_b else "kn"
    return f"{batch}{left},{batch}mn->{batch[lead - own :]}{weight}"


@operator(
    "BatchMatMul",
    rule=lambda x, w, *, transpose_a, transpose_b: _matrix_rule("BatchMatMul", x, w, transpose_a, transpose_b, "... "),
    linear=_EACH_OF_TWO,
)
def batch_matmul(x, w, *, transpose_a=False, transpose_b=False):
    """x @ w over the last two dims; leading dims are a batch, broadcast as in numpy."""
    return np.matmul(_turned(x, transpose_a), _turned(w, transpose_b))


@batch_matmul.gradient
def _(g, y, x, w, transpose_a, transpose_b):
    lead, shared = len(x.shape) - 2, len(x.shape) - len(w.shape)
    if transpose_a:
        dx = batch_matmul(w, g, transpose_a=transpose_b, transpose_b=True)
    else:
        dx = batch_matmul(g, w, transpose_b=not transpose_b)
    if shared > 0 and tuple(x.shape[shared:-2]) == tuple(w.shape[:-2]):  # one matrix for all along the first dims
        dw = einsum(x, g, equation=_weight_equation(lead, transpose_a, transpose_b, lead - shared))
    elif transpose_b:
        dw = batch_matmul(g, x, transpose_a=True, transpose_b=transpose_a)
    else:
        dw = batch_matmul(x, g, transpose_a=not transpose_a)
    return sum_to(dx, tuple(x.shape)), sum_to(dw, tuple(w.shape))


# -- einsum


@lru_cache(maxsize=4096)
def parse_equation(equation: str) -> tuple[tuple[str, ...], str]:
    """Letters of each operand and of the result of `ij,jk->ik`; spaces are free.

    Raises:
        ShapeError: not of that form, a letter twice in one tensor, or a result's letter that no operand has.
    """
    left, arrow, result = str(equation).replace(" ", "").partition("->")
    operands = tuple(left.split(","))
    bad = next((f"operand {i} repeats a letter" for i, one in enumerate(operands) if len(set(one)) < len(one)), "")
    if not arrow:
        bad = "it has no '->'"
    elif not set(left + result) <= set(string.ascii_letters + ","):
        bad = "dims are single letters; '...' is not supported"
    elif len(set(result)) < len(result):
        bad = "the result repeats a letter"
    elif not set(result) <= set(left):
        bad = f"no operand has {', '.join(sorted(set(result) - set(left)))} of the result"
    if bad:
        raise ShapeError(f"Einsum cannot use equation {equation!r}: {bad}; write e.g. 'bik,bkj->bij'")
    return operands, result


def _einsum_rule(*shapes: Shape, equation: str) -> str:
    operands, result = parse_equation(equation)
    return f"{', '.join(map(words, operands))} -> {words(result)}"


@operator("Einsum", rule=_einsum_rule, linear=_EACH_OF_TWO)
def einsum(*xs, equation):
    """Sum of products over the letters missing on the right, e.g. 'bik,bkj->bij'; no tensor repeats one."""
    operands, result = parse_equation(equation)
    if len(xs) == 2:
        return _pair(operands[0], operands[1], result)(*xs)
    return np.einsum(equation, *map(widened, xs), optimize=len(xs) > 2)


@einsum.gradient
def _(g, y, *xs, equation):
    operands, result = parse_equation(equation)
    return tuple(_einsum_slope(g, i, xs, operands, result) for i in range(len(xs)))


def _einsum_slope(g: object, i: int, xs: Sequence, operands: Sequence[str], result: str) -> object:
    """Contract g with all other operands; what only operand i has was summed, so it is repeated."""
    others = [k for k in range(len(xs)) if k != i]
    letters = operands[i]
    known = set(result).union(*(operands[k] for k in others))
    found = "".join(letter for letter in letters if letter in known)
    left = ",".join([result, *(operands[k] for k in others)])
    slope = einsum(g, *(xs[k] for k in others), equation=f"{left}->{found}")
    summed = tuple(at for at, letter in enumerate(letters) if letter not in known)
    return spread(slope, shape=tuple(xs[i].shape), axis=summed) if summed else slope


@dataclass(frozen=True)
class _Pair:
    """A two-operand einsum as one matrix product: how to order each operand's dims, and the product's."""

    left_sums: tuple[int, ...]
    right_sums: tuple[int, ...]
    left_order: tuple[int, ...]
    right_order: tuple[int, ...]
    counts: tuple[int, int, int, int]
    order: tuple[int, ...]

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x = (widened(x).sum(self.left_sums) if self.left_sums else x).transpose(self.left_order)
        w = (widened(w).sum(self.right_sums) if self.right_sums else w).transpose(self.right_order)
        batch, m, k, n = self.counts
        middle = x.shape[batch + m :]
        rows, columns = x.shape[batch : batch + m], w.shape[batch + k :]
        inner = math.prod(middle)
        x = x.reshape(*x.shape[:batch], math.prod(rows), inner)
        w = w.reshape(*w.shape[:batch], inner, math.prod(columns))
        product = np.matmul(x, w)
        return product.reshape((*product.shape[:-2], *rows, *columns)).transpose(self.order)


@lru_cache(maxsize=4096)
def _pair(left: str, right: str, result: str) -> _Pair:
    """Letters: batch (in all three), m or n (in one operand and the result), k (in the operands alone)."""
    batch = [one for one in result if one in left and one in right]
    m = [one for one in result if one in left and one not in right]
    n = [one for one in result if one in right and one not in left]
    k = [one for one in left if one in right and one not in result]
    left_kept = [one for one in left if one in batch + m + k]
    right_kept = [one for one in right if one in batch + n + k]
    made = batch + m + n
    return _Pair(
        tuple(i for i, one in enumerate(left) if one not in left_kept),
        tuple(i for i, one in enumerate(right) if one not in right_kept),
        tuple(left_kept.index(one) for one in batch + m + k),
        tuple(right_kept.index(one) for one in batch + k + n),
        (len(batch), len(m), len(k), len(n)),
        tuple(made.index(one) for one in result),
    )
