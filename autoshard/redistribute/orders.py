"""Which of the ways that receive equally much is the quickest on given links.

Gathers of several dims, and scatters, may be done in any order with the same bytes in all, but the last gather and the
first scatter move most: they belong on the fastest links.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from autoshard.layout.layout import Layout
from autoshard.redistribute.digits import apart
from autoshard.redistribute.step import Step
from autoshard.redistribute.ways import Shape, Steps, Way, effort, moved

# How many orders of steps are tried at most.
ORDERS = 24


def quickest(
    known: Steps,
    found: Iterable[Way],
    ends: tuple[Layout, Layout],
    shape: Shape,
    seconds: Callable[[Step], float],
    roomy: bool = False,
    size: Shape | None = None,
) -> Steps:
    """The quickest of the ways that receive no more elements than `known` and need no more memory.

    Of those that take equally long the one of fewest collectives; `known` if nothing is better.
    """
    least = moved(known, shape, size) * (1 + 1e-9)
    room = max(_peak(known, shape), *(end.local_size(shape) for end in ends))
    chosen, least_key = known, (_total(known, seconds), effort(known))
    for way in found:
        steps = way.steps(shape)
        if steps is None or moved(steps, shape, size) > least:
            continue
        for one in orders(steps):
            key = _total(one, seconds), effort(one)
            fits = roomy or _peak(one, shape) <= room
            if key < least_key and fits and moved(one, shape, size) <= least:
                chosen, least_key = one, key
    return chosen


def orders(steps: Steps) -> Iterator[Steps]:
    """The steps with neighbouring gathers of different dims in every order, and neighbouring scatters likewise."""
    runs = [tuple(run) for _, run in itertools.groupby(steps, key=lambda step: _class_of(step, steps))]
    choices = (itertools.permutations(run) if _reorders(run) else [run] for run in runs)
    for picked in itertools.islice(itertools.product(*choices), ORDERS):
        yield tuple(_chained(steps[0].before, itertools.chain(*picked))) if steps else ()


def _class_of(step: Step, steps: Steps) -> object:
    return step.kind if step.kind in ("all_gather", "reduce_scatter") else steps.index(step)


def _reorders(run: tuple[Step, ...]) -> bool:
    return len(run) > 1 and len({step.dim for step in run}) == len(run)


def _chained(now: Layout, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps one after the other, each from where the one before it led."""
    for step in steps:
        if step.before is now:
            after = step.after
        else:
            assert step.dim is not None, f"{step} gathers or scatters a dim"
            left = apart(now.partial, step.axes) if step.kind == "reduce_scatter" else now.partial
            after = Layout(now.mesh, now.dims, left, now.reduction).with_dim(step.dim, step.after.dims[step.dim])
            step = Step(step.kind, now, after, step.axes, step.dim)
        yield step
        now = after


def _total(steps: Steps, seconds: Callable[[Step], float]) -> float:
    return sum(seconds(step) for step in steps)


def _peak(steps: Steps, shape: Shape) -> int:
    return max((step.after.local_size(shape) for step in steps), default=0)
