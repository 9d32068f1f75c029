"""Spreading to a fixed point in Shardy's order.

The outcome depends on the order of steps, so this copies how MLIR's greedy pattern driver goes about it, as Shardy's
passes use it (one iteration, no folding): all ops in order first; what a change touches is put on a stack, unless it
waits already, and taken before the scan goes on. Operations that nobody needs are erased when their turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from autoshard.core.tensortype import TensorType, dtype
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import (
    ARG,
    INTO,
    OPERAND,
    YIELD,
    ValueLocation,
    call,
    data_flow_edge,
    function,
    module,
    return_,
    yield_,
)
from autoshard.ops.registry import lookup
from autoshard.propagate.edges import is_edge, of_edge_op, other_targets, sources
from autoshard.propagate.function_edges import users_across
from autoshard.propagate.groups import ShardingGroups
from autoshard.propagate.levels import Level, Mode
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, Use
from autoshard.propagate.op_classes import NO_CLASS, FlagsOf, Key, OpClass, OpClasses, StepChanges, StepMemo, identity
from autoshard.propagate.step import PropagationStep, flags_of
from autoshard.propagate.values import edge_op, holder, set_holder, set_sharding

_TERMINATORS = (return_, yield_)
_new_tuple = tuple.__new__
_STRUCTURE = (module, function, *_TERMINATORS)
# Stands for values that cannot have a sharding; its own never changes.
_NO_HOLDER = MutableValue(TensorType((), dtype("f32")), Operation(lookup("Module"), (), (), {}), 0)


class Event(NamedTuple):
    """One step that changed something.

    Attributes:
        op: the op that was visited; a Function when one of its outputs (`output`) met the value that it returns.
        step: what changed; tensors are the op's operands and results, the sources and target of a data-flow edge, or
            the returned value and the output.
        before: the shardings that the step found (as they are kept; an edge into or out of a body with manual axes
            sees them without these, or with them).
        level: position in the op priority order, None without one.
        priority: the user priority of the round.
    """

    op: Operation
    step: PropagationStep
    before: tuple[Sharding | None, ...]
    level: int | None
    priority: int
    output: int | None = None


class PropagationDriver:
    """The state of one propagation over a mutable module.

    Attributes:
        events: what changed, in order.
        without_rule: ops that have operands and results, and no rule or edges.
        groups: the sharding groups.
    """

    def __init__(self, mutable: MutableModule, classes: OpClasses) -> None:
        self.module = mutable
        self.events: list[Event] = []
        self.groups = ShardingGroups(mutable)
        self.groups.sync()
        self.level: int | None = None
        self.priority = 0
        self.ops = [op for op in mutable.op.walk() if op.operator not in _STRUCTURE]
        self._affected: dict[MutableValue, list[Operation]] = {}
        of_info: dict[OpClass, list[Operation]] = {}
        for op in self.ops:
            op_class = op.op_class = classes.find(op)
            of_info.setdefault(op_class, []).append(op)
        self.classes: list[OpClass] = list(of_info)
        self.without_rule = [op for op in of_info.pop(NO_CLASS, ()) if _lacks_rule(op)]
        # Ops whose tensors may change without their being touched; all others need a visit only where they changed
        # something when visited last, or may do more than then.
        self._always_visit = [op for ops in of_info.values() for op in ops if _find_holders(op)]
        self._ops_of_class = of_info
        self._outputs = list(self._main_outputs())
        self._swept = False
        self._changed: set[tuple[Operation, Key]] = set()
        self._dirty: set[Operation] | None = None
        self._number()

    def run(self, levels: tuple[Level, ...], mode: Mode) -> None:
        """Spread to the fixed point, at which all of `levels` are allowed."""
        self.spread_outputs(mode)
        more = self.allow(levels, mode)
        if not self._swept and any(map(is_dead, self.ops)):
            self._dirty = set()
            self.spread(bytearray(b"\1") * len(self.ops), sweeping=True)
            self.ops = [op for op in self.ops if op.parent is not None]
            # What was found near a value may be an op that is erased now, which has a number no more.
            self._affected.clear()
            self._number()
            self._dirty = None
        else:
            self.spread(self._worth_a_visit(more))
        self._swept = True
        self.spread_outputs(mode)

    def invalidate(self) -> None:
        """Shardings were changed from outside, so all ops need a visit."""
        self._dirty = None

    def _number(self) -> None:
        for number, op in enumerate(self.ops):
            op.number = number

    def allow(self, levels: tuple[Level, ...], mode: Mode) -> list[OpClass]:
        """Set what ops may do; returns the classes of ops for which that is something else than before."""
        numbers: FlagsOf = {}
        return [op_class for op_class in self.classes if op_class.allow(levels, mode, numbers)]

    def _worth_a_visit(self, more: list[OpClass]) -> bytearray:
        """Which ops of `ops` a scan has to visit; a visit would change nothing at the others."""
        restless, self._dirty = self._dirty, set()
        todo = bytearray(len(self.ops))
        groups = (self._ops_of_class.get(op_class, ()) for op_class in (self.classes if restless is None else more))
        for op in chain.from_iterable(groups):
            # Classes hold also ops that were erased.
            if op.op_class.memo is not None and op.parent is not None:
                for value in op.holders:  # type: ignore[union-attr]
                    if value.sharding is not None:
                        todo[op.number] = 1
                        break
        for op in chain(restless or (), self._always_visit):
            if op.parent is not None:
                todo[op.number] = 1
        return todo

    def spread(self, todo: bytearray, sweeping: bool = False) -> None:
        """Visit in order the ops that `todo` marks, and what changes touch; when sweeping, erase dead ops.

        As in MLIR's driver, all ops wait for the scan, also those that it would visit in vain: what a change touches
        is put on the stack only behind the scan, and before it marked for its visit.
        """
        ops = self.ops
        stack: list[Operation] = []
        waiting: set[Operation] = set()
        position = 0
        while True:
            if stack:
                op = stack.pop()
                waiting.remove(op)
            else:
                position = todo.find(1, position)
                if position < 0:
                    return
                op = ops[position]
                position += 1
            if sweeping and (op.parent is None or is_dead(op)):
                _push(self._erase(op), op, todo, position, stack, waiting)
                continue
            # As `visit`, written out because nearly all time is spent here.
            op_class = op.op_class
            now = op_class.memo
            if now is not op_class.memo_shared and _shares(op, op_class):
                now = op_class.memo_shared
            if now is None:
                continue
            before = tuple([value.sharding for value in op.holders])  # type: ignore[union-attr]
            found = now[before]
            if found:
                _push(self.apply(op, found, before), op, todo, position, stack, waiting)

    def _oscillates(self, op: Operation, before: Key) -> bool:
        """Whether the border of a body is to change once more what it has changed from these shardings before.

        Steps only add axes, but what is kept inside of a body has none of the manual ones, and loses those in front of
        one (`views.py`): what was added is gone again, and that would go on for ever.
        """
        if (op, before) in self._changed:
            return True
        self._changed.add((op, before))
        return False

    def apply(self, op: Operation, found: StepChanges, before: Key) -> list[Operation]:
        """Change the shardings that a step changes; returns the ops that this touches, first the first to push."""
        step, changes = found
        if op.op_class.view is not None and self._oscillates(op, before):
            return []
        holders: list[MutableValue] = op.holders  # type: ignore[assignment]
        if self._dirty is not None:
            self._dirty.add(op)
        # Event(...) takes twice as long.
        self.events.append(_new_tuple(Event, (op, step, before, self.level, self.priority, None)))
        touched: list[Operation] = []
        groups = self.groups.of
        for index, kept, seen in changes:
            value = holders[index]
            if value is _NO_HOLDER:
                continue
            owner = value.owner
            if type(owner) is Operation and len(owner.results) == 1:
                value.sharding = kept
            else:
                set_holder(value, kept)
            touched += self._affected.get(value) or self.affected(value)
            if groups and value in groups:
                # Shardy gives members inside a body also the manual axes that only the outside knows; that is no
                # module any more.
                touched += self._spread_in_group(value, kept if _leads_into_a_body(op) else seen)
        return touched

    def _spread_in_group(self, value: MutableValue, sharding: Sharding) -> list[Operation]:
        touched: list[Operation] = []
        for member in self.groups.of.get(value, ()):
            if member is not value:
                set_sharding(member, sharding)
                touched += self.affected(member)
        return touched

    def affected(self, value: MutableValue) -> list[Operation]:
        """The ops with rules that a change of the value's sharding touches, in the order that Shardy pushes them."""
        near = self._affected.get(value)
        if near is None:
            owner = value.owner
            near = (
                _plain_affected(value, owner)
                if type(owner) is Operation and owner.op_class is not None and owner.op_class.plain
                else None
            )
            if near is None:
                touched = dict.fromkeys(_touched(value))
                near = [op for op in touched if op.op_class is not None and op.op_class.used is not None]
            self._affected[value] = near
        return near

    # -- dead code

    def _erase(self, op: Operation) -> list[Operation]:
        """Erase an op, unless that is done; returns the ops that may be dead now."""
        makers: list[Operation] = []
        for part in _last_first(op) if op.parent is not None else ():
            for value in part.operands:
                maker = value.defining
                if maker is not None and len({user for user, _ in value.uses} - {part}) < 2:
                    makers.append(maker)
            part.op_class = NO_CLASS
            part.erase()
        return makers

    # -- what the main function returns

    def _main_outputs(self) -> Iterator[tuple[Operation, int, MutableValue]]:
        """The main function, which output, and the value that keeps the sharding of what is returned there."""
        main = self.module.main
        if main is not None:
            for i, value in enumerate(main.blocks[0].terminator.operands):
                holders = holder(value) if value.is_tensor else None
                if holders is not None:
                    yield main, i, holders

    def spread_outputs(self, mode: Mode) -> None:
        """Spread between the values that the main function returns and what is asked of its outputs."""
        flags = flags_of(aggressive=mode.aggressive)
        for main, i, value in self._outputs:
            outputs = main.attrs["outputs"]
            before = value.sharding, outputs[i]
            found = StepMemo(identity(value.type.shape), flags)[before]
            if not found:
                continue
            self.events.append(Event(main, found[0], before, self.level, self.priority, i))
            for index, sharding, _ in found[1]:
                if index == 0:
                    self.invalidate()
                    set_holder(value, sharding)
                    self._spread_in_group(value, sharding)
                else:
                    outputs[i] = sharding


def _leads_into_a_body(op: Operation) -> bool:
    return op.operator is data_flow_edge and of_edge_op(op)[1].crosses == INTO


def _shares(op: Operation, op_class: OpClass) -> bool:
    """Whether an operand that is no scalar has other uses."""
    operands = op.operands
    return any(len(operands[i].uses) != 1 for i in op_class.wide)


def _push(
    touched: list[Operation],
    by: Operation,
    todo: bytearray,
    position: int,
    stack: list[Operation],
    waiting: set[Operation],
) -> None:
    """Let ops that were touched wait for their visit, the last one first."""
    for op in touched:
        number = op.number
        if number >= position:
            todo[number] = 1
        elif op not in waiting and op is not by:
            waiting.add(op)
            stack.append(op)


def _find_holders(op: Operation) -> bool:
    """Note where an op with a rule finds shardings; returns whether one may change without touching the op."""
    operator = op.operator
    aloof = is_edge(operator) or operator.edges is not None
    holders: list[MutableValue] = []
    for value in sources(op) if is_edge(operator) else op.operands:
        owner = value.owner
        # As `holder`, for the results of ops without edges, which are nearly all values.
        if isinstance(owner, Operation) and owner.operator.options.edges is None:
            aloof = aloof or len(owner.results) > 1
            holders.append(value)
        else:
            keeper = holder(value) or _NO_HOLDER
            aloof = aloof or keeper is not value or isinstance(owner, Operation) or owner.owner.operator is not function
            holders.append(keeper)
    holders += op.results if operator.edges is None else [holder(value) or _NO_HOLDER for value in op.results]
    op.holders = holders
    return aloof


def _lacks_rule(op: Operation) -> bool:
    return op.op_class.used is None and op.operator.edges is None and bool(op.operands) and bool(op.results)


def is_dead(op: Operation) -> bool:
    """Whether nobody needs the op: no result is used, and it does nothing else."""
    for value in op.results:
        if value.uses:
            return False
    return _is_pure(op)


def _is_pure(op: Operation) -> bool:
    if op.operator.has_effects(op.attrs):
        return False
    inner = (part for block in op.blocks for part in block if part.operator not in _TERMINATORS)
    return all(map(_is_pure, inner))


def _last_first(op: Operation) -> list[Operation]:
    """The op and all inside it, in the order in which MLIR erases them."""
    parts = [part for block in reversed(op.blocks) for inner in reversed(list(block)) for part in _last_first(inner)]
    return [*parts, op]


def _plain_affected(value: MutableValue, maker: Operation) -> list[Operation] | None:
    """What `affected` finds if only ops with a rule and no edges make and use the value; None otherwise."""
    if maker.operator is data_flow_edge:
        return None
    near = [maker]
    for user, _ in reversed(value.uses):
        op_class = user.op_class
        if op_class is None or not op_class.plain:
            return None
        if user not in near:
            near.append(user)
            if len(near) > 16:
                # Looking through the list would take longer than hashing.
                return None
    return near


def _touched(value: MutableValue) -> Iterator[Operation]:
    owner = value.owner
    if isinstance(owner, Operation):
        if owner.operator is data_flow_edge:
            for target in other_targets(owner):
                yield from _users(target)
        yield owner
    else:
        yield owner.owner
    yield from _users(value)


def _users(value: MutableValue) -> Iterator[Operation]:
    for use in value.users:
        operator = use[0].operator
        if operator is call or operator is return_:
            yield from users_across(use)
        else:
            yield _touched_by_use(use)


def _touched_by_use(use: Use) -> Operation:
    """The op that a use brings in: the edge that it is a source of, for terminators the parent, else the user.

    An edge into a body is not brought in. Shardy means to do so, but takes the operand for the owner of the edge
    (getEdgeOwnerFromSource in dialect.cc), and finds the edge changed only when it comes by in a later run.
    """
    user, index = use
    if user.op_class is not None and user.op_class.plain:
        return user
    parent, location = user, ValueLocation(OPERAND, index)
    block = user.parent
    if user.operator in _TERMINATORS and block is not None:
        parent = block.owner
        location = ValueLocation(YIELD, index, parent.blocks.index(block))
    if parent.operator.edges is None:
        return parent
    edge = parent.links.sources.get(location)
    if edge is None or edge.targets[0].kind == ARG:
        return parent
    return edge_op(parent.at(edge.targets[0])) or parent
