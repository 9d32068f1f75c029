"""torch's own list of operators: each float operator imports and equals torch, or is in the table of refusals.

A sample per operator, many operators in one module, and of the operators every tenth: capturing by torch takes a third
of a second for each. AUTOSHARD_OPINFO=1/1 takes all of them; the whole list with more samples is
`python -m benchmarks.opinfo`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from benchmarks.opinfo import (
    EQUAL,
    REFUSED,
    SIGNS,
    Applied,
    Different,
    compare,
    is_random,
    operators,
    same,
    samples_of,
    standing,
    title,
)
from tests.frontends.opinfo_refused import NOT_COMPARED, REFUSALS, SLOW

pytestmark = pytest.mark.torch
TOGETHER = 25
"""Operators in one module: capturing costs less together, and finding out which one fails more."""

FIRST, OF = (int(word) for word in os.environ.get("AUTOSHARD_OPINFO", "1/10").split("/"))


@cache
def known() -> dict[str, Any]:
    """Torch's operators by title; making the list takes seconds, which files that are only collected do not spend."""
    return {title(op): op for op in operators()}


def share(names: set[str]) -> list[str]:
    """Those of the names that are taken, in order."""
    return sorted(names)[FIRST - 1 :: OF]


def test_the_table_speaks_of_operators_that_there_are() -> None:
    named = {*REFUSALS, *NOT_COMPARED, *SLOW}
    assert not named - set(known()), "operators that torch's list does not have"
    assert not set(REFUSALS) & set(NOT_COMPARED)
    assert all(REFUSALS.values()) and all(NOT_COMPARED.values()), "each has a reason"


def test_at_least_nine_of_ten_are_equal() -> None:
    counted = len(known()) - len(NOT_COMPARED)
    assert len(REFUSALS) <= 0.1 * counted, f"{len(REFUSALS)} of {counted} are refused"


@pytest.mark.parametrize("name", share(set(REFUSALS) - set(SLOW)))
def test_what_is_refused_is_told(name: str) -> None:
    """An operator that is refused no more leaves the table; one that fails otherwise never stands in it."""
    found = standing(known()[name], 2)
    assert found.state == REFUSED, f"{found}: take it out of the table"
    assert "benchmarks/opinfo.py:" in found.why or "no gradient" in found.why, "the user's line is told"


def test_float64_decides_where_float32_differs() -> None:
    exact = torch.linspace(0.1, 2.0, 7, dtype=torch.float64)
    rough, ours = (exact * (1 + 1e-2)).float(), exact.float().numpy()
    same("result", [ours], [rough], lambda: [exact])
    for wrong in (lambda: [exact * (1 - 1e-2)], lambda: [exact[:3]], lambda: []):
        with pytest.raises(Different, match="result 0 differs by up to 0.02"):
            same("result", [ours], [rough], wrong)


class Several(Applied):
    """Samples of several operators in one module."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(pairs[0][0], [sample for _, sample in pairs])
        self.functions = [op.op for op, _ in pairs]

    def applied(self, samples: Sequence[tuple[Any, Any, Any]]) -> list[Any]:
        together = zip(self.functions, samples, strict=True)
        return [function(x, *args, **kwargs) for function, (x, args, kwargs) in together]


def pairs_of(names: Sequence[str]) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """Each operator with one of torch's samples, the first that is not random if there is one; apart: random ones."""
    found: tuple[list, list] = ([], [])
    for name in names:
        op = known()[name]
        samples = samples_of(op, 2)
        sure = [sample for sample in samples if not is_random(op, sample)]
        found[not sure].extend((op, sample) for sample in (sure or samples)[:1])
    return found


def test_equals_torch() -> None:
    working = share(set(known()) - set(REFUSALS) - set(NOT_COMPARED) - set(SLOW))
    assert working
    for i in range(0, len(working), TOGETHER):
        compare_together(working[i : i + TOGETHER])


def compare_together(names: Sequence[str]) -> None:
    plain = [name for name in names if not SIGNS.search(name)]
    signed = [name for name in names if SIGNS.search(name)]
    (sure, random), (vectors, _) = pairs_of(plain), pairs_of(signed)
    for pairs, how in ((sure, {}), (vectors, {"signs": True}), (random, {"types_only": True})):
        if not pairs:
            continue
        try:
            compare(Several(pairs), **how)
        except Exception:  # find out which one it is
            failed = [found for op, _ in pairs if (found := standing(op, 2)).state != EQUAL]
            assert not failed, "\n".join(map(str, failed))
            raise
