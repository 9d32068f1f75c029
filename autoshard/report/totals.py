"""The end of a report: where the time goes, what lies in memory when, and how far the plan may be from the best.

`totals(planned)` gives the lines. The memory picture has one column for a stretch of the step, as high as the most
bytes in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from autoshard.cost.evaluate import Cost
from autoshard.cost.memory import HeldBytes, MemoryUse
from autoshard.plan.plan import Plan
from autoshard.report.folding import fold_rows
from autoshard.search.planned import PlannedData
from costmodel import format_bytes, format_count, format_seconds

_COLUMNS, _BLOCKS = 60, " ▁▂▃▄▅▆▇█"
_MOST_SHOWN = 3


def totals(planned: PlannedData) -> Iterator[str]:
    """The lines: time, communication by axes, memory, and the bound if the search found one."""
    cost = planned.cost
    yield (
        f"a step takes {format_seconds(cost.seconds)}: compute {format_seconds(cost.compute_seconds)}, "
        f"communication {format_seconds(cost.communication_seconds)} (predicted)"
    )
    yield from _by_axes(cost)
    yield (
        f"a device sends {format_bytes(cost.bytes_per_device)} and needs {format_bytes(cost.peak_memory_bytes)} at most"
    )
    if cost.memory is not None:
        yield from _memory(cost.memory)
    yield from _bound(planned.plan, cost)


def _by_axes(cost: Cost) -> Iterator[str]:
    for one in cost.axes:
        yield (
            f"  over {one.axes}: {format_seconds(one.seconds)} in {format_count(one.collectives, 'collective')}, "
            f"{format_bytes(one.nbytes)}"
        )


def _memory(use: MemoryUse) -> Iterator[str]:
    yield f"  over the step |{picture(use.timeline)}|"
    held, kinds = use.at(use.peak_moment), {}
    for one in held:
        kinds[one.kind] = kinds.get(one.kind, 0) + one.nbytes
    shown = ", ".join(f"{kind} {format_bytes(nbytes)}" for kind, nbytes in sorted(kinds.items(), key=lambda kv: -kv[1]))
    yield f"  most at {use.peak_at}: {shown}"
    largest = ", ".join(_largest([one for one in held if one.kind != "runtime"]))
    if largest:
        yield f"  largest then: {largest}"


def _largest(held: Sequence[HeldBytes]) -> Iterator[str]:
    """What holds most, equal layers together."""
    folded = fold_rows([(one.what, one.kind, format_bytes(one.nbytes)) for one in held])
    totals = {row: sum(held[i].nbytes for i in row.stands_for) for row in folded}
    for row in sorted(totals, key=lambda row: -totals[row])[:_MOST_SHOWN]:
        (what, kind, each), times = row.cells, len(row.stands_for)
        yield f"{what} ({kind}) {each}" if times == 1 else f"{what} ({kind}) {times} x {each}"


def picture(bytes_at: np.ndarray, columns: int = _COLUMNS) -> str:
    """Bytes at each moment as a line of blocks; the highest is the peak, each column the most of its moments."""
    most = int(bytes_at.max(initial=0))
    if not most:
        return ""
    pieces = np.array_split(bytes_at, min(columns, len(bytes_at)))
    levels = [-(-int(piece.max()) * (len(_BLOCKS) - 1) // most) for piece in pieces]
    return "".join(_BLOCKS[level] for level in levels)


def _bound(plan: Plan, cost: Cost) -> Iterator[str]:
    stats = plan.search_stats
    if "bound" not in stats:
        return
    if stats.get("proven"):
        yield f"no plan of the strategies considered takes less: proven ({format_seconds(stats['bound'])})"
    elif stats["bound"] >= stats.get("seconds", math.inf):
        yield "nothing is proven: its program takes less than the least sum of prices, and others may, too"
    else:
        yield f"no plan takes less than {format_seconds(stats['bound'])}: a gap of {stats.get('gap', 0.0):.2%} at most"
