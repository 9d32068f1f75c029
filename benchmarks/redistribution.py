"""How near redistribution plans come to what must move, and how long planning takes.

    python benchmarks/redistribution.py [--cases 20000] [--check 1000]

Random layouts on meshes of 6 to 12 ranks: sub-axes, several axes per dim, terms of a sum before and after. Prints the
mean and the worst ratio of elements received to the lower bound, for all cases and by what happens to terms, and the
median time of planning: cold (each pair of layouts for the first time), memoized, and cold on meshes of 4,096 ranks.
A quarter of the cases has sizes that do not divide; their padding counts as elements, in the plan and in the bound.
With --check some plans also run on virtual ranks in this process, and every block is compared.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.redistribute import planner
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.planner import evened, moved, plan_steps
from autoshard.runtime.array import cut
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step

Case = tuple[Layout, Layout, tuple[int, ...]]
SMALL = [
    Mesh.flat(8),
    Mesh(a=2, b=4),
    Mesh(a=2, b=2, c=2),
    Mesh.flat(6),
    Mesh(a=3, b=2),
    Mesh(a=4, b=3),
]
LARGE = [Mesh.flat(4096), Mesh(a=64, b=64), Mesh(a=16, b=16, c=16)]


def cases(count: int, meshes: list[Mesh], seed: int) -> Iterator[Case]:
    """Random pairs of layouts with sizes that both divide, or in every fourth case not."""
    draw = random.Random(seed)
    for _ in range(count):
        mesh, rank = draw.choice(meshes), draw.choice([1, 2, 2, 3])
        before = _layout(draw, mesh, rank, draw.choice([0.0, 0.0, 0.3]))
        after = _layout(draw, mesh, rank, draw.choice([0.0, 0.0, 0.0, 0.3]))
        factor = draw.choice([1, 2, 8])
        sizes = [math.lcm(*parts) * factor for parts in zip(before.parts, after.parts, strict=True)]
        if draw.random() < 0.25:
            sizes = [draw.randint(max(1, size // 2), size) for size in sizes]
        yield before, after, tuple(sizes)


def _layout(draw: random.Random, mesh: Mesh, rank: int, terms: float) -> Layout:
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    partial: list[AxisRef] = []
    for piece in _pieces(draw, mesh):
        if draw.random() < terms:
            partial.append(piece)
            continue
        dim = draw.randrange(rank + 1)
        if dim < rank:
            dims[dim].append(piece)
    return Layout(mesh, dims, partial)


def _pieces(draw: random.Random, mesh: Mesh) -> list[AxisRef]:
    pieces = []
    for name in mesh.names:
        rest = mesh.axis(name)
        while rest.size > 1:
            sizes = [size for size in range(2, rest.size + 1) if rest.size % size == 0]
            piece, rest = rest.split(draw.choice(sizes) if draw.random() < 0.5 else rest.size)
            pieces.append(piece)
    draw.shuffle(pieces)
    return pieces


def group(before: Layout, after: Layout, shape: tuple[int, ...]) -> str:
    """What happens to terms, or that sizes do not divide."""
    if not before.divides(shape) or not after.divides(shape):
        return "uneven sizes"
    if before.partial == after.partial:
        return "no terms begin or end"
    return "terms end" if not after.partial else "terms begin"


def right(case: Case, seed: int) -> bool:
    """Whether the plan, run on virtual ranks, leaves every rank with its block (terms summed)."""
    before, after, shape = case
    array = np.random.default_rng(seed).integers(-1000, 1000, shape)
    comm = LocalComm(before.mesh.devices)
    even = evened(before, after, shape)
    held = cut(array, before.final(), comm.ranks, even)
    if before.partial:
        first = [before.mesh.index(rank, before.partial) == 0 for rank in comm.ranks]
        held = [part if one else np.zeros_like(part) for part, one in zip(held, first, strict=True)]
    for step in plan_steps(before, after, shape):
        held = run_step(step, held, comm)
    if after.partial:
        held = comm.all_reduce(held, after.mesh.groups(after.partial))
    wanted = cut(array, after.final(), comm.ranks, even)
    return all(np.array_equal(part, block) for part, block in zip(held, wanted, strict=True))


def times(drawn: list[Case]) -> tuple[float, float]:
    """Median seconds of planning, the first time and again."""
    planner._plan.cache_clear()
    found = []
    for _ in range(2):
        spent = []
        for case in drawn:
            start = time.perf_counter()
            plan_steps(*case)
            spent.append(time.perf_counter() - start)
        found.append(statistics.median(spent))
    return found[0], found[1]


def main() -> None:
    """Draw, plan, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--check", type=int, default=1000, help="how many plans to run on virtual ranks")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    drawn = list(cases(args.cases, SMALL, args.seed))
    ratios: dict[str, list[float]] = defaultdict(list)
    unbounded = 0
    for before, after, shape in drawn:
        even = evened(before, after, shape)
        least, elements = fewest_elements(before, after, even), moved(plan_steps(before, after, even), even)
        if least:
            for name in ("all", group(before, after, shape)):
                ratios[name].append(elements / least)
        else:
            unbounded += elements > 0
    print(f"{len(drawn)} cases; elements received over the lower bound (cases with nothing to receive left out)")
    for name, found in sorted(ratios.items()):
        met = sum(ratio < 1 + 1e-9 for ratio in found) / len(found)
        worst = max(found)
        print(f"  {name:24} {len(found):6} cases  mean {statistics.mean(found):.4f}  worst {worst:.2f}  met {met:.1%}")
    print(f"  {unbounded} more receive something though the bound is 0 (terms begin)")
    wrong = sum(not right(case, seed) for seed, case in enumerate(drawn[: args.check]))
    print(f"{min(args.check, len(drawn))} plans run on virtual ranks: {wrong} wrong")
    cold, again = times(drawn)
    large, _ = times(list(cases(min(args.cases, 2000), LARGE, args.seed)))
    print(f"planning, median: cold {cold * 1e6:.1f} us, memoized {again * 1e6:.2f} us")
    print(f"planning for 4,096 ranks, median: cold {large * 1e6:.1f} us")


if __name__ == "__main__":
    main()
