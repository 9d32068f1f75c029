"""Redistribution: from one layout of a tensor to another, as the steps that move the fewest bytes.

`plan_steps(before, after, shape)` is memoized and symbolic in the mesh size. It searches (A*) over layouts built from
the common pieces of both ends; the normal form of search_and_cost_notes 6.2 (cut, exchange, join) falls out, because
cutting first makes all that follows smaller. Terms of a sum that should end up split leave by reduce_scatter.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from autoshard.errors import RedistributeError
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, merge_refs, size_of
from autoshard.redistribute.step import Step, relabel_pairs

Dims = tuple[Refs, ...]
State = tuple[Dims, Refs]


def plan_steps(before: Layout, after: Layout, shape: Sequence[int]) -> tuple[Step, ...]:
    """The steps from `before` to `after` for a tensor of global `shape`; () if they are the same.

    Raises:
        RedistributeError: other meshes, reductions or ranks, or sizes that a layout does not divide.
    """
    return () if before is after else _plan(before, after, tuple(shape))


@lru_cache(maxsize=1 << 18)
def _plan(before: Layout, after: Layout, shape: tuple[int, ...]) -> tuple[Step, ...]:
    _check(before, after, shape)
    return _simple(before, after) or _Search(before, after, shape).run()


def _check(before: Layout, after: Layout, shape: tuple[int, ...]) -> None:
    asked = f"cannot redistribute {list(shape)} from [{before}] to [{after}]"
    if before.mesh is not after.mesh:
        raise RedistributeError(f"{asked}: their meshes '{before.mesh}' and '{after.mesh}' differ")
    if before.partial and after.partial and before.reduction != after.reduction:
        raise RedistributeError(f"{asked}: a {before.reduction} cannot become a {after.reduction}")
    if after.partial and after.reduction != "sum" and set(after.partial) - set(before.partial):
        raise RedistributeError(f"{asked}: terms of a {after.reduction} cannot be made from whole values")
    for layout in (before, after):
        layout.check_fits(shape, "the tensor")
        if not layout.divides(shape):
            raise RedistributeError(f"{asked}: [{layout}] does not divide the sizes {list(shape)}")


def is_cut(before: Layout, after: Layout) -> bool:
    """Whether `after` follows by local cuts alone."""
    return before.partial == after.partial and all(
        _starts_with(new, old) for old, new in zip(before.dims, after.dims, strict=True)
    )


def _starts_with(refs: Refs, prefix: Refs) -> bool:
    """Whether `prefix` are the major pieces of `refs` (the last one possibly a part of one)."""
    if len(prefix) > len(refs):
        return False
    if refs[: len(prefix)] == prefix:
        return True
    return refs[: len(prefix) - 1] == prefix[:-1] and prefix[-1].prefix_of(refs[len(prefix) - 1])


def without_prefix(refs: Refs, prefix: Refs) -> Refs:
    """What `refs` has behind its major pieces `prefix`."""
    if not prefix:
        return refs
    last, covering = prefix[-1], refs[len(prefix) - 1]
    rest = () if covering == last else (AxisRef(last.name, last.next, covering.next // last.next),)
    return rest + refs[len(prefix) :]


def _simple(before: Layout, after: Layout) -> tuple[Step, ...]:
    """The usual cases, without a search: cuts alone, or one all_reduce."""
    if is_cut(before, after):
        return tuple(_cuts(before, after))
    if before.dims == after.dims and not after.partial:
        return (Step("all_reduce", before, after, before.partial),)
    return ()


def _cuts(before: Layout, after: Layout) -> Iterator[Step]:
    dims = list(before.dims)
    for dim, refs in enumerate(after.dims):
        added = without_prefix(refs, dims[dim])
        if added:
            now = before.with_dims(dims)
            dims[dim] = refs
            yield Step("slice", now, before.with_dims(dims), added, dim)


class _Search:
    """A* from one layout to another over states (axes per dim, partial axes), all made of common pieces."""

    def __init__(self, before: Layout, after: Layout, shape: tuple[int, ...]) -> None:
        self.before, self.after, self.shape = before, after, shape
        cut = _cutter(before, after)
        self.start: State = (tuple(map(cut, before.dims)), cut(before.partial))
        self.goal: State = (tuple(map(cut, after.dims)), cut(after.partial))
        self.elements = math.prod(shape)
        self.reduction = before.reduction if before.partial else after.reduction

    def run(self) -> tuple[Step, ...]:
        counter = itertools.count()
        queue: list[tuple] = [(self.bound(self.start), 0.0, 0, next(counter), self.start)]
        best: dict[State, tuple[float, int]] = {self.start: (0.0, 0)}
        came: dict[State, tuple[State, tuple]] = {}
        while queue:
            _, moved, count, _, state = heapq.heappop(queue)
            if state == self.goal:
                return self.steps(came)
            if best[state] < (moved, count):
                continue
            for move, nxt, cost in self.moves(state):
                reached = (moved + cost, count + 1)
                if nxt not in best or reached < best[nxt]:
                    best[nxt] = reached
                    came[nxt] = (state, move)
                    heapq.heappush(queue, (reached[0] + self.bound(nxt), *reached, next(counter), nxt))
        raise RedistributeError(f"no way from [{self.before}] to [{self.after}] for sizes {list(self.shape)}")

    def local(self, dims: Dims) -> float:
        return self.elements / math.prod(size_of(refs) for refs in dims)

    def bound(self, state: State) -> float:
        """What must still be received at least: the wanted block less the largest part of it that a rank may hold."""
        dims, partial = state
        if partial != self.goal[1]:
            return 0.0
        wanted = self.local(self.goal[0])
        held = wanted
        for refs, target in zip(dims, self.goal[0], strict=True):
            common = 0
            while common < min(len(refs), len(target)) and refs[common] == target[common]:
                common += 1
            held /= size_of(refs[common:])
        return max(0.0, wanted - max(held, 0.0)) if held < wanted else 0.0

    def moves(self, state: State) -> Iterator[tuple[tuple, State, float]]:
        dims, partial = state
        local = self.local(dims)
        goal_dims, goal_partial = self.goal
        used = {ref for refs in dims for ref in refs} | set(partial)
        for i, refs in enumerate(dims):
            missing = self.missing(refs, i)
            if missing and missing[0] not in used:
                count = next((k for k, ref in enumerate(missing) if ref in used), len(missing))
                yield self.put("slice", state, i, missing[:count], 0.0)
            if missing and missing[0] in partial:
                count = next((k for k, ref in enumerate(missing) if ref not in partial), len(missing))
                scattered = missing[:count]
                left = tuple(ref for ref in partial if ref not in scattered)
                n = size_of(scattered)
                step = self.put("reduce_scatter", (dims, left), i, scattered, (n - 1) / n * local)
                yield step
        ending = tuple(ref for ref in partial if ref not in goal_partial)
        for terms in {ending, *((ref,) for ref in ending)}:
            if terms:
                n = size_of(terms)
                left = tuple(ref for ref in partial if ref not in terms)
                yield ("all_reduce", terms, None, None), (dims, left), 2 * (n - 1) / n * local
        starting = tuple(ref for ref in goal_partial if ref not in used)
        if starting:
            terms = tuple(sorted(partial + starting, key=self.before.mesh.sort_key))
            yield ("keep", starting, None, None), (dims, terms), 0.0
        yield from self.joins(state, local)
        yield from self.permutes(state, local)

    def missing(self, refs: Refs, dim: int) -> Refs:
        """What a dim still lacks when it holds the major pieces of its goal; () when it holds something else."""
        target = self.goal[0][dim]
        return target[len(refs) :] if target[: len(refs)] == refs else ()

    def put(self, kind: str, state: State, dim: int, added: Refs, cost: float) -> tuple[tuple, State, float]:
        dims, partial = state
        after = dims[:dim] + (dims[dim] + added,) + dims[dim + 1 :]
        return (kind, added, dim, None), (after, partial), cost

    def joins(self, state: State, local: float) -> Iterator[tuple[tuple, State, float]]:
        """all_gather and all_to_all: the minor pieces of a dim leave it."""
        dims, partial = state
        for i, refs in enumerate(dims):
            keep = 0
            while keep < min(len(refs), len(self.goal[0][i])) and refs[keep] == self.goal[0][i][keep]:
                keep += 1
            for start in range(len(refs)):
                leaving = refs[start:]
                n = size_of(leaving)
                shorter = dims[:i] + (refs[:start],) + dims[i + 1 :]
                if start >= keep or self.goal[0][i] != refs:
                    yield ("all_gather", leaving, i, None), (shorter, partial), (n - 1) * local
                for j, other in enumerate(shorter):
                    lacking = self.missing(other, j)
                    if j == i or lacking[: len(leaving)] != leaving:
                        continue
                    if self.shape[j] % (size_of(other) * n):
                        continue
                    longer = shorter[:j] + (other + leaving,) + shorter[j + 1 :]
                    yield ("all_to_all", leaving, j, i), (longer, partial), (n - 1) / n * local

    def permutes(self, state: State, local: float) -> Iterator[tuple[tuple, State, float]]:
        """Relabelings that bring dims nearer to the goal: reorder a dim, or trade its pieces for the wanted ones."""
        dims, partial = state
        for wanted in {self.reordered(dims), self.traded(dims)}:
            if wanted is None or wanted == dims or any(ref in partial for refs in wanted for ref in refs):
                continue
            flat = [ref for refs in wanted for ref in refs]
            if len(flat) != len(set(flat)):
                continue
            pairs = relabel_pairs(self.layout((dims, ())), self.layout((wanted, ())))
            if pairs is not None and not any(ref in partial for pair in pairs for ref in pair):
                axes = tuple(sorted({ref for pair in pairs for ref in pair}, key=self.before.mesh.sort_key))
                yield ("permute", axes, None, None), (wanted, partial), local

    def reordered(self, dims: Dims) -> Dims:
        """Each dim with the pieces that its goal begins with in front."""
        new = []
        for refs, target in zip(dims, self.goal[0], strict=True):
            front = list(itertools.takewhile(lambda ref, refs=refs: ref in refs, target))
            new.append((*front, *(ref for ref in refs if ref not in front)))
        return tuple(new)

    def traded(self, dims: Dims) -> Dims | None:
        """Each dim with its goal's major pieces in place of its own, where that makes as many parts."""
        new = []
        for refs, target in zip(dims, self.goal[0], strict=True):
            parts, count = size_of(refs), 0
            while count < len(target) and size_of(target[: count + 1]) <= parts:
                count += 1
            new.append(target[:count] if size_of(target[:count]) == parts else refs)
        return tuple(new)

    def layout(self, state: State) -> Layout:
        return Layout(self.before.mesh, state[0], state[1], self.reduction)

    def steps(self, came: dict[State, tuple[State, tuple]]) -> tuple[Step, ...]:
        state, steps = self.goal, []
        while state != self.start:
            state, move = came[state][0], (state, came[state][1])
            after, (kind, axes, dim, to_dim) = move
            steps.append(Step(kind, self.layout(state), self.layout(after), merge_refs(axes), dim, to_dim))
        return tuple(reversed(steps))


def _cutter(before: Layout, after: Layout):
    """A function that cuts refs at every place where a ref of either layout begins or ends."""
    places: dict[str, set[int]] = {}
    for ref in (*before.used, *after.used):
        places.setdefault(ref.name, set()).update((ref.pre, ref.next))
    for name, cuts in places.items():
        ordered = sorted(cuts)
        if any(high % low for low, high in itertools.pairwise(ordered)):
            raise RedistributeError(
                f"[{before}] and [{after}] cut axis {name} at {ordered}, which no one splitting of the axis holds"
            )

    def cut(refs: Refs) -> Refs:
        pieces = []
        for ref in refs:
            bounds = sorted(place for place in places[ref.name] if ref.pre <= place <= ref.next)
            pieces += [AxisRef(ref.name, low, high // low) for low, high in itertools.pairwise(bounds)]
        return tuple(pieces)

    return cut
