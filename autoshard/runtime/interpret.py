"""The interpreter: one loop that runs a program over any Comm, all ranks in this process or one rank of many.

A program is bound to a Comm once (`Executor`): the ranks make sure that theirs are alike, registers become slots,
attributes are resolved for the hosted ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Nest,
    NestBody,
    Program,
    Register,
    Start,
    Wait,
    walk,
)
from autoshard.runtime.agree import check_alike, label
from autoshard.runtime.array import array_dtype, cut, join
from autoshard.runtime.begun import Finish, at_once, beginner
from autoshard.runtime.blocks import Run, run_nest
from autoshard.runtime.comm import Comm
from autoshard.runtime.computing import bind_compute
from autoshard.runtime.moving import step_runner, sum_in_halves, sums_to_begin
from autoshard.runtime.together import run_together
from autoshard.util.errors import RuntimeSetupError

Parts = list[np.ndarray]
Action = tuple[int, Callable[[list], None]]
"""The number of the operator for whoever watches the rank, and what runs it."""


class Executor:
    """A program ready to run on the ranks that `comm` hosts.

    Raises:
        RuntimeSetupError: the program is for another number of ranks, or not the same on all of them.
    """

    def __init__(self, program: Program, comm: Comm) -> None:
        if comm.world != program.mesh.devices:
            raise RuntimeSetupError(
                f"program {program.name!r} is for {program.mesh.devices} ranks (mesh {program.mesh}), "
                f"but {comm.world} run; start it with: autoshard run -n {program.mesh.devices} ..."
            )
        check_alike(program, comm)
        self.program, self.comm = program, comm
        self.times: memoryview | None = None
        """Where each outer instruction's begin and end are recorded, in nanoseconds; None: nowhere."""
        self._slots: dict[Register, int] = {}
        for register in (*program.inputs, *_registers(program.instructions)):
            self._slots.setdefault(register, len(self._slots))
        self._running: dict[Start, Finish] = {}
        self._running_now = comm.running
        self._overlaps = any(isinstance(one, Start) for one in walk(program.instructions))
        self._results = self._places(program.outputs)
        self._padded = any(register.size is not None for register in self._slots)
        self._kept = set(program.inputs).difference(program.inputs[into] for into in program.updates.values())
        self._actions = self._bound(program.instructions, program.last_uses, self._kept)
        self._begin_sums()

    @property
    def moments(self) -> int:
        """How many outer instructions a run has: of each `times` holds a begin and an end."""
        return len(self.program.instructions)

    def scatter(self, arrays: Sequence[np.ndarray]) -> list[Parts]:
        """Cut whole inputs into the blocks of the hosted ranks, after checking that they fit the program."""
        if len(arrays) != len(self.program.inputs):
            raise RuntimeSetupError(
                f"program {self.program.name!r} takes {len(self.program.inputs)} inputs, not {len(arrays)}"
            )
        parts = []
        for array, register in zip(arrays, self.program.inputs, strict=True):
            array = np.asarray(array)
            if array.shape != register.true.shape:
                raise RuntimeSetupError(
                    f"input {register.name} has shape {array.shape}; the program expects {register.true}"
                )
            array = array.astype(array_dtype(register.whole.dtype), copy=False)
            parts.append(cut(array, register.layout, self.comm.ranks, register.whole.shape))
        return parts

    def gather(self, parts: Sequence[Parts]) -> list[np.ndarray]:
        """Put outputs together: whole arrays, on every rank."""
        return [
            join(held, register.layout, register.true.shape, self.comm, register.whole.shape)
            for held, register in zip(parts, self.program.outputs, strict=True)
        ]

    def run(self, inputs: Sequence[Parts]) -> list[Parts]:
        """Blocks in, blocks out: per input (output) one array per hosted rank."""
        return self.consume(list(inputs))

    def consume(self, inputs: list[Parts]) -> list[Parts]:
        """`run`, which empties the list: what updates replace is let go at its last use, if nobody else holds it."""
        self._running.clear()  # what a run that failed has left
        slots: list[Any] = [*inputs, *(None,) * (len(self._slots) - len(inputs))]
        inputs.clear()
        run = self._run if self.times is None else self._play_timed
        if self._padded:  # numpy's warnings would speak of padding, which no result depends on
            with np.errstate(all="ignore"):
                run(self._actions, slots)
        else:
            run(self._actions, slots)
        self.comm.at(None)
        return [slots[slot] for slot in self._results]

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Whole arrays in, whole arrays out."""
        return self.gather(self.run(self.scatter(arrays)))

    def _run(self, actions: Sequence[Action], slots: list) -> None:
        """Run the outer instructions."""
        self._play(actions, slots)

    def _play(self, actions: Sequence[Action], slots: list) -> None:
        running = self._running_now
        for place, action in actions:
            running[0] = place
            action(slots)

    def _play_timed(self, actions: Sequence[Action], slots: list) -> None:
        """`_play`, with the begin and end of each action."""
        running, now, times = self._running_now, perf_counter_ns, self.times
        assert times is not None, "there is somewhere to record"
        times[:] = memoryview(bytes(times.nbytes)).cast("q")
        for i, (place, action) in enumerate(actions):
            running[0] = place
            times[2 * i] = now()
            action(slots)
            times[2 * i + 1] = now()

    def _bound(
        self, instructions: Sequence[Instruction], last_uses: Sequence[Iterable[Register]], kept: Collection[Register]
    ) -> list[Action]:
        """The instructions of one block as actions; what they use last is let go, but for `kept`."""
        actions = []
        for instruction, ending in zip(instructions, last_uses, strict=True):
            ending = [one for one in ending if one not in kept]
            actions.append((self.comm.place(label(instruction)) or 0, self._bind(instruction, ending)))
        return actions

    def _bind(self, instruction: Instruction, ending: Collection[Register]) -> Callable[[list], None]:
        if isinstance(instruction, Compute):
            return self._bind_compute(instruction, ending)
        free = self._places(ending)
        if isinstance(instruction, Collective):
            return self._bind_collective(instruction, free)
        if isinstance(instruction, Nest):
            return self._bind_nest(instruction, free)
        if isinstance(instruction, ManualCollective):
            return self._bind_together(instruction, free)
        if isinstance(instruction, Bundle):
            return self._bind_bundle(instruction, free)
        if isinstance(instruction, Start):
            return self._bind_start(instruction)
        return self._bind_wait(instruction, free)

    def _bind_bundle(self, bundle: Bundle, free: list[int]) -> Callable[[list], None]:
        run = at_once(bundle, self.comm)
        operands, results = self._places(bundle.operands), self._places(bundle.results)

        def action(slots: list) -> None:
            _put(slots, results, run([slots[slot] for slot in operands]), free)

        return action

    def _bind_start(self, start: Start) -> Callable[[list], None]:
        begin, operands, comm, running = beginner(start.of), self._places(start.operands), self.comm, self._running

        def action(slots: list) -> None:
            running[start] = begin([slots[slot] for slot in operands], comm)

        return action

    def _bind_wait(self, wait: Wait, free: list[int]) -> Callable[[list], None]:
        results, running = self._places(wait.results), self._running

        def action(slots: list) -> None:
            _put(slots, results, running.pop(wait.start)(), free)

        return action

    def _bind_together(self, instruction: ManualCollective, free: list[int]) -> Callable[[list], None]:
        operands, results = self._places(instruction.operands), self._places(instruction.results)
        comm = self.comm

        def action(slots: list) -> None:
            made = run_together(instruction, [slots[slot] for slot in operands], comm)
            _put(slots, results, made, free)

        return action

    def _bind_nest(self, nest: Nest, free: list[int]) -> Callable[[list], None]:
        entering, results = self._places(nest.entering), self._places(nest.results)
        bodies = [self._bind_body(body) for body in nest.bodies]
        place, comm = self.comm.place(label(nest)), self.comm

        def action(slots: list) -> None:
            made = run_nest(nest, bodies, slots, [slots[slot] for slot in entering], comm)
            comm.at(place)
            _put(slots, results, made, free)

        return action

    def _bind_body(self, body: NestBody) -> Run:
        """A body on the slots of the program; it leaves nothing of its own in them."""
        args, outputs = self._places(body.args), self._places(body.outputs)
        actions = self._bound(body.instructions, body.last_uses, ())
        own = sorted({*args, *outputs}.difference(self._places(body.captured)))

        def run(slots: list, parts: Sequence[Parts]) -> list[Parts]:
            for slot, one in zip(args, parts, strict=True):
                slots[slot] = one
            self._play(actions, slots)
            made = [slots[slot] for slot in outputs]
            for slot in own:
                slots[slot] = None
            return made

        return run

    def _places(self, registers: Iterable[Register]) -> list[int]:
        return [self._slots[one] for one in registers]

    def _bind_collective(self, instruction: Collective, free: list[int]) -> Callable[[list], None]:
        run = step_runner(instruction, self.comm)
        source, target = self._slots[instruction.operand], self._slots[instruction.result]

        def action(slots: list) -> None:
            slots[target] = run(slots[source])
            for slot in free:
                slots[slot] = None

        return action

    def _begin_sums(self) -> None:
        """Sums of few numbers, such as a loss, begin with the first collective behind their terms: when ranks come to
        such a sum all have met since, and none waits for it."""
        for at, before in sums_to_begin(self.program.instructions).items():
            one = self.program.instructions[at]
            assert isinstance(one, Collective)
            halves = sum_in_halves(one, self.comm)
            if halves is not None:
                begin, finish = halves
                self._actions[before] = self._beginning(begin, self._slots[one.operand], self._actions[before])
                free = self._places(one for one in self.program.last_uses[at] if one not in self._kept)
                self._actions[at] = self._actions[at][0], self._ending(finish, self._slots[one.result], free)

    @staticmethod
    def _beginning(begin: Callable[[Parts], None], source: int, behind: Action) -> Action:
        place, action = behind

        def both(slots: list) -> None:
            begin(slots[source])
            action(slots)

        return place, both

    @staticmethod
    def _ending(finish: Callable[[], Parts], target: int, free: Sequence[int]) -> Callable[[list], None]:
        def action(slots: list) -> None:
            slots[target] = finish()
            for slot in free:
                slots[slot] = None

        return action

    def _bind_compute(self, instruction: Compute, ending: Collection[Register]) -> Callable[[list], None]:
        comm, run = self.comm, bind_compute(instruction, self._slots, ending, self.comm.ranks)
        if not self._overlaps:
            return run

        def action(slots: list) -> None:
            run(slots)
            comm.advance()

        return action


def _put(slots: list, places: Sequence[int], made: Sequence[Parts], free: Iterable[int]) -> None:
    for slot, parts in zip(places, made, strict=True):
        slots[slot] = parts
    for slot in free:
        slots[slot] = None


def _registers(instructions: Iterable[Instruction]) -> Iterator[Register]:
    """All registers that instructions make, those of bodies too."""
    for one in walk(instructions):
        yield from one.results
        if isinstance(one, Nest):
            for body in one.bodies:
                yield from body.args
