"""One group of a pipeline in a step: what its hosted ranks do, in order, and where they wait for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np

from autoshard.ir.graph import Value
from autoshard.layout.layout import Layout
from autoshard.partition.program import Register
from autoshard.pipeline.execute.engine import Executors
from autoshard.pipeline.execute.parcels import Receiver, Sender
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place, Ready, Route
from autoshard.pipeline.stages.whole import ONCE, runs_per_micro_batch, update_rounds
from autoshard.runtime.array import array_dtype, cut, join
from autoshard.runtime.comm import REDUCTIONS, Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.mail import Letter, Mail
from autoshard.transform.micro.forms import MicroRows
from autoshard.transform.micro.forms import cut as dealt

Key = tuple[int, int | None]
BlockKey = tuple[Value, Layout, tuple[int, ...]]
"""An input in the blocks that programs take: its layout, and the shape that is cut into equal blocks."""


@dataclass
class GroupMeasurement:
    """What a group has done in a step: seconds at work and in all, bytes sent, most bytes held of micro batches."""

    busy: float = 0.0
    sent: int = 0
    peak: int = 0


@dataclass
class _GroupStep:
    """What a group holds during a step."""

    arrays: dict[Value, np.ndarray]
    held: dict[Key, Parts] = field(default_factory=dict)
    readers: Counter[Key] = field(default_factory=Counter)
    sums: dict[tuple[Place, int], Parts] = field(default_factory=dict)
    own_sums: set[tuple[Place, int]] = field(default_factory=set)
    rows: dict[Value, dict[int, Parts]] = field(default_factory=dict)
    made: dict[Value, tuple[Parts, Register]] = field(default_factory=dict)
    cuts: dict[BlockKey, Parts] = field(default_factory=dict)
    receivers: dict[int, Receiver] = field(default_factory=dict)
    senders: dict[int, Sender] = field(default_factory=dict)
    measured: GroupMeasurement = field(default_factory=GroupMeasurement)


class GroupRun:
    """The programs of one group, bound to a comm of its ranks."""

    def __init__(self, planned: PipelineData, number: int, comm: Comm, mail: Mail, executors: Executors) -> None:
        self.planned, self.number, self.comm, self.mail = planned, number, comm, mail
        self.stages = planned.schedule.chunks(number)
        self.pieces = planned.pieces_of(number)
        self.times: memoryview | None = None
        """Where the begin and end of each of the pieces are recorded, in nanoseconds; None: nowhere."""
        self.programs = planned.programs
        self.ready = {place: one for place, one in self.programs.pieces.items() if place[0] in self.stages}
        self.executors = {place: executors(one.program, number, comm) for place, one in self.ready.items()}
        self.step = planned.whole.pipeline.step
        self.last_readers = self._last_readers()
        self.carried = {self.step.body.outputs[new][0]: state for state, new in self.step.body.carried.items()}
        self.state: _GroupStep | None = None

    @property
    def moments(self) -> int:
        """How many pieces a step has."""
        return len(self.pieces)

    # -- a step

    def run(
        self, arrays: Mapping[Value, np.ndarray], blocks: dict[BlockKey, Parts] | None = None
    ) -> Iterator[list[Letter]]:
        """Do a step, and yield the letters that it waits for; on with it when they are there.

        Args:
            arrays: the whole inputs of the step's graph, and what follows from data alone.
            blocks: inputs that are not among them; used up.
        """
        self.state = state = _GroupStep(dict(arrays), cuts={} if blocks is None else blocks)
        self._prepare(state)
        if self.times is not None:
            self.times[:] = memoryview(bytes(self.times.nbytes)).cast("q")
        updates = len(update_rounds(self.ready))
        for moment, (place, micro) in enumerate(self.pieces):
            if moment == self.moments - updates:
                self._send_sums(state)
            yield from self._do(place, micro, moment)
        if not updates:
            self._send_sums(state)
        state.measured.sent = sum(one.sent for one in (*state.senders.values(), *state.receivers.values()))

    def _prepare(self, state: _GroupStep) -> None:
        for route in self.programs.routes:
            if route.stage in self.stages and not route.stays:
                state.receivers[route.number] = Receiver(route, self.comm, self.mail, self._sent_order(route))
            if route.source[0] in self.stages:
                state.senders[route.number] = Sender(route, self.comm, self.mail)

    def _sent_order(self, route: Route) -> Sequence[int | None]:
        """The micro batches in the order in which a route's value is made."""
        if not route.is_repeated:
            return [None]
        stage, kind = route.source
        orders = self.planned.schedule.orders[self.planned.schedule.ranks_of_stages[stage]]
        return [action.micro for action in orders if action.stage == stage and kind in action.pieces]

    def _last_readers(self) -> dict[BlockKey, Place]:
        """The piece that reads each input last."""
        once = [(stage, ONCE) for stage in self.stages if (stage, ONCE) in self.ready]
        micro = [place for place in self.ready if runs_per_micro_batch(place[1])]
        return {
            block_key(value, register): place
            for place in (*once, *micro, *update_rounds(self.ready))
            for value, register in zip(self.ready[place].inputs, self.ready[place].program.inputs, strict=True)
        }

    # -- pieces

    def _do(self, place: Place, micro: int | None, moment: int) -> Iterator[list[Letter]]:
        """Run a piece as soon as all that it reads is there."""
        state, ready = self.state, self.ready[place]
        assert state is not None
        arriving = self.programs.arriving[place]
        for value in ready.inputs:
            route = arriving.get(value)
            if route is not None and (key := _key(route, micro)) not in state.held:
                letters = state.receivers[route.number].post(key[1])
                if any(not letter.is_there() for letter in letters):
                    self.comm.at(self.comm.place(f"stage {place[0]}, which waits for {value.name} of {route.maker}"))
                    yield letters
                self._hold(route, key, state.receivers[route.number].take(key[1]))
        begun = perf_counter_ns()
        inputs = self._inputs(ready, micro, state)
        for into in ready.program.updates.values():  # the blocks that are replaced are the program's alone from here on
            key = block_key(ready.inputs[into], ready.program.inputs[into])
            kept = state.cuts.pop(key, None)
            if kept is not None and self.last_readers[key] != place:
                state.cuts[key] = [part.copy() for part in kept]
        made = self.executors[place].consume(inputs)
        self._leave(ready, made, micro, state)
        ended = perf_counter_ns()
        state.measured.busy += (ended - begun) / 1e9
        if self.times is not None:
            self.times[2 * moment], self.times[2 * moment + 1] = begun, ended
        self._let_go(ready, micro, state)
        self.mail.advance()

    def _hold(self, route: Route, key: Key, parts: Parts) -> None:
        state = self.state
        assert state is not None
        state.held[key] = parts
        repeated = route.is_repeated
        state.readers[key] = sum(
            1 if repeated or not runs_per_micro_batch(kind) else self.step.parts for _, kind in route.readers
        )

    def _inputs(self, ready: Ready, micro: int | None, state: _GroupStep) -> list[Parts]:
        arriving = self.programs.arriving[ready.place]
        return [
            state.held[_key(arriving[value], micro)]
            if value in arriving
            else self._given(value, register, micro, state)
            for value, register in zip(ready.inputs, ready.program.inputs, strict=True)
        ]

    def _given(self, value: Value, register: Register, micro: int | None, state: _GroupStep) -> Parts:
        """The blocks of what was there before, of its rows of a micro batch, or of rows that micro batches made."""
        if value in self.step.body.slices:
            whole, part = self.step.body.slices[value]
            assert micro is not None
            if whole not in state.arrays:  # made of parameters, by this group
                state.arrays[whole] = self._join(*state.made[whole])
            return self._cut(rows_of(state.arrays[whole], part, self.step.parts, micro, value), register)
        key = block_key(value, register)
        if key not in state.cuts:
            array = state.arrays[value] if value in state.arrays else self._joined_rows(value, state)
            state.cuts[key] = self._cut(array, register)
        return state.cuts[key]

    def _cut(self, array: np.ndarray, register: Register) -> Parts:
        array = np.asarray(array, array_dtype(register.whole.dtype))
        return cut(array, register.layout, self.comm.ranks, register.whole.shape)

    def _leave(self, ready: Ready, made: Sequence[Parts], micro: int | None, state: _GroupStep) -> None:
        """Send on, add up and keep what a piece has made."""
        body = self.step.body
        carried = {one: form for one, form in body.outputs.values()}
        for i, (value, parts) in enumerate(zip(ready.outputs, made, strict=True)):
            if micro is None:
                # The last of several layouts is the one that is no part of a sum.
                state.made[value] = parts, ready.program.outputs[i]
            elif value in self.carried:
                state.made[value] = parts, ready.program.outputs[i]
                self._hand_on(ready, self.carried[value], parts, state)
            elif value in body.terms and value in carried:
                self._add((ready.place, i), parts, body.terms[value].reduction, state)
            elif isinstance(carried.get(value), MicroRows) and ready.outputs.index(value) == i:
                state.rows.setdefault(value, {})[micro] = parts
        for route in self.programs.leaving[ready.place]:
            if not route.summed:
                self._set_out(route, made[route.output], micro, state)
        state.measured.peak = max(state.measured.peak, self._held_bytes(state))

    def _hand_on(self, ready: Ready, value: Value, parts: Parts, state: _GroupStep) -> None:
        """Let the next micro batch find a state as this one leaves it."""
        if value in ready.inputs:
            register = ready.program.inputs[ready.inputs.index(value)]
            state.cuts[value, register.layout, register.whole.shape] = parts

    def _set_out(self, route: Route, parts: Parts, micro: int | None, state: _GroupStep) -> None:
        if route.stays:
            self._hold(route, _key(route, micro), parts)
        else:
            state.senders[route.number].send(parts)

    def _add(self, key: tuple[Place, int], parts: Parts, reduction: str, state: _GroupStep) -> None:
        """Add a micro batch's terms, narrow floats in f32."""
        terms = [part.astype(np.float32) if is_narrow(part.dtype) else part for part in parts]
        known, combine = state.sums.get(key), REDUCTIONS[reduction]
        if known is None:
            state.sums[key] = terms
        elif key in state.own_sums:
            for total, term in zip(known, terms, strict=True):
                combine(total, term, out=total)
        else:  # the first terms may lie in memory that others read, too
            state.sums[key] = [np.asarray(combine(*pair)) for pair in zip(known, terms, strict=True)]
            state.own_sums.add(key)

    def _send_sums(self, state: _GroupStep) -> None:
        for route in self.programs.routes:
            if route.summed and route.source in self.ready:
                self._set_out(route, self._sum(route.source, route.output, state), None, state)

    def _sum(self, place: Place, output: int, state: _GroupStep) -> Parts:
        dtype = array_dtype(self.ready[place].outputs[output].type.dtype)
        return [part.astype(dtype, copy=False) for part in state.sums[place, output]]

    def _let_go(self, ready: Ready, micro: int | None, state: _GroupStep) -> None:
        for route in self.programs.arriving[ready.place].values():
            key = _key(route, micro)
            state.readers[key] -= 1
            if not state.readers[key]:
                del state.held[key]

    def _held_bytes(self, state: _GroupStep) -> int:
        """Bytes of one rank's blocks of values of micro batches."""
        blocks = {id(parts[0]): parts[0].nbytes for (_, micro), parts in state.held.items() if micro is not None}
        return sum(blocks.values())

    # -- results

    def result(self, value: Value) -> np.ndarray:
        """A result of the step that a stage of this group makes, whole; all ranks of the group call it together."""
        state = self.state
        assert state is not None
        if value in state.rows:
            whole = next(one for one, (its, _) in self.step.body.outputs.items() if its is value)
            return self._joined_rows(whole, state)
        if value in state.made:
            return self._join(*state.made[value])
        maker = self.planned.whole.makers[value]
        place = next((stage, piece.kind) for stage, piece in maker.items() if stage in self.stages)
        output = self.ready[place].outputs.index(value)
        return self._join(self._sum(place, output, state), self.ready[place].program.outputs[output])

    def _joined_rows(self, value: Value, state: _GroupStep) -> np.ndarray:
        """A value of the step whose rows micro batches have made."""
        one, form = self.step.body.outputs[value]
        assert isinstance(form, MicroRows)
        stage = self.planned.whole.pipeline.made_by[one].stage
        place = next(place for place in self.ready if place[0] == stage and one in self.ready[place].outputs)
        register = self.ready[place].program.outputs[self.ready[place].outputs.index(one)]
        shape = dealt(value.type.shape, form, self.step.parts)
        whole = np.empty(shape, array_dtype(value.type.dtype))
        for micro, parts in sorted(state.rows[one].items()):
            at = (slice(None),) * (form.dim + 1) + (micro,)
            whole[at] = self._join(parts, register).reshape(whole[at].shape)
        return whole.reshape(value.type.shape)

    def _join(self, parts: Parts, register: Register) -> np.ndarray:
        return join(parts, register.layout, register.true.shape, self.comm, register.whole.shape)


def block_key(value: Value, register: Register) -> BlockKey:
    """What an input is known by in the blocks of a register."""
    return value, register.layout, register.whole.shape


def _key(route: Route, micro: int | None) -> Key:
    return route.number, micro if route.is_repeated else None


def is_narrow(dtype: np.dtype) -> bool:
    """Whether terms of this type are added up in f32."""
    return dtype.itemsize < 4 and dtype.kind not in "biu"


def rows_of(whole: np.ndarray, part: MicroRows, parts: int, micro: int, value: Value) -> np.ndarray:
    """The rows of one micro batch."""
    cut_up = np.asarray(whole).reshape(dealt(np.shape(whole), part, parts))
    return cut_up[(slice(None),) * (part.dim + 1) + (micro,)].reshape(value.type.shape)
