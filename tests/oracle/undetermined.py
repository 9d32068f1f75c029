"""Answers of a program that rounding or a free sign decides: which of equal numbers is the largest, singular vectors.

Engines round differently, and libraries choose the sign of singular vectors and eigenvectors as they like. `answers`
are what a program may give besides what numpy gives: as numpy has it, with every float changed by as much as rounding
may and each such sign drawn. An answer of an engine that differs from numpy's stands if each of its elements is one of
these; what is determined has the same in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.ir.graph import Graph, Node
from autoshard.ir.run import Held, Runner
from autoshard.trace.evaluate import evaluate

DRAWS = 24
"""A sign that is drawn so often comes in both ways but once in eight million times."""
ROUNDING = 4.0
"""Units in the last place by which results differ."""
LIKE, FAR = 3, 4.0
"""An answer may be from the nearest draw so many times as far as this one is from its third neighbour: about as far as
vectors of close singular values turn when a matrix is rounded."""
SIGNED = {"Svd": (0, 2), "SelfAdjointEig": (1,)}
"""Operators whose vectors have a free sign, and which results hold these: columns, and rows in the last of Svd."""


class _Rounded(Runner):
    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        super().__init__(graph.functions)
        self.rng = rng

    def node(self, node: Node, held: Held) -> tuple:
        results = [*super().node(node, held)]
        if node.op.name in SIGNED:
            self._turn(results, SIGNED[node.op.name])
        return tuple(map(self.rounded, results))

    def _turn(self, results: list[np.ndarray], signed: tuple[int, ...]) -> None:
        """Give each vector one of its signs."""
        for i in signed:
            results[i] = results[i].copy()
        columns, *rows = (results[i] for i in signed)
        count = min(one.shape[-1] if one is columns else one.shape[-2] for one in (columns, *rows))
        signs = self.rng.choice([-1, 1], (*columns.shape[:-2], count)).astype(columns.dtype)
        columns[..., :count] *= signs[..., None, :]
        for one in rows:
            one[..., :count, :] *= signs[..., None]

    def rounded(self, result: np.ndarray) -> np.ndarray:
        if not isinstance(result, np.ndarray) or result.dtype.kind != "f":
            return result
        noise = self.rng.uniform(-ROUNDING, ROUNDING, result.shape) * np.finfo(result.dtype).eps
        with np.errstate(invalid="ignore"):
            return (result * (1 + noise)).astype(result.dtype)


def answers(graph: Graph, feeds: Sequence[np.ndarray], draws: int = DRAWS) -> list[list[np.ndarray]]:
    """For each output what it is in so many draws; the first as numpy gives it."""
    found = [[np.asarray(one) for one in evaluate(graph, feeds)]]
    for draw in range(draws):
        runner = _Rounded(graph, np.random.default_rng([draw, 83]))
        found.append([np.asarray(one) for one in runner.graph(graph, [*map(runner.rounded, feeds)])])
    return [list(one) for one in zip(*found, strict=True)]


def is_one_of(found: np.ndarray, those: Sequence[np.ndarray], rtol: float) -> bool:
    """Whether each element is that of one of these: whole numbers exactly, floats as near as its like are together."""
    if found.dtype.kind not in "fc":
        return bool(np.any([found == one for one in those], axis=0).all())
    scale = max(1.0, float(np.abs(those[0][np.isfinite(those[0])]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        distances = np.stack([np.where(found == one, 0.0, np.abs(found - one)) for one in those])
        distances[:, np.isnan(found) & np.isnan(those[0])] = 0.0
        nearest = np.take_along_axis(np.stack(those), distances.argmin(axis=0)[None], axis=0)
        around = np.sort([np.where(nearest[0] == one, 0.0, np.abs(nearest[0] - one)) for one in those], axis=0)[LIKE]
        allowed = rtol * np.abs(nearest[0]) + 1e-2 * rtol * scale + FAR * around
    return bool((distances.min(axis=0) <= np.nan_to_num(allowed)).all())
