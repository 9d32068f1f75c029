"""How near redistribution plans come to what must move, whether they are right, and how long planning takes.

    python benchmarks/redistribution.py [--cases 20000] [--check 20000] [--no-shardy]

Random layouts on meshes of 6 to 12 ranks: sub-axes, several axes per dim, terms of a reduction before and after, and in
a quarter of the cases sizes that do not divide. The lower bound counts true elements on the rank that lacks most; what
plans move is counted with the padding that their collectives carry along. Printed are

- the mean and the worst ratio of elements received to the bound, for all cases and by what happens to terms: of plans
  as programs have them, and of `thrifty` ones;
- how many plans, run on virtual ranks in this process, left a rank with another block than it should have;
- how many plans receive more than gathering and slicing, or than Shardy's own passes where these can be asked;
- the median time of planning, cold (nothing remembered) and memoized, on these meshes and on some of 4,096 ranks.

The exit status is 1 if a plan was wrong or received more than one of those.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.redistribute import candidates, fetch, planner, replicate_to_partial
from autoshard.redistribute.bound import fewest_elements
from autoshard.redistribute.planner import Steps, elements_moved, evened, plan_steps, step_shape
from autoshard.runtime.array import cut
from autoshard.runtime.comm import REDUCTIONS
from autoshard.runtime.local import LocalComm
from autoshard.runtime.padded import fit
from autoshard.runtime.steps import run_step
from benchmarks.shardy_reshards import ITEMSIZE, expressible, in_this_process, received

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
JUNK = -(1 << 40)
# Functions in one module of Shardy's.
MODULE = 1000


def cases(count: int, meshes: list[Mesh], seed: int) -> Iterator[Case]:
    """Random pairs of layouts with sizes that both divide, or in every fourth case not."""
    draw = random.Random(seed)
    for _ in range(count):
        mesh, rank = draw.choice(meshes), draw.choice([1, 2, 2, 3])
        reduction = draw.choice(["sum", "sum", "sum", "max", "min", "prod"])
        before = _layout(draw, mesh, rank, draw.choice([0.0, 0.0, 0.3]), reduction)
        after = _layout(draw, mesh, rank, draw.choice([0.0, 0.0, 0.0, 0.3]), "sum")
        factor = draw.choice([1, 2, 5])
        sizes = [math.lcm(*parts) * factor for parts in zip(before.parts, after.parts, strict=True)]
        if draw.random() < 0.25:
            sizes = [draw.randint(max(1, size // 2), size) for size in sizes]
        yield before, after, tuple(sizes)


def _layout(draw: random.Random, mesh: Mesh, rank: int, terms: float, reduction: str) -> Layout:
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    partial: list[AxisRef] = []
    for piece in _pieces(draw, mesh):
        if draw.random() < terms:
            partial.append(piece)
            continue
        dim = draw.randrange(rank + 1)
        if dim < rank:
            dims[dim].append(piece)
    return Layout(mesh, dims, partial, reduction)


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
    if before.partial == after.partial and before.reduction == after.reduction:
        return "no terms begin or end"
    if before.partial and after.partial:
        return "terms end and begin"
    return "terms end" if before.partial else "terms begin"


def planned(case: Case, thrifty: bool = False) -> Steps:
    """The steps of a case; what does not divide is told, so that padding may stay where it is."""
    before, after, shape = case
    return plan_steps(before, after, evened(*case), size=shape, thrifty=thrifty)


def right(case: Case, steps: Steps, seed: int) -> bool:
    """Whether the steps, run on virtual ranks, leave every rank with its block (new terms summed)."""
    before, after, shape = case
    even, random = evened(*case), np.random.default_rng(seed)
    array = random.integers(-1000, 1000, shape)
    comm = LocalComm(before.mesh.devices)
    held = _spread(array, before, even, comm, random)
    for step in steps:
        local = step.before.local_shape(step_shape(step, even, shape))
        held = run_step(step, [fit(part, local) for part in held], comm)
    if after.partial:
        held = comm.all_reduce(held, after.mesh.groups(after.partial), after.reduction)
    wanted = ((after.block(rank, even), part) for rank, part in enumerate(held))
    return all(np.array_equal(_inside(part, block, shape), array[block]) for block, part in wanted)


def _inside(part: np.ndarray, block: Sequence[slice], shape: Sequence[int]) -> np.ndarray:
    """What of a block is there."""
    spans = zip(block, shape, strict=True)
    return part[tuple(slice(max(0, min(one.stop, size) - one.start)) for one, size in spans)]


def _spread(array: np.ndarray, layout: Layout, even: Sequence[int], comm: LocalComm, random) -> list[np.ndarray]:
    """The blocks that the ranks hold, junk in the padding; random terms where the layout is partial."""
    terms = [_padded(term, even) for term in _terms(array, layout, random)]
    blocks = [cut(term, layout.final(), comm.ranks) for term in terms]
    return [blocks[layout.mesh.index(rank, layout.partial)][rank] for rank in comm.ranks]


def _padded(array: np.ndarray, even: Sequence[int]) -> np.ndarray:
    made = np.full(even, JUNK)
    made[tuple(map(slice, array.shape))] = array
    return made


def _terms(array: np.ndarray, layout: Layout, random) -> list[np.ndarray]:
    """Arrays that reduce to this one exactly."""
    count, kind = math.prod(ref.size for ref in layout.partial), layout.reduction
    if count == 1:
        return [array]
    if kind == "sum":
        terms = [random.integers(-99, 99, array.shape) for _ in range(count - 1)]
        return [*terms, array - sum(terms)]
    if kind == "prod":
        signs = [random.choice((-1, 1), array.shape) for _ in range(count - 1)]
        return [*signs, array * functools.reduce(np.multiply, signs)]
    owner, worse = random.integers(0, count, array.shape), -1 if kind == "max" else 1
    terms = [np.where(owner == i, array, array + worse * random.integers(1, 99, array.shape)) for i in range(count)]
    assert np.array_equal(functools.reduce(REDUCTIONS[kind], terms), array)
    return terms


def gather_and_slice(case: Case) -> float:
    """True elements that some rank receives when terms are finished in place, all is gathered and then cut."""
    before, after, shape = case
    even, whole = evened(*case), Layout.replicated(before.mesh, before.rank)
    same = before.partial == after.partial and before.reduction == after.reduction
    terms = 1 if same else math.prod(ref.size for ref in before.partial)
    summed = 2 * (terms - 1) / terms * math.prod(before.local_shape(even))
    return summed + fewest_elements(before.final(), whole, even, size=shape)


def above_shardy(drawn: list[Case], elements: list[float]) -> int:
    """Print how many of the cases that Shardy's passes express receive more than by these; that number."""
    by_mesh: dict[Mesh, list[int]] = defaultdict(list)
    for i, case in enumerate(drawn):
        if expressible(*case):
            by_mesh[case[0].mesh].append(i)
    above, astray, ratios = 0, 0, []
    for mesh, found in by_mesh.items():
        for start in range(0, len(found), MODULE):
            some = found[start : start + MODULE]
            theirs = received(mesh, [drawn[i] for i in some], in_this_process)
            for i, nbytes in zip(some, theirs, strict=True):
                if nbytes is None:
                    astray += 1
                    continue
                above += elements[i] * ITEMSIZE > nbytes * (1 + 1e-9)
                ratios += [elements[i] * ITEMSIZE / nbytes] if nbytes else []
    count = sum(map(len, by_mesh.values()))
    mean = statistics.mean(ratios)
    print(f"more than Shardy's passes: {above} of {count} that these express; {mean:.3f} of their bytes on average")
    if astray:
        print(f"  left out: {astray} for which the collectives of these passes end at another layout than asked for")
    return above


def times(drawn: list[Case]) -> tuple[float, float]:
    """Median seconds of planning: all forgotten before each (CPU time), and again (by the clock that is read fastest).

    Layouts stay known, for they are what the planner is asked with.
    """
    cold, again = [], []
    for case in drawn:
        forget()
        start = time.process_time_ns()
        plan_steps(*case)
        cold.append(time.process_time_ns() - start)
        start = time.perf_counter_ns()
        plan_steps(*case)
        again.append(time.perf_counter_ns() - start)
    return statistics.median(cold) * 1e-9, statistics.median(again) * 1e-9


def forget() -> None:
    """Let the planner begin with nothing known."""
    for known in (
        planner._plan,
        planner._searched,
        candidates.solve,
        candidates.normal_form,
        fetch.fetch,
        fetch._elements_moved,
        replicate_to_partial.replicate_to_partial,
    ):
        known.cache_clear()


def ratios(drawn: list[Case], thrifty: bool) -> list[float]:
    """Print how near the plans come to the bound; what each of them receives at most."""
    by_group: dict[str, list[float]] = defaultdict(list)
    elements, unbounded = [], 0
    for case in drawn:
        before, after, shape = case
        least = fewest_elements(before, after, evened(*case), size=shape)
        elements.append(elements_moved(planned(case, thrifty), evened(*case), shape))
        unbounded += least == 0 < elements[-1]
        for name in ("all", group(*case)) if least else ():
            by_group[name].append(elements[-1] / least)
    kind = "thrifty plans" if thrifty else "plans as programs have them"
    print(f"{len(drawn)} cases, {kind}: elements received over the lower bound, where there is something to receive")
    for name, found in sorted(by_group.items()):
        met = sum(ratio < 1 + 1e-9 for ratio in found) / len(found)
        mean, worst = statistics.mean(found), max(found)
        print(f"  {name:24} {len(found):6} cases  mean {mean:.4f}  worst {worst:.2f}  met {met:.1%}")
    if unbounded:
        print(f"  {unbounded} more receive something though the bound is 0")
    return elements


def main() -> None:
    """Draw, plan, run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--check", type=int, help="how many plans to run on virtual ranks; all if not given")
    parser.add_argument("--no-shardy", action="store_true", help="do not ask Shardy's passes (they need jax)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    drawn = list(cases(args.cases, SMALL, args.seed))
    elements = ratios(drawn, thrifty=False)
    ratios(drawn, thrifty=True)

    some = drawn if args.check is None else drawn[: args.check]
    wrong = [case for seed, case in enumerate(some) if not right(case, planned(case), seed)]
    differ = [(seed, case) for seed, case in enumerate(some) if planned(case, True) != planned(case)]
    wrong += [case for seed, case in differ if not right(case, planned(case, True), seed)]
    print(f"{len(some)} plans run on virtual ranks, {len(differ)} thrifty ones that differ too: {len(wrong)} wrong")
    for before, after, shape in wrong[:5]:
        print(f"  wrong: {before.mesh}: [{before}] -> [{after}] of {shape}")

    above = sum(ours > gather_and_slice(case) * (1 + 1e-9) for case, ours in zip(drawn, elements, strict=True))
    print(f"more than gathering and slicing: {above} of {len(drawn)}")
    if not args.no_shardy:
        above += above_shardy(drawn, elements)

    few = min(args.cases, 2000)
    for name, some in (("6 to 12", drawn[:few]), ("4,096", list(cases(few, LARGE, args.seed)))):
        cold, again = times(some)
        print(f"planning for {name} ranks, median: cold {cold * 1e6:.1f} us, memoized {again * 1e6:.2f} us")
    sys.exit(1 if wrong or above else 0)


if __name__ == "__main__":
    main()
