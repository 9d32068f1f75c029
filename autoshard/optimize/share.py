"""Sharing: what is computed or brought into a layout several times is made once.

Steps of redistributions keep a value, so all registers that steps made of one another hold the same value; of those
with one layout (and held size) one suffices. That also undoes steps that lead back to where a value was, and joins
chains of steps with a common beginning. Operators applied to the same registers by the same attributes make the same
value (local value numbering; Click, "Global code motion, global value numbering", PLDI 1995, section 3).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from autoshard.cost.instructions import Setting
from autoshard.ir.flow import manual_axes
from autoshard.optimize.rewrite import Names, final, is_pure, renamed, without_dead
from autoshard.partition.program import Collective, Compute, Instruction, Nest, NestBody, Program, Register
from autoshard.redistribute.window import WindowStep


def share(program: Program, setting: Setting) -> Program:
    """The program without what it does twice."""
    known = _SharedValues(setting)
    for register in program.inputs:
        known.value(register)
    instructions, names = known.block(program.instructions)
    if instructions == program.instructions:
        return program
    outputs = tuple(final(one, names) for one in program.outputs)
    return without_dead(replace(program, instructions=instructions, outputs=outputs))


class _SharedValues:
    """What is held where, in one block and those around it."""

    def __init__(self, setting: Setting, around: _SharedValues | None = None) -> None:
        self.setting = setting
        self.values: dict[Register, Register] = dict(around.values) if around else {}
        self.held: dict[Hashable, Register] = dict(around.held) if around else {}
        # Numbers stand for what is long to compare: equal ones for equal forms, and for equal applications.
        self.forms: dict[Register, int] = around.forms if around else {}
        self.numbers: dict[Hashable, int] = around.numbers if around else {}

    def value(self, register: Register) -> Register:
        """The value that a register holds, whatever its layout: the register itself where it was first made."""
        found = self.values.get(register)
        if found is None:
            found = self.hold(register, register)
        return found

    def hold(self, register: Register, value: Register) -> Register:
        """Note that the register holds that value."""
        self.values[register] = value
        self.held.setdefault((value, self.form(register)), register)
        return value

    def form(self, register: Register) -> int:
        """The same for registers of one layout, type and held size."""
        found = self.forms.get(register)
        if found is None:
            found = self.forms[register] = self.number((register.layout, register.whole, register.size))
        return found

    def number(self, of: Hashable) -> int:
        return self.numbers.setdefault(of, len(self.numbers))

    def block(self, instructions: Sequence[Instruction]) -> tuple[tuple[Instruction, ...], Names]:
        found: list[Instruction] = []
        names: dict[Register, Register] = {}
        for one in instructions:
            one = renamed(one, names)
            if isinstance(one, Nest):
                one = self.inside(one)
            key = self.key(one)
            others = self.others(one, key)
            if others is not None and not self.stays(one) and all(self.setting.ok(r.name) for r in one.results):
                names.update(zip(one.results, others, strict=True))
                continue
            self.keep(one, key)
            found.append(one)
        same = len(found) == len(instructions) and all(a is b for a, b in zip(found, instructions, strict=True))
        return tuple(instructions) if same else tuple(found), names

    def stays(self, one: Instruction) -> bool:
        """Whether somebody asked for it as it is."""
        return isinstance(one, Compute) and (one.composite or one.node) in self.setting.fixed

    def inside(self, nest: Nest) -> Nest:
        bodies = []
        for body in nest.bodies:
            inner = _SharedValues(self.setting, self)
            for register in body.args:
                inner.value(register)
            instructions, names = inner.block(body.instructions)
            outputs = tuple(final(register, names) for register in body.outputs)
            bodies.append(NestBody(body.args, instructions, outputs))
        changed = any(new.instructions != old.instructions for new, old in zip(bodies, nest.bodies, strict=True))
        return replace(nest, bodies=tuple(bodies)) if changed and not manual_axes(nest.node) else nest

    def key(self, one: Instruction) -> int | None:
        """Equal for operators that compute the same of the same registers; None where that is not known."""
        if isinstance(one, Collective):
            return self.number((one.step, one.operand)) if isinstance(one.step, WindowStep) else None
        if not isinstance(one, Compute) or not is_pure(one):
            return None
        return None if one.function is None else self.number((one.function, one.operands))

    def others(self, one: Instruction, key: int | None) -> tuple[Register, ...] | None:
        """Registers that hold the results already; None if not all are held."""
        if isinstance(one, Collective) and not isinstance(one.step, WindowStep):
            known = self.held.get((self.value(one.operand), self.form(one.result)))
            return None if known is None else (known,)
        if key is None:
            return None
        found = tuple([self.held.get((key, i, self.form(register))) for i, register in enumerate(one.results)])
        return None if None in found else found  # type: ignore[return-value]

    def keep(self, one: Instruction, key: int | None) -> None:
        if isinstance(one, Collective) and not isinstance(one.step, WindowStep):
            self.hold(one.result, self.value(one.operand))
            return
        for i, register in enumerate(one.results):
            self.value(register)
            if key is not None:
                self.held[key, i, self.form(register)] = register
