"""A* over layouts: the steps from one layout to another that move the fewest bytes, of those the moves offer.

States are layouts made of the common pieces of both ends. A normal form (cut, exchange, join; Rink et al.,
"Memory-efficient array redistribution through portable collective communication") falls out, because cutting
first makes all that follows smaller. Nothing depends on the order of a set: all ranks of a run find the same
steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator

from autoshard.errors import RedistributeError
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Mesh, merge_refs, size_of
from autoshard.redistribute.step import Step, cutter, relabel_pairs

Dims = tuple[Refs, ...]
State = tuple[Dims, Refs]
Move = tuple[str, Refs, int | None, int | None]


def search_steps(before: Layout, after: Layout, shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The steps with the fewest elements moved, of these the fewest steps.

    Both layouts must divide `shape` and split every axis at places that one splitting of it holds.

    Raises:
        RedistributeError: no steps lead from one to the other.
    """
    cut = cutter(before, after)
    if cut is None:
        raise RedistributeError(f"[{before}] and [{after}] cut an axis at places that no one splitting of it holds")
    return _Search(before, after, shape, cut).run()


class _Search:
    """One search; a state is (axes per dim, partial axes)."""

    def __init__(self, before: Layout, after: Layout, shape: tuple[int, ...], cut: Callable[[Refs], Refs]) -> None:
        self.mesh: Mesh = before.mesh
        self.before, self.after, self.shape = before, after, shape
        self.start: State = (tuple(map(cut, before.dims)), cut(before.partial))
        self.goal: State = (tuple(map(cut, after.dims)), cut(after.partial))
        self.elements = math.prod(shape)
        self.wanted = self.local(self.goal[0])
        self.reduction = before.reduction if before.partial else after.reduction

    def run(self) -> tuple[Step, ...]:
        counter = itertools.count()
        queue: list[tuple] = [(self.bound(self.start), 0, next(counter), 0.0, self.start)]
        best: dict[State, tuple[float, int]] = {self.start: (0.0, 0)}
        came: dict[State, tuple[State, Move]] = {}
        while queue:
            _, count, _, moved, state = heapq.heappop(queue)
            if state == self.goal:
                return self.steps(came)
            if best[state] < (moved, count):
                continue
            for move, nxt, cost in self.moves(state):
                reached = (moved + cost, count + 1)
                if nxt not in best or reached < best[nxt]:
                    best[nxt] = reached
                    came[nxt] = (state, move)
                    heapq.heappush(queue, (reached[0] + self.bound(nxt), count + 1, next(counter), reached[0], nxt))
        raise RedistributeError(f"no way from [{self.before}] to [{self.after}] for sizes {list(self.shape)}")

    def local(self, dims: Dims) -> float:
        return self.elements / math.prod(map(size_of, dims))

    def bound(self, state: State) -> float:
        """What some rank must still receive at least.

        Terms that end, or pieces of a dim to be traded for others: some rank holds nothing final of its
        wanted block. Else every rank holds the same share of it.
        """
        dims, partial = state
        if any(ref not in self.goal[1] for ref in partial):
            return self.wanted
        surplus = 1
        for refs, target in zip(dims, self.goal[0], strict=True):
            if refs == target:
                continue
            common = _common(refs, target)
            if common < len(refs) and common < len(target):
                return self.wanted
            surplus *= size_of(refs[common:])
        return self.wanted * (1 - 1 / surplus)

    def moves(self, state: State) -> Iterator[tuple[Move, State, float]]:
        dims, partial = state
        local = self.local(dims)
        used = {ref for refs in dims for ref in refs} | set(partial)
        yield from self.cuts(state, used, local)
        yield from self.reductions(state, used, local)
        yield from self.joins(state, local)
        yield from self.permutes(state, local)

    def cuts(self, state: State, used: set, local: float) -> Iterator[tuple[Move, State, float]]:
        """slice and reduce_scatter: a dim is split further, towards its goal."""
        dims, partial = state
        for i, (refs, target) in enumerate(zip(dims, self.goal[0], strict=True)):
            common = _common(refs, target)
            missing = target[common:]
            if common < len(refs):
                yield from self.ahead(state, i, missing, used)
                continue
            free = tuple(itertools.takewhile(lambda ref: ref not in used, missing))
            if free:
                yield ("slice", free, i, None), (_put(dims, i, refs + free), partial), 0.0
            terms = tuple(itertools.takewhile(lambda ref: ref in partial, missing))
            if terms:
                left = tuple(ref for ref in partial if ref not in terms)
                n = size_of(terms)
                cost = (n - 1) / n * local
                yield ("reduce_scatter", terms, i, None), (_put(dims, i, refs + terms), left), cost

    def ahead(self, state: State, dim: int, missing: Refs, used: set) -> Iterator[tuple[Move, State, float]]:
        """Cut a dim by its goal's pieces before its own can leave; a permute brings them to the front."""
        dims, partial = state
        free = tuple(ref for ref in missing if ref not in used)
        longer = dims[dim] + free
        if free and self.shape[dim] % size_of(longer) == 0:
            yield ("slice", free, dim, None), (_put(dims, dim, longer), partial), 0.0

    def reductions(self, state: State, used: set, local: float) -> Iterator[tuple[Move, State, float]]:
        """all_reduce of the terms that end, keep for those that begin."""
        dims, partial = state
        ending = tuple(ref for ref in partial if ref not in self.goal[1])
        for terms in dict.fromkeys((ending, *((ref,) for ref in ending))) if ending else ():
            n = size_of(terms)
            left = tuple(ref for ref in partial if ref not in terms)
            yield ("all_reduce", terms, None, None), (dims, left), 2 * (n - 1) / n * local
        starting = tuple(ref for ref in self.goal[1] if ref not in used)
        if starting:
            terms = tuple(sorted(partial + starting, key=self.mesh.sort_key))
            yield ("keep", starting, None, None), (dims, terms), 0.0

    def joins(self, state: State, local: float) -> Iterator[tuple[Move, State, float]]:
        """all_gather and all_to_all: the minor pieces of a dim leave it."""
        dims, partial = state
        for i, (refs, target) in enumerate(zip(dims, self.goal[0], strict=True)):
            for start in range(len(refs)):
                leaving = refs[start:]
                n = size_of(leaving)
                shorter = _put(dims, i, refs[:start])
                if refs != target:
                    yield ("all_gather", leaving, i, None), (shorter, partial), (n - 1) * local
                for j, other in enumerate(dims):
                    if j == i or self.goal[0][j][: len(other) + len(leaving)] != other + leaving:
                        continue
                    longer = _put(shorter, j, other + leaving)
                    yield ("all_to_all", leaving, j, i), (longer, partial), (n - 1) / n * local

    def permutes(self, state: State, local: float) -> Iterator[tuple[Move, State, float]]:
        """Relabelings that bring dims nearer to the goal: reorder a dim, trade its pieces for wanted ones."""
        dims, partial = state
        for wanted in dict.fromkeys((self.reordered(dims), self.traded(dims))):
            flat = [ref for refs in wanted for ref in refs]
            if wanted == dims or len(flat) != len(set(flat)) or any(ref in partial for ref in flat):
                continue
            pairs = relabel_pairs(self.layout((dims, ())), self.layout((wanted, ())))
            assert pairs is not None, "both have as many parts in every dim"
            axes = sorted({ref for olds, _ in pairs for ref in olds}, key=self.mesh.sort_key)
            yield ("permute", tuple(axes), None, None), (wanted, partial), local

    def reordered(self, dims: Dims) -> Dims:
        """Each dim with the pieces that its goal begins with in front."""
        new = []
        for refs, target in zip(dims, self.goal[0], strict=True):
            front = tuple(itertools.takewhile(lambda ref, refs=refs: ref in refs, target))
            new.append(front + tuple(ref for ref in refs if ref not in front))
        return tuple(new)

    def traded(self, dims: Dims) -> Dims:
        """Each dim with its goal's major pieces in place of its own, where that makes as many parts."""
        new = []
        for refs, target in zip(dims, self.goal[0], strict=True):
            parts, count = size_of(refs), 0
            while count < len(target) and size_of(target[: count + 1]) <= parts:
                count += 1
            new.append(target[:count] if size_of(target[:count]) == parts else refs)
        return tuple(new)

    def layout(self, state: State) -> Layout:
        return Layout(self.mesh, state[0], state[1], self.reduction)

    def steps(self, came: dict[State, tuple[State, Move]]) -> tuple[Step, ...]:
        state, after, steps = self.goal, self.after, []
        while state != self.start:
            state, (kind, axes, dim, to_dim) = came[state]
            before = self.layout(state)
            steps.append(Step(kind, before, after, merge_refs(axes), dim, to_dim))
            after = before
        return tuple(reversed(steps))


def _common(refs: Refs, target: Refs) -> int:
    """How many major pieces two lists share."""
    count = 0
    for ref, other in zip(refs, target, strict=False):
        if ref != other:
            break
        count += 1
    return count


def _put(dims: Dims, dim: int, refs: Refs) -> Dims:
    return dims[:dim] + (refs,) + dims[dim + 1 :]
