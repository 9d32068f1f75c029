"""Sums at the end: what the turns of a loop add up stays terms on each rank, and is summed over ranks once, behind it.

Gradients of micro batches are so: each turn leaves a term of a gradient on every rank, brings it into the layout in
which the sum is carried (all_reduce, reduce_scatter), and adds it. Added up as terms, what went over links in every
turn goes once, as PyTorch's `no_sync` has it. Where the sum is carried in parts, terms take more memory: it has to be
there.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.core.tensortype import TensorType
from autoshard.cost.instructions import Costs, Setting
from autoshard.optimize.chains import as_step, brought
from autoshard.optimize.rewrite import InstructionBlock, Namer, Replacement, swept
from autoshard.partition.program import Collective, Compute, Instruction, Nest, NestBody, Program, Register, walk


def defer(program: Program, setting: Setting) -> Program:
    """The program with sums over ranks behind loops in place of inside, where that takes less time."""
    namer, zeros = Namer(program), dict(_zeros(program))

    def sweep(block: InstructionBlock) -> Sequence[Replacement]:
        if block.manual:
            return ()
        nests = [(i, one) for i, one in enumerate(block.instructions) if isinstance(one, Nest)]
        found = (_deferred(i, nest, zeros, namer, setting) for i, nest in nests if nest.node.op.name == "While")
        return [change for change in found if change is not None]

    return swept(program, sweep)


@dataclass(frozen=True)
class _Sum:
    """A sum that a loop carries: its place, its addition, and what leads from the terms of a rank to what is added."""

    place: int
    add: Compute
    way: tuple[Collective | Compute, ...]

    @property
    def terms(self) -> Register:
        return self.way[0].operands[0]

    @property
    def inside(self) -> tuple[Compute | Collective, ...]:
        """What each turn does for it."""
        return (*self.way, self.add)


def _zeros(program: Program) -> Iterator[tuple[Register, Compute]]:
    """What holds zeros, and what makes them."""
    known: dict[Register, Compute] = {}
    for one in walk(program.instructions):
        step = as_step(one)
        if isinstance(one, Compute) and one.op.name == "Fill" and one.attrs["value"] == 0:
            known[one.results[0]] = one
        elif step is not None and not step.step.communicates and step.operand in known:
            known[step.result] = known[step.operand]
    yield from known.items()


def _deferred(
    position: int, nest: Nest, zeros: dict[Register, Compute], namer: Namer, setting: Setting
) -> Replacement | None:
    """The loop with its sums behind it, as far as that pays and may be."""
    starts: dict[tuple, Compute] = {}
    behind: list[Instruction] = []
    for one in _sums(nest, zeros):
        register = nest.results[one.place]
        inside = _inside(nest, one, namer)
        entering, sum_ = nest.entering[one.place], inside[-1].results[0]
        alike = sum_.whole, sum_.layout, sum_.size
        start = starts.get(alike) or _start(zeros[entering], sum_, namer(entering.name))
        total = _like(one.terms, register, namer)
        steps, _ = brought([total], [(register, one.add.node)], namer)
        if _pays(one, inside, [start, *steps], nest.trips, setting.costs) and setting.ok(register.name):
            nest = _with(nest, one, inside, start.results[0], total, namer)
            starts[alike] = zeros[start.results[0]] = start
            behind += steps
    if not behind:
        return None
    return Replacement(nest.node.label, frozenset((position,)), {position: (*starts.values(), nest, *behind)})


def _sums(nest: Nest, zeros: Container[Register]) -> Iterator[_Sum]:
    """The sums that a loop carries and begins with nothing, whose terms are summed over ranks in each turn."""
    condition, body = nest.bodies
    inside = InstructionBlock(body.instructions, body.outputs)
    asked = InstructionBlock(condition.instructions, condition.outputs)
    for place, (arg, output) in enumerate(zip(body.args, body.outputs, strict=True)):
        add = inside.maker(output)
        if not isinstance(add, Compute) or add.op.name != "Add" or add.operands.count(arg) != 1 or nest.trips < 2:
            continue
        alone = len(inside.users(arg)) == len(inside.users(output)) == 1 and body.outputs.count(output) == 1
        if not alone or asked.users(condition.args[place]) or nest.entering[place] not in zeros:
            continue
        way = _way(inside, next(one for one in add.operands if one is not arg))
        if way:
            yield _Sum(place, add, way)


def _way(inside: InstructionBlock, added: Register) -> tuple[Collective | Compute, ...]:
    """What leads from the terms of each rank to what is added, if nothing else needs anything of it."""
    way: list[Collective | Compute] = []
    while len(inside.users(added)) == 1:
        maker = inside.maker(added)
        if not isinstance(maker, Compute | Collective) or not _is_alike(maker) and as_step(maker) is None:
            break
        way.append(maker)
        added = maker.operands[0]
    way.reverse()
    first = next((i for i, one in enumerate(way) if isinstance(one, Collective) and one.operand.layout.partial), None)
    if first is None or way[first].operands[0].layout.reduction != "sum":
        return ()
    return tuple(way[first:])


def _is_alike(one: Instruction) -> bool:
    """Whether it does the same to a sum as to its terms, element by element: what is linear, and a cast that rounds
    none of them."""
    if not isinstance(one, Compute) or len(one.operands) != 1 or one.op.spread != "pointwise":
        return False
    before, after = one.operands[0].whole.dtype, one.results[0].whole.dtype
    widens = before.is_float and after.is_float and before.itemsize <= after.itemsize
    return (0,) in one.op.linear_in(1) or one.op.name == "Cast" and widens


def _inside(nest: Nest, one: _Sum, namer: Namer) -> tuple[Compute, ...]:
    """What each turn does instead: the same to terms, and their addition."""
    now, found = one.terms, []
    for step in one.way:
        if isinstance(step, Compute):
            made = _like(one.terms, step.results[0], namer)
            found.append(replace(step, operands=(now,), results=(made,)))
            now = made
    arg, total = (_like(one.terms, like, namer) for like in (nest.bodies[1].args[one.place], one.add.results[0]))
    return (*found, replace(one.add, operands=(arg, now), results=(total,)))


def _like(terms: Register, register: Register, namer: Namer) -> Register:
    """A register of the element type of another, which lies as terms do."""
    whole = TensorType(terms.whole.shape, register.whole.dtype)
    return Register(namer(register.name), whole, terms.layout, terms.size)


def _start(zeros: Compute, sum_: Register, name: str) -> Compute:
    """Nothing, as it lies before the first turn."""
    made = Register(name, sum_.whole, sum_.layout, sum_.size)
    return replace(zeros, results=(made,), attrs={**zeros.attrs, "shape": sum_.local.shape})


def _pays(one: _Sum, inside: Sequence[Instruction], outside: Sequence[Instruction], trips: int, costs: Costs) -> bool:
    """Whether less goes over the links, in less time with what additions take."""
    before, after = costs.total(one.inside), costs.total(inside)
    behind = costs.total(outside)
    sent = after.nbytes * trips + behind.nbytes < before.nbytes * trips
    return sent and after.seconds * trips + behind.seconds < before.seconds * trips


def _with(nest: Nest, one: _Sum, inside: Sequence[Compute], start: Register, total: Register, namer: Namer) -> Nest:
    """The loop that carries terms."""
    condition, body = nest.bodies
    arg, place, gone = inside[-1].operands[0], one.place, set(one.inside)
    made: list[Instruction] = []
    for instruction in body.instructions:
        made += inside if instruction is one.add else ()
        made += () if instruction in gone else (instruction,)
    asked = _put(condition.args, place, _like(total, condition.args[place], namer))
    bodies = (
        NestBody(asked, condition.instructions, condition.outputs),
        NestBody(_put(body.args, place, arg), tuple(made), _put(body.outputs, place, inside[-1].results[0])),
    )
    entering, results = _put(nest.entering, place, start), _put(nest.results, place, total)
    return replace(nest, entering=entering, results=results, bodies=bodies)


def _put(registers: tuple[Register, ...], place: int, register: Register) -> tuple[Register, ...]:
    return (*registers[:place], register, *registers[place + 1 :])
