"""The engine numpy: the interpreter, which after some runs plays stretches of operators as text.

The first runs are the interpreter's (`runtime/interpret.py`). In a later one scripts of operators are noted beside it,
and kept where what they make is equal, bit by bit. Then operators between two collectives are one function each, which
calls numpy line by line (`numpy_text.py`): what Python does between the kernels of small operators would otherwise take
as long as some of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.engines.numpy_script import Script, scripts
from autoshard.engines.numpy_stretch import Stretch
from autoshard.engines.numpy_text import StretchText
from autoshard.ops.attributes import resolve
from autoshard.partition.program import Collective, Compute, Instruction, Program, Register
from autoshard.redistribute.step import Step
from autoshard.runtime.agree import label
from autoshard.runtime.array import array_dtype
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Action, Executor
from autoshard.runtime.steps import piece_index

NOTED = 24
"""The run in which scripts are noted, which takes about ten times as long as others, and saves up to a fifth of each
that follows (a Llama step of 2,900 operators on one core: 1.1 s, 0.09 to 0.07 s): what runs so often may well go on."""
LARGEST = 1 << 24
"""Bytes of operands and results of an operator that is noted, at most: to note it holds its results a second time, and
what larger ones take is nearly all their kernels' (16 MiB: some ms of a core)."""
Scripted = dict[Instruction, list[Script]]
"""Of each operator that has them, its scripts by hosted rank."""


class NumpyRun(Executor):
    """A program ready to run on the ranks that `comm` hosts, with numpy; what it takes and raises is Executor's.

    Args:
        noted: the number of the run in which scripts are noted.
    """

    def __init__(self, program: Program, comm: Comm, noted: int = NOTED) -> None:
        super().__init__(program, comm)
        self._noted_in, self._runs = noted, 0
        self._written: list[Action] | None = None
        self._kinds = [array_dtype(one.whole.dtype) for one in program.inputs for _ in comm.ranks]

    def _run(self, actions: Sequence[Action], slots: list) -> None:
        self._runs += 1
        if self._runs < self._noted_in or not self._fits(slots):
            self._play(actions, slots)
        elif self._written is not None:
            self._play(self._written, slots)
        else:
            fixed: list[dict[Register, np.ndarray]] = [{} for _ in self.comm.ranks]
            scripted = self._noted(slots, fixed)
            self._written = list(self._stretches(scripted, fixed))

    def _fits(self, slots: list) -> bool:
        """Whether inputs have the types that they are said to have: what others make the interpreter converts."""
        inputs = slots[: len(self.program.inputs)]
        return [part.dtype for parts in inputs for part in parts] == self._kinds

    @property
    def text(self) -> str:
        """The functions that are called in the place of operators, as they are written for the first hosted rank; empty
        before they are."""
        functions = [getattr(action, "text", None) for _, action in self._written or ()]
        return "\n\n\n".join(text for text in functions if text is not None)

    # -- noting

    def _noted(self, slots: list, fixed: list[dict[Register, np.ndarray]]) -> Scripted:
        """Play the instructions, and note scripts beside them; `fixed` gets what is the same in each run."""
        found: Scripted = {}
        for one, action in zip(self.program.instructions, self._actions, strict=True):
            notes = self._notes(one, slots, fixed) if isinstance(one, Compute) else None
            self._play([action], slots)
            if notes is None or not isinstance(one, Compute):
                continue
            if self._agrees(one, notes, slots):
                found[one] = [script for script, _ in notes]
                self._fix(one, found[one], fixed)
            else:
                for script, _ in notes:
                    scripts().refuse(script)
        return found

    def _notes(
        self, one: Compute, slots: list, fixed: Sequence[dict[Register, np.ndarray]]
    ) -> list[tuple[Script, list[np.ndarray] | None]] | None:
        """The operator's script on each hosted rank, and what it makes of its operands now, unless that is known."""
        if sum(register.local.nbytes for register in (*one.operands, *one.results)) > LARGEST:
            return None
        kinds, found = [register.whole.dtype for register in one.results], []
        for k, rank in enumerate(self.comm.ranks):
            attrs = {name: resolve(value, rank) for name, value in one.attrs.items()}
            arrays = [slots[self._slots[register]][k] for register in one.operands]
            still = [register in fixed[k] for register in one.operands]
            script, made = scripts().of(one.op, arrays, attrs, kinds, still)
            if not isinstance(script, Script):
                return None
            found.append((script, made))
        return found

    def _agrees(self, one: Compute, notes: Sequence[tuple[Script, list[np.ndarray] | None]], slots: list) -> bool:
        """Whether scripts make what the operator has made, bit by bit."""
        held = [slots[self._slots[register]] for register in one.results]
        return all(
            parts is None or _same_bits(parts[k], array)
            for k, (_, made) in enumerate(notes)
            for parts, array in zip(held, made or (), strict=False)
        )

    def _fix(self, one: Compute, found: Sequence[Script], fixed: list[dict[Register, np.ndarray]]) -> None:
        for i, register in enumerate(one.results):
            outputs = [script.outputs[i] for script in found]
            if all(isinstance(output, np.ndarray) for output in outputs):
                for known, output in zip(fixed, outputs, strict=True):
                    known[register] = output  # type: ignore[assignment]

    # -- writing

    def _stretches(self, scripted: Scripted, fixed: Sequence[dict[Register, np.ndarray]]) -> Iterator[Action]:
        """The actions, with stretches in the place of the operators that are in them."""
        lasts = [[one for one in ending if one not in self._kept] for ending in self.program.last_uses]
        pairs = list(zip(self.program.instructions, lasts, strict=True))
        plain = {register for one, _ in pairs if one not in scripted for register in one.operands}
        inside = [one in scripted or (self._is_view(one) and one.results[0] not in plain) for one, _ in pairs]
        outside = [one for (one, _), is_in in zip(pairs, inside, strict=True) if not is_in]
        read = {*self.program.outputs, *(register for one in outside for register in one.operands)}
        run: list[tuple[Instruction, list[Register]]] = []
        for pair, is_in, action in zip(pairs, inside, self._actions, strict=True):
            if is_in:
                run.append(pair)
                continue
            if run:
                yield self._stretch(run, scripted, fixed, read)
                run = []
            yield action
        if run:
            yield self._stretch(run, scripted, fixed, read)

    def _is_view(self, one: Instruction) -> bool:
        """Whether it takes a piece of what the caller holds as long as the program runs: no copy is needed then."""
        if not isinstance(one, Collective) or not isinstance(one.step, Step) or one.step.kind != "slice":
            return False
        step, shape = one.step, one.operand.local.shape
        is_whole = shape == step.before.local_shape(one.of.shape)
        is_kept = step.after.local_shape(one.of.shape) == one.result.local.shape
        return is_whole and is_kept and one.operand in self._kept and one.result not in self.program.outputs

    def _stretch(
        self,
        run: Sequence[tuple[Instruction, list[Register]]],
        scripted: Scripted,
        fixed: Sequence[dict[Register, np.ndarray]],
        read: Collection[Register],
    ) -> Action:
        ending = {register for _, gone in run for register in gone}
        places = [self.comm.place(label(one)) for one, _ in run]
        marks = self._running_now if places[0] is not None else None
        advance = self.comm.advance if self._overlaps else None
        functions, written = [], dict[tuple, Callable]()
        for k, rank in enumerate(self.comm.ranks):
            said = [self._said(one, scripted, k, rank) for one, _ in run]
            key = _same_for(run, said, fixed[k])
            if key not in written:
                stretch = Stretch(self._slots, fixed[k])
                for (one, _), what, place in zip(run, said, places, strict=True):
                    if isinstance(what, Script):
                        stretch.add(what, one.operands, one.results, place or 0)
                    elif isinstance(one, Collective):
                        stretch.view(what, one.operand, one.result, place or 0)
                text = StretchText(stretch, ending, read, self.program.outputs, marks, advance)
                written[key] = text.function()
            functions.append(written[key])
        if len(functions) == 1:
            return places[0] or 0, functions[0]
        taken = [self._slots[one] for one in dict.fromkeys(register for one, _ in run for register in one.operands)]
        stored = [self._slots[one] for one in dict.fromkeys(register for one, _ in run for register in one.results)]
        return places[0] or 0, _on_all(functions, taken, stored, [self._slots[one] for one in ending])

    def _said(self, one: Instruction, scripted: Scripted, k: int, rank: int) -> Any:
        """What an instruction of a stretch does on the hosted rank `k`: a script, or the piece that it takes."""
        if isinstance(one, Compute):
            return scripted[one][k]
        assert isinstance(one, Collective) and isinstance(one.step, Step) and one.step.dim is not None
        return piece_index(one.operand.local.shape, one.step, one.step.dim, rank)


def _same_for(
    run: Sequence[tuple[Instruction, list[Register]]], said: Sequence[Any], fixed: Mapping[Register, np.ndarray]
) -> tuple:
    """What the function of a stretch follows from on one rank: ranks on which it is the same share a function."""
    found: list[Any] = []
    for (one, _), what in zip(run, said, strict=True):
        found.append(id(what) if isinstance(what, Script) else repr(what))
        found += (id(fixed[register]) for register in one.operands if register in fixed)
    return tuple(found)


def _on_all(
    functions: Sequence[Callable], taken: Sequence[int], stored: Sequence[int], ending: Sequence[int]
) -> Callable[[list], None]:
    """The functions of the hosted ranks as an action, each on slots that hold its rank's arrays alone."""

    def action(slots: list) -> None:
        own = [{slot: [slots[slot][k]] for slot in taken if slots[slot] is not None} for k in range(len(functions))]
        for slot in ending:
            slots[slot] = None
        for held, function in zip(own, functions, strict=True):
            function(held)
        for slot in stored:
            if own[0].get(slot) is not None:
                slots[slot] = [one[slot][0] for one in own]

    action.text = functions[0].text
    return action


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    left, right = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(left, right)
