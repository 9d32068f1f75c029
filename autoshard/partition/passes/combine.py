"""Combining small collectives: those of one kind, groups and element type work on a common buffer as one.

What that saves is the latency of all but one; what it costs is copying into the buffer and out of it. So a bundle grows
as long as the hardware's latency is worth more than its memory takes for the copies. Only collectives that can be
brought to one place are combined: later ones to the place of the first, or earlier ones to that of the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.partition.passes.block import Block, Change, rewritten
from autoshard.partition.passes.costs import Costs, Setting
from autoshard.partition.program import Bundle, Collective, Program
from autoshard.partition.verify_bundles import bundle_key


def combine(program: Program, setting: Setting) -> Program:
    """The program with bundles where these take less time than their parts one by one."""
    for early in (True, False):

        def sweep(block: Block, early: bool = early) -> Sequence[Change]:
            return [_bundled(group, early) for group in _groups(block, early, setting)]

        program = rewritten(program, sweep)
    return program


def _bundled(group: Sequence[tuple[int, Collective]], early: bool) -> Change:
    places = [place for place, _ in group]
    bundle = Bundle(tuple(one for _, one in group))
    return Change(bundle.results[0].name, frozenset(places), {places[0] if early else places[-1]: (bundle,)})


def _groups(block: Block, early: bool, setting: Setting) -> Iterator[list[tuple[int, Collective]]]:
    """Collectives that can be done together, with their positions, in order; each in one group at most.

    With `early` at the place of the first, where the others' operands have to be there; else at that of the last, which
    has to come before anything reads the others' results.
    """
    open_groups: dict[tuple, list[tuple[int, Collective]]] = {}
    for place, one in enumerate(block.instructions):
        key = bundle_key(one) if isinstance(one, Collective) else None
        if key is None or not isinstance(one, Collective):
            continue
        group = open_groups.get(key, [])
        fits = group and _fits(block, group, place, one, early) and _pays(group, one, setting.costs)
        if fits and setting.ok(one.result.name):
            group.append((place, one))
            continue
        if len(group) > 1:
            yield group
        open_groups[key] = [(place, one)]
    yield from (group for group in open_groups.values() if len(group) > 1)


def _fits(block: Block, group: Sequence[tuple[int, Collective]], place: int, one: Collective, early: bool) -> bool:
    if early:
        return block.makers.get(one.operand, -1) < group[0][0]
    return all(min(block.users(other.result), default=block.end) > place for _, other in group)


def _pays(group: Sequence[tuple[int, Collective]], one: Collective, costs: Costs) -> bool:
    """Whether one more part takes less time in the bundle than on its own."""
    parts = [other for _, other in group]
    return _seconds([*parts, one], costs) < _seconds(parts, costs) + costs.of(one).talking


def _seconds(parts: Sequence[Collective], costs: Costs) -> float:
    if len(parts) == 1:
        return costs.of(parts[0]).talking
    return costs.bundled(parts) + costs.packing(parts)
