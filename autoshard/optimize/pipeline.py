"""The passes in order, each kept to little more memory than the program took before: `optimize(program, hardware)`.

A pass asks before each place that it would change; where all it does takes too much memory, places are refused until
the rest fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from autoshard.cost.instructions import Costs, Setting
from autoshard.cost.timeline import step_seconds
from autoshard.ir.graph import Node
from autoshard.optimize.chains import chains
from autoshard.optimize.combine import combine
from autoshard.optimize.defer import defer
from autoshard.optimize.overlap import overlap
from autoshard.optimize.relayout import move
from autoshard.optimize.share import share
from autoshard.partition.program import Program
from autoshard.util.errors import PlanError
from autoshard.util.gc_paused import gc_paused
from costmodel import Hardware

Run = Callable[[Program, Setting], Program]

PASSES: Mapping[str, Run] = {
    "share": share,
    "chains": chains,
    "move": move,
    "share again": share,
    "defer": defer,
    "combine": combine,
    "overlap": overlap,
}
"""The passes by name, in the order in which they run."""

DEFAULT = tuple(name for name in PASSES if name != "overlap")
"""What runs unless something else is asked for. Where ranks share processors, as MPI ranks of one machine do, what
collectives do beside computing is taken from it: overlap has to be asked for."""

MORE_MEMORY, BUCKET = 1.05, 25 * 2**20
"""How many times the peak memory that a program takes without passes it may take with them, unless a limit says less;
and how many bytes more at least from "combine" on, for common buffers of collectives: as many as each bucket of PyTorch
DDP has (`bucket_cap_mb`)."""
ATTEMPTS = 32
"""How often a pass is tried at some of its places before it is left at those that fit."""
HALVED = 5
"""How many sizes of common buffers are tried."""
LARGE = 250
"""From how many instructions on it is tried less often, so that time grows no faster than programs do."""


@dataclass(frozen=True)
class Measure:
    """What a program takes in one step on one device: bytes sent, messages, peak memory, predicted seconds.

    `seconds` is one thing after the other, `overlapped_seconds` what the timeline says where collectives run beside
    operators.
    """

    nbytes: float
    collectives: int
    peak: int
    seconds: float
    overlapped_seconds: float


@dataclass(frozen=True)
class Saving:
    """What one pass did: the program before and after it."""

    name: str
    before: Measure
    after: Measure

    @property
    def nbytes(self) -> float:
        return self.before.nbytes - self.after.nbytes

    @property
    def collectives(self) -> int:
        return self.before.collectives - self.after.collectives

    @property
    def peak(self) -> int:
        return self.before.peak - self.after.peak

    @property
    def seconds(self) -> float:
        """Of the timeline with overlap."""
        return self.before.overlapped_seconds - self.after.overlapped_seconds


@gc_paused()
def optimize(
    program: Program,
    hardware: Hardware,
    passes: Iterable[str] = DEFAULT,
    *,
    more_memory: float = MORE_MEMORY,
    bucket: int = BUCKET,
    limit: int | None = None,
    fixed: Collection[Node] = frozenset(),
) -> tuple[Program, tuple[Saving, ...]]:
    """The program after the passes, and what each saved.

    Args:
        hardware: whose times decide, made for the program's number of ranks.
        passes: names of `PASSES`, to be run in this order.
        more_memory: how many times the present peak memory the program may take afterwards.
        bucket: how many bytes more than at present it may take in any case from "combine" on.
        limit: bytes above which it must not take more than at present; by default what a device has.
        fixed: operators that stay split as they are, and whose results are left as they are: somebody asked for it.

    Raises:
        PlanError: there is no such pass.
    """
    passes = check_passes(passes)
    costs = Costs(hardware)
    found = measure(program, costs)
    least, room = found.peak, int(found.peak * more_memory)
    most = hardware.device.memory_bytes if limit is None else limit
    savings = []
    for name in passes:
        if name == "combine":
            room = max(room, least + bucket)
        room = max(least, min(room, most))
        before, changed = found, within(PASSES[name], program, Setting(costs, fixed=fixed), room)
        if changed is not program:
            program, found = changed, measure(changed, costs)
        savings.append(Saving(name, before, found))
    return program, tuple(savings)


@gc_paused()
def optimize_freely(
    program: Program, hardware: Hardware, passes: Iterable[str] = DEFAULT, fixed: Collection[Node] = frozenset()
) -> Program:
    """The program that `optimize` made if memory had no end, without measuring what each pass saves: that takes longer.

    Raises:
        PlanError: there is no such pass.
    """
    costs = Costs(hardware)
    for name in check_passes(passes):
        program = PASSES[name](program, Setting(costs, fixed=fixed))
    return program


def check_passes(names: Iterable[str]) -> tuple[str, ...]:
    """The names.

    Raises:
        PlanError: there is no such pass.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in PASSES:
            raise PlanError(f"there is no pass {name!r}; passes are {', '.join(map(repr, PASSES))}")
    return names


def measure(program: Program, costs: Costs) -> Measure:
    """What the program takes."""
    total = costs.total(program.instructions)
    ahead = step_seconds(program, costs)
    return Measure(total.nbytes, round(total.collectives), costs.peak(program), total.seconds, ahead)


def within(run: Run, program: Program, setting: Setting, room: int) -> Program:
    """What a pass makes of the program, as far as it fits into `room` bytes.

    Places are tried together. Where that does not fit, common buffers are kept small, or places are refused, whichever
    leads to less time.
    """
    asked: dict[str, None] = {}
    best = run(program, replace(setting, ok=lambda name: asked.setdefault(name) is None))
    costs = setting.costs
    if best is program or costs.peak(best) <= room:
        return best
    small = _in_small_buffers(run, program, setting, room, costs.peak(best))
    found = [_in_places(run, program, setting, room, tuple(asked)), *small]
    return min(found, key=lambda one: costs.total(one.instructions).seconds)


def _in_small_buffers(run: Run, program: Program, setting: Setting, room: int, last: int) -> Iterator[Program]:
    """The same with common buffers of what room is left, or of half, a quarter, ... of it: several may be held at a
    time. The first that fits; none where none does, or smaller ones do not take less than the `last` bytes: the pass
    has none."""
    left = room - setting.costs.peak(program)
    for buffer in (left >> halved for halved in range(HALVED)):
        small = run(program, replace(setting, buffer=buffer))
        if small is program or (peak := setting.costs.peak(small)) >= last:
            return
        if peak <= room:
            yield small
            return
        last = peak


def _in_places(run: Run, program: Program, setting: Setting, room: int, asked: tuple[str, ...]) -> Program:
    """The same by refusing places: those with which it does not fit are tried in halves, one half after the other."""
    best, allowed, left = program, frozenset[str](), [asked]
    for _ in range(max(2, min(ATTEMPTS, ATTEMPTS * LARGE // len(program.instructions)))):
        some = left.pop()
        if len(some) > 1:
            half = len(some) // 2
            left += [some[half:], some[:half]]
            some = left.pop()
        found = run(program, replace(setting, ok=allowed.union(some).__contains__))
        if setting.costs.peak(found) <= room:
            best, allowed = found, allowed.union(some)
        elif len(some) > 1:
            left.append(some)
        if not left:
            break
    return best
