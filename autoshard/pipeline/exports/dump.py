"""IR dumps of a plan in stages: all that one rank does in a step, in the order of the schedule, in MindSpore's form.

`save_stage_graphs(planned, folder)` writes for each rank the graph of each of its stages before it is split, and what
the rank runs: a subgraph for each piece of a stage, which is called for each micro batch, with Send and Receive lines
for what goes from rank to rank. Messages between two ranks of the same `sr_tag` come in the order in which they are
sent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from autoshard.core.tensortype import TensorType
from autoshard.exporters.ir_dump import DumpWriter, dump_begin, tensor_type, write_dumps, write_nodes, write_program
from autoshard.exporters.ir_parse import ListedValue, show_dump
from autoshard.exporters.ir_steps import Attrs
from autoshard.ir.graph import DATA, Value
from autoshard.partition.program import Register
from autoshard.pipeline.execute.group import is_narrow
from autoshard.pipeline.exports.messages import Messages
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place, Ready, Route, held_in
from autoshard.pipeline.stages.whole import ONCE, update_rounds
from autoshard.runtime.array import array_dtype
from autoshard.transform.micro.accumulate import ADDED_BY
from autoshard.transform.micro.forms import MicroRows
from autoshard.transform.micro.forms import cut as dealt
from autoshard.util.errors import PlanError

Key = Hashable
"""What a value is known by while a dump is written."""


def save_stage_graphs(
    planned: PipelineData, folder: Path | str, ranks: Iterable[int] | None = None, serial: int = 0
) -> tuple[Path, ...]:
    """Write the dumps of each rank under `folder`; the files.

    Args:
        ranks: which ranks, by default all.
        serial: the number in the first file's name; the others count on, as MindSpore's dumps do.
    """
    paths: list[Path] = []
    for rank in range(planned.devices) if ranks is None else ranks:
        local = dump_rank(planned, rank)
        number = _group(planned, rank)
        begin = [dump_begin(planned.plans[stage]) for stage in planned.schedule.chunks(number)]
        paths += write_dumps(Path(folder), rank, begin, local, serial)
    return tuple(paths)


def dump_rank(planned: PipelineData, rank: int) -> str:
    """What one rank runs in a step.

    Raises:
        PlanError: there is no such rank.
    """
    return _RankDump(planned, rank).run()


def _group(planned: PipelineData, rank: int) -> int:
    """The group that a rank is of.

    Raises:
        PlanError: of none.
    """
    for number, group in enumerate(planned.groups):
        if rank in group.ranks:
            return number
    raise PlanError(f"{planned.graph.name!r} has no rank {rank} to dump; its ranks are 0..{planned.devices - 1}")


class _RankDump:
    """Does in lines of a dump what `execute.group.GroupRun` does with arrays."""

    def __init__(self, planned: PipelineData, rank: int) -> None:
        number = _group(planned, rank)
        self.planned, self.group = planned, planned.groups[number]
        self.own = self.group.ranks.index(rank)
        self.stages, self.actions = planned.schedule.chunks(number), planned.schedule.orders[number]
        self.programs, self.step = planned.programs, planned.whole.pipeline.step
        self.ready = {place: one for place, one in self.programs.pieces.items() if place[0] in self.stages}
        self.carried = {self.step.body.outputs[new][0]: state for state, new in self.step.body.carried.items()}
        self.writer = DumpWriter(f"{planned.graph.name}.rank{rank}")
        self.messages = Messages(self.writer, self.own)
        self.titles: dict[Place, str] = {}
        self.held: dict[tuple[int, int | None], Key] = {}
        self.sums: dict[tuple[Place, int], Key] = {}
        self.rows: dict[Value, list[tuple[int, Key]]] = {}
        self.made: dict[Value, tuple[Key, Register]] = {}
        self.states: dict[Key, Key] = {}
        self.stored: dict[Value, Key] = {}

    def run(self) -> str:
        self._enter()
        write_nodes(self.writer, self.planned.whole.from_data, None)
        for stage in self.stages:
            self._call((stage, ONCE), None)
        for action in self.actions:
            for kind in action.pieces if action.computes else ():
                self._call((action.stage, kind), action.micro)
        for route in self.programs.routes:
            if route.summed and route.source in self.ready:
                self._set_out(route, self._sum(route.source, route.output), None)
        for place in update_rounds(self.ready):
            self._call(place, None)
        self._finish()
        return show_dump(self.writer.dump())

    # -- what there is before

    def _enter(self) -> None:
        """The inputs of the step that the rank reads, in order: data whole, what is stored as it lies here."""
        graph = self.planned.graph
        read: dict[Value, dict[Key, Register]] = {}
        for place, ready in self.ready.items():
            for value, register in zip(ready.inputs, ready.program.inputs, strict=True):
                whole, _ = self.step.body.slices.get(value, (value, None))
                if value not in self.programs.arriving[place]:
                    read.setdefault(whole, {})[_lying(whole, register)] = register
        for node in self.planned.whole.from_data:
            for value in node.uses:
                read.setdefault(value, {})
        for value, role in zip(graph.inputs, graph.roles, strict=True):
            if role == DATA and value in read:
                self.writer.parameter(value, value.name, value.type, False)
            for key, register in read.get(value, {}).items() if role != DATA else ():
                self.writer.parameter(key, value.name, register.local, True)
                self.stored.setdefault(value, key)

    # -- pieces

    def _call(self, place: Place, micro: int | None) -> None:
        """Run a piece: what it waits for, the call, and what follows."""
        ready = self.ready.get(place)
        if ready is None:
            return
        arriving = self.programs.arriving[place]
        operands = [
            self._arrived(arriving[value], micro) if value in arriving else self._given(value, register, micro)
            for value, register in zip(ready.inputs, ready.program.inputs, strict=True)
        ]
        read = [self.writer.read(one) for one in operands]
        count = "" if micro is None else str(micro)
        attrs: Attrs = (("bodies", ListedValue((self._title(ready),))), ("stage", place[0]), ("kind", place[1]))
        self.writer.add(
            f"stage{place[0]}.{place[1]}{count}",
            "Call",
            [reference for reference, _ in read],
            [of for _, of in read],
            [((place, i, micro), tensor_type(one.local)) for i, one in enumerate(ready.program.outputs)],
            attrs=(*attrs, ("micro", micro)),
        )
        self._leave(ready, micro)

    def _title(self, ready: Ready) -> str:
        """The subgraph of a piece."""
        if ready.place not in self.titles:
            program, (stage, kind) = ready.program, ready.place
            with self.writer.subgraph(f"stage{stage}.{kind}", program.inputs, program.outputs) as title:
                write_program(self.writer, program.instructions, self.own, ready.plan, self.group.ranks)
            self.titles[ready.place] = title
        return self.titles[ready.place]

    def _leave(self, ready: Ready, micro: int | None) -> None:
        """Send on, add up and keep what a piece has made."""
        body = self.step.body
        forms = {one: form for one, form in body.outputs.values()}
        for i, (value, register) in enumerate(zip(ready.outputs, ready.program.outputs, strict=True)):
            key = ready.place, i, micro
            if micro is None or value in self.carried:
                self.made[value] = key, register
                if value in self.carried:
                    self._hand_on(ready, self.carried[value], key)
            elif value in body.terms and value in forms:
                self._add((ready.place, i), key, register.whole, body.terms[value].reduction)
            elif isinstance(forms.get(value), MicroRows) and ready.outputs.index(value) == i:
                self.rows.setdefault(value, []).append((micro, key))
                self.made.setdefault(value, (key, register))
        for route in self.programs.leaving[ready.place]:
            if not route.summed:
                self._set_out(route, (ready.place, route.output, micro), micro)

    def _hand_on(self, ready: Ready, state: Value, key: Key) -> None:
        if state in ready.inputs:
            self.states[_lying(state, ready.program.inputs[ready.inputs.index(state)])] = key

    def _add(self, place: tuple[Place, int], key: Key, of: TensorType, reduction: str) -> None:
        """Add a micro batch's terms, narrow floats in f32."""
        if is_narrow(array_dtype(of.dtype)):
            key = self._cast(key, "f32", (place, key, "f32"))
        known = self.sums.get(place)
        if known is not None:
            read = [self.writer.read(one) for one in (known, key)]
            added = place, key, "sum"
            self._line("sum", ADDED_BY[reduction], read, added, read[0][1].tensor)
            key = added
        self.sums[place] = key

    def _sum(self, place: Place, output: int) -> Key:
        of, key = self.ready[place].outputs[output].type, self.sums[place, output]
        narrow = is_narrow(array_dtype(of.dtype))
        return self._cast(key, of.dtype.name, (place, output, "total")) if narrow else key

    def _cast(self, key: Key, name: str, made: Key) -> Key:
        read = self.writer.read(key)
        of = read[1].tensor
        assert of is not None
        self._line("cast", "Cast", [read], made, TensorType.of(of.shape, name), (("dtype", name),))
        return made

    # -- routes

    def _set_out(self, route: Route, key: Key, micro: int | None) -> None:
        if route.stays:
            self.held[_number(route, micro)] = key
        else:
            self.messages.send(route, key, micro)

    def _arrived(self, route: Route, micro: int | None) -> Key:
        number = _number(route, micro)
        if number not in self.held:
            self.held[number] = self.messages.receive(route, number[1])
        return self.held[number]

    # -- rows and blocks of what was there before

    def _given(self, value: Value, register: Register, micro: int | None) -> Key:
        lying = _lying(value, register)
        if value in self.step.body.slices:
            whole, part = self.step.body.slices[value]
            assert micro is not None
            return self._block(self._rows_of(whole, part, micro), value, register, (lying, micro))
        if lying in self.states:
            return self.states[lying]
        if lying in self.writer.references or lying in self.writer.stored:
            return lying
        if value in self.writer.references:
            return self._block(value, value, register, lying)
        rows, (_, made) = self._joined_rows(value), self.made[self.step.body.outputs[value][0]]
        return self._block(self._gathered(rows, made, value), value, register, lying)

    def _rows_of(self, whole: Value, part: MicroRows, micro: int) -> Key:
        """The rows of a micro batch, whole."""
        key, parts = ("rows", whole, part, micro), self.step.parts
        if key in self.writer.references:
            return key
        source: Key = whole if whole in self.writer.references else self._gathered(*self.made[whole], whole)
        shape = dealt(whole.type.shape, part, parts)
        spread = ("spread", whole, part)
        if spread not in self.writer.references:
            of = whole.type.with_shape(shape)
            self._line(whole.name, "Reshape", [self.writer.read(source)], spread, of, (("shape", shape),))
        at = part.dim + 1
        begin = tuple(micro if dim == at else 0 for dim in range(len(shape)))
        end = tuple(micro + 1 if dim == at else size for dim, size in enumerate(shape))
        cut = self.messages.box(spread, begin, end, f"{whole.name}.micro{micro}", (*key, "cut"))
        of = whole.type.with_shape((*shape[: part.dim], shape[part.dim] * part.inner, *shape[part.dim + 3 :]))
        read = [self.writer.read(cut)]
        self._line(f"{whole.name}.micro{micro}", "Reshape", read, key, of, (("shape", of.shape),))
        return key

    def _block(self, source: Key, value: Value, register: Register, key: Key) -> Key:
        """The rank's block of a value that it has whole, with the padding that its layout needs."""
        if key in self.writer.references:
            return key
        held = held_in(self.group, register)
        box, local = held.box(self.own), held.local
        begin, end = tuple(low for low, _ in box), tuple(high for _, high in box)
        sizes = tuple(high - low for low, high in box)
        if sizes == value.type.shape == local:
            return source
        cut = source
        if sizes != value.type.shape:
            cut = self.messages.box(source, begin, end, value.name, key if sizes == local else (key, "cut"))
        if sizes != local:
            pads = tuple((0, full - size) for full, size in zip(local, sizes, strict=True))
            self._line(
                value.name, "Pad", [self.writer.read(cut)], key, value.type.with_shape(local), (("paddings", pads),)
            )
            return key
        return cut

    def _gathered(self, key: Key, register: Register, value: Value) -> Key:
        """A value that ranks of the group hold in blocks, whole."""
        if all(not axes for axes in register.layout.dims):
            return key
        made = "gathered", value
        if made not in self.writer.references:
            ranks = "-".join(map(str, self.group.ranks))
            attrs: Attrs = (("group_ranks", ranks), ("layout", str(register.layout)))
            self._line(value.name, "AllGather", [self.writer.read(key)], made, value.type, attrs)
        return made

    def _joined_rows(self, value: Value) -> Key:
        """A value of the step of which each micro batch has made rows, as far as they lie here: micro batches side by
        side as they were dealt out."""
        one, form = self.step.body.outputs[value]
        assert isinstance(form, MicroRows)
        made, (_, register) = ("joined", value), self.made[one]
        if made in self.writer.references:
            return made
        keys = [self._apart(key, form, one) for _, key in sorted(self.rows[one])]
        local = register.local.shape
        rows = local[form.dim] // form.inner
        spread = (*local[: form.dim], rows, len(keys), *((form.inner,) if form.inner > 1 else ()))
        stacked, shape = ("stacked", value), (*spread, *local[form.dim + 1 :])
        read = [self.writer.read(key) for key in keys]
        self._line(value.name, "Stack", read, stacked, value.type.with_shape(shape), (("axis", form.dim + 1),))
        joined = (*local[: form.dim], local[form.dim] * len(keys), *local[form.dim + 1 :])
        read = [self.writer.read(stacked)]
        self._line(value.name, "Reshape", read, made, value.type.with_shape(joined), (("shape", joined),))
        return made

    def _apart(self, key: Key, form: MicroRows, value: Value) -> Key:
        """Rows of several elements as two dims."""
        if form.inner == 1:
            return key
        of, made = self.writer.read(key)[1].tensor, ("apart", key)
        assert of is not None
        rows = of.shape[form.dim] // form.inner
        shape = (*of.shape[: form.dim], rows, form.inner, *of.shape[form.dim + 1 :])
        read = [self.writer.read(key)]
        self._line(value.name, "Reshape", read, made, of.with_shape(shape), (("shape", shape),))
        return made

    # -- lines

    def _line(
        self, name: str, op: str, read: Sequence, key: Key, of: TensorType | None, attrs: Attrs | None = None
    ) -> None:
        assert of is not None
        operands, types = [reference for reference, _ in read], [its for _, its in read]
        self.writer.add(name, op, operands, types, [(key, tensor_type(of))], attrs=attrs)

    # -- what comes out

    def _finish(self) -> None:
        """Store what is updated here, and return the other results that stages of this rank make."""
        whole, graph = self.planned.whole, self.planned.graph
        inputs, outputs, updates = [], [], {}
        for i, value in enumerate(whole.outputs):
            stage = min(whole.makers[value]) if value in whole.makers else None
            if stage is None and value not in self.writer.references or stage is not None and stage not in self.stages:
                continue
            key = value if stage is None else self._result(value, stage)
            if i in graph.updates:
                stored = self._stored(graph.inputs[graph.updates[i]], key)
                updates[len(outputs)] = len(inputs)
                inputs.append(stored)
            outputs.append(key)
        self.writer.finish(outputs, inputs, updates)

    def _result(self, value: Value, stage: int) -> Key:
        if value in self.rows:
            whole = next(one for one, (its, _) in self.step.body.outputs.items() if its is value)
            return self._joined_rows(whole)
        if value in self.made:
            return self.made[value][0]
        place = stage, self.planned.whole.makers[value][stage].kind
        return self._sum(place, self.ready[place].outputs.index(value))

    def _stored(self, value: Value, key: Key) -> Key:
        """The stored input that a result replaces; one that nothing reads is entered for that."""
        if value not in self.stored:
            of = self.writer.read(key)[1].tensor
            assert of is not None
            self.stored[value] = "stored", value
            self.writer.parameter(self.stored[value], value.name, of, True)
        return self.stored[value]


def _lying(value: Value, register: Register) -> Key:
    return value, register.layout, register.whole.shape


def _number(route: Route, micro: int | None) -> tuple[int, int | None]:
    return route.number, micro if route.is_repeated else None
