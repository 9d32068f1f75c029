"""The collectives in a compiled program, and those that a program of ours is planned with, in one form to compare.

    differences(run.lowered(), program, grid)     # "" if both are the same

A collective is its kind, its groups of ranks (members in order), and the bytes that it leaves on a rank.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from autoshard.engines.grid import Grid, Rows
from autoshard.engines.rounds import rounds_of
from autoshard.engines.tables import boxes, is_whole_permute
from autoshard.partition.program import Collective, ManualCollective, Program
from autoshard.redistribute.step import Step
from tests.engines.traced_collectives import Found, asked

_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
}
_LINE = re.compile(rf"= (?P<types>.*?) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\((?P<rest>.*)")
_TYPE = re.compile(r"([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[0-9,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_BITS = re.compile(r"[0-9]+")
ONE_BY_ONE = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner,cse", "xla_backend_optimization_level": "0"}
"""XLA's options by which it leaves reductions apart on CPUs, sends again what it has sent, and is done sooner."""


def differences(lowered: Any, program: Program, grid: Grid) -> str:
    """How the collectives of a lowered step differ from those that its program plans; empty if they do not.

    What JAX traced has exactly the planned ones: kinds, groups, bytes. What XLA compiles has these too, one by one, but
    for gathers of what is known before the run, which its simplifier may leave out: the gradient of a mean, say, begins
    with one number everywhere.
    """
    module = lowered.compiler_ir("stablehlo")
    wrong = traced_differences(module, program, grid)
    if wrong:
        return wrong
    traced = list(asked(module, grid))
    found = counted(lowered.compile(ONE_BY_ONE).as_text(), grid)
    wanted = Counter(one.compiled for one in traced)
    gone = (wanted - found) & Counter(one.compiled for one in traced if one.is_known)
    return _told("compiled", found, wanted - gone)


def traced_differences(module: Any, program: Program, grid: Grid) -> str:
    """How the collectives of a StableHLO module differ from those that its program plans; empty if they do not."""
    return _told("traced", Counter(one.found for one in asked(module, grid)), planned(program, grid))


def _told(what: str, found: Counter[Found], wanted: Counter[Found]) -> str:
    extra, missing = found - wanted, wanted - found
    rows = ((f"{what} but not planned", extra), (f"planned but not {what}", missing))
    return "; ".join(f"{text}: {dict(some)}" for text, some in rows if some)


def counted(text: str, grid: Grid) -> Counter[Found]:
    """The collectives in the text of a compiled module (HLO), for devices that stand as `grid` says."""
    return Counter(_read(text, grid))


def _read(text: str, grid: Grid) -> Iterator[Found]:
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        kind = _KINDS[match["kind"]]
        sizes = [_nbytes(*one) for one in _TYPE.findall(match["types"])]
        # The result of a start also names what goes in.
        nbytes = sizes[-1] if match["start"] else sum(sizes)
        rows = (tuple(grid.ranks[place] for place in row) for row in _rows(match["rest"]))
        yield kind, tuple(sorted(rows)), nbytes


def _nbytes(element: str, sizes: str) -> int:
    bits = _BITS.search(element)
    width = 1 if element == "pred" else int(bits[0]) // 8 if bits else 0
    return width * math.prod(map(int, sizes.split(","))) if sizes else width


def _rows(text: str) -> list[tuple[int, ...]]:
    listed = _LISTED.search(text)
    if listed is not None:
        return [tuple(map(int, row.split(","))) for row in re.findall(r"\{([0-9, ]+)\}", listed[1])]
    iota = _IOTA.search(text)
    if iota is None:
        return []
    shape, over, order = (None if part is None else tuple(map(int, part.split(","))) for part in iota.groups())
    assert shape is not None and over is not None
    ids = np.arange(math.prod(over)).reshape(over)
    return [tuple(row) for row in ids.transpose(order).reshape(shape).tolist()]


def planned(program: Program, grid: Grid) -> Counter[Found]:
    """The collectives that a program's steps are, each message round of a step that exchanges boxes for itself."""
    return Counter(found for one in program.collectives for found in _of(one, grid))


def _of(one: Collective | ManualCollective, grid: Grid) -> Iterator[Found]:
    itemsize = one.of.dtype.itemsize
    if isinstance(one, ManualCollective):
        yield one.kind, _sorted_rows(one, grid), sum(result.local.nbytes for result in one.results)
        return
    step = one.step
    if isinstance(step, Step) and is_whole_permute(step):
        pairs = tuple(sorted((source, rank) for rank, source in enumerate(step.round(0).sources)))
        yield "permute", pairs, step.after.local_size(one.of.shape) * itemsize
    elif isinstance(step, Step) and step.kind not in ("keep", "permute"):
        yield _reduced(step, _sorted_rows(one, grid), one.of.shape, itemsize)
    else:
        for messages in rounds_of(boxes(one)):
            most = max(sum(math.prod(count for _, count, _ in box) for box in sent) for _, _, sent in messages)
            yield "permute", tuple(sorted((source, target) for source, target, _ in messages)), most * itemsize


def _reduced(step: Step, rows: Rows, shape: tuple[int, ...], itemsize: int) -> Found:
    """The collective that does it: JAX has no product of all, and scatters nothing but sums."""
    before, after = (layout.local_size(shape) * itemsize for layout in (step.before, step.after))
    if step.kind in ("all_reduce", "reduce_scatter") and step.reduction == "prod":
        return "all_gather", rows, before * len(rows[0])
    if step.kind == "reduce_scatter" and step.reduction != "sum":
        return "all_reduce", rows, before
    return step.kind, rows, after


def _sorted_rows(one: Collective | ManualCollective, grid: Grid) -> Rows:
    groups = one.step.groups
    rows = {tuple(map(int, groups.members(rank))) for rank in range(grid.size)}
    return tuple(sorted(rows))
