"""What propagation has to know of an op, found out once for all ops with the same operator and rule: its OpClass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from autoshard.core.rule import PASS, Factor, Rule
from autoshard.core.rule_sdy import completed, spread
from autoshard.core.tensortype import TOKEN
from autoshard.layout.sharding import Sharding
from autoshard.ops.control import INTO, data_flow_edge, func_data_flow_edge, propagation_barrier
from autoshard.ops.registry import Operator
from autoshard.propagate.edges import is_edge, of_edge_op, sources
from autoshard.propagate.levels import Level, Mode, flags
from autoshard.propagate.mutable_ir import Operation, is_rare
from autoshard.propagate.step import Direction, PropagationStep, flags_of, step_of
from autoshard.propagate.views import inside, outside

Key = tuple[Sharding | None, ...]
# A step and its changes: (index into `Operation.holders`, sharding to keep there, sharding as the step has it).
StepChanges = tuple[PropagationStep, tuple[tuple[int, Sharding, Sharding], ...]]
# The flags of steps of an operator (with a direction of its own, if it has one): where operands have one use, and not.
FlagsOf = dict[tuple[Operator, Direction | None], tuple[int | None, int | None]]
View = tuple[Callable[[Sharding], Sharding], Callable[[Sharding], Sharding]]


class StepMemo(dict[Key, Any]):
    """Shardings -> what one step makes of them: a Found, or () if nothing changes.

    Args:
        view: for the last tensor, what the step sees of the kept sharding, and what is kept of the step's.
    """

    __slots__ = ("rule", "flags", "view")

    def __init__(self, rule: Rule, flags: int, view: View | None = None) -> None:
        super().__init__()
        self.rule = rule
        self.flags = flags
        self.view = view

    def __missing__(self, key: Key) -> StepChanges | tuple[()]:
        last = key[-1]
        seen = key if self.view is None or last is None else (*key[:-1], self.view[0](last))
        step = step_of(self.rule, seen, self.flags)
        self[key] = found = (step, tuple(map(self._stored, step.changes))) if step.changes else ()
        return found

    def _stored(self, change: tuple[int, Sharding]) -> tuple[int, Sharding, Sharding]:
        index, sharding = change
        if self.view is None or index != len(self.rule.operands):
            return index, sharding, sharding
        return index, self.view[1](sharding), sharding


class OpClass:
    """What equal ops share.

    Attributes:
        rule: the completed rule of the operator; None if it has none.
        used: the rule that steps go by: also data-flow edges and propagation barriers have one.
        plain: it has a rule and no data-flow edges.
        wide: which operands are no scalars.
        now: steps so far at the present level if each of those operands has one use, None if nothing may spread.
        now_shared: the same where one has several uses.
    """

    __slots__ = ("operator", "rule", "used", "plain", "fixed", "wide", "view", "memos", "memo", "memo_shared")

    def __init__(
        self,
        operator: Operator | None,
        rule: Rule | None,
        used: Rule | None,
        wide: tuple[int, ...] = (),
        fixed: Direction | None = None,
        view: View | None = None,
    ) -> None:
        self.operator = operator
        self.rule = rule
        self.used = used
        self.plain = used is not None and operator is not None and operator.edges is None
        self.wide = wide
        self.fixed = fixed
        self.view = view
        self.memos: dict[int, StepMemo] = {}
        self.memo: StepMemo | None = None
        self.memo_shared: StepMemo | None = None

    def allow(self, levels: Sequence[Level], mode: Mode, numbers: FlagsOf) -> bool:
        """Set `memo` and `memo_shared` for a run at which all of `levels` are allowed; returns whether they change.

        Args:
            numbers: the flags of operators in that run, as far as they are known.
        """
        if self.used is None or self.operator is None:
            return False
        now, shared = self.memo, self.memo_shared
        key = self.operator, self.fixed
        if key not in numbers:
            numbers[key] = self._number(levels, mode, True), self._number(levels, mode, False)
        self.memo, self.memo_shared = map(self._memo_of, numbers[key])
        return self.memo is not now or self.memo_shared is not shared

    def _number(self, levels: Sequence[Level], mode: Mode, single: bool) -> int | None:
        assert self.operator is not None
        if is_edge(self.operator):
            mode = Mode(mode.aggressive)
        pointwise = self.operator.spread == "pointwise"
        if self.fixed is not None:
            return flags_of(self.fixed, aggressive=mode.aggressive, pointwise=pointwise) if self.fixed else None
        return flags(levels, self.operator, self.operator.spread, single, pointwise, mode)

    def _memo_of(self, number: int | None) -> StepMemo | None:
        if number is None or self.used is None:
            return None
        if number not in self.memos:
            self.memos[number] = StepMemo(self.used, number, self.view)
        return self.memos[number]


# The info of ops that shardings do not pass.
NO_CLASS = OpClass(None, None, None)


@lru_cache(maxsize=4096)
def identity(shape: tuple[int, ...], operands: int = 1) -> Rule:
    """The rule by which all operands and the one result, of that shape, lie alike."""
    factors = tuple(Factor(f"_{i}", size, PASS) for i, size in enumerate(shape))
    dims = tuple((i,) for i in range(len(shape)))
    return Rule(factors, (dims,) * operands, (dims,))


class OpClasses:
    """Finds the class of ops.

    Args:
        conservative: use the rules of conservative propagation.
        foreign: also use rules that we have and Shardy has not.
    """

    def __init__(self, conservative: bool = False, foreign: bool = False) -> None:
        self.conservative = conservative
        self.foreign = foreign
        self.all: dict[Any, OpClass] = {}
        self._given: dict[Rule, Rule] = {}
        self._equal: dict[tuple, tuple] = {}

    def find(self, op: Operation) -> OpClass:
        """The class of an op.

        Raises:
            GraphError: a DataFlowEdge op that is on no edge.
            ShapeError: an op that does not fit its operator's rule.
        """
        origin = op.origin
        if origin is None or origin.op is not op.operator or origin.given_rule is not None or is_rare(origin.op):
            return self._find(op)
        # Readers make equal attributes and types one object, so most ops are found without comparing these.
        attrs, types = origin.attrs, [value.type for value in op.operands]
        key = (origin.op, id(attrs), *map(id, types))
        known = self._equal.get(key)
        if known is None:
            # Attributes and types are kept, so that no other object comes to have their id.
            known = self._equal[key] = self._find(op), attrs, types
        return known[0]

    def _find(self, op: Operation) -> OpClass:
        if op.operator is data_flow_edge:
            return self._edge(op)
        if op.operator is func_data_flow_edge:
            return self._plain_edge(op)
        if op.operator is propagation_barrier:
            return self._barrier(op)
        rule = self._rule(op)
        if rule is None:
            return NO_CLASS
        key = op.operator.name, id(rule)
        op_class = self.all.get(key)
        if op_class is None:
            whole = completed(spread(rule))
            op_class = self.all[key] = OpClass(op.operator, whole, whole, _wide(op))
        return op_class

    def _rule(self, op: Operation) -> Rule | None:
        """The rule of an op, which the op itself may carry; what has no operands or no results needs none."""
        if not op.operands or not op.results:
            return None
        if op.origin is not None and op.origin.given_rule is not None:
            # Classes are told apart by the identity of rules; those that operators make are made once anyway.
            return self._given.setdefault(op.origin.given_rule, op.origin.given_rule)
        operator = op.operator
        if not operator.has_rule or (operator.foreign and not self.foreign):
            return None
        if self.conservative:
            return operator.conservative_rule(tuple(value.type for value in op.operands), op.attrs)
        if op.origin is not None and op.origin.op is operator:
            return op.origin.rule
        return operator.rule(tuple(value.type for value in op.operands), op.attrs)

    def _edge(self, op: Operation) -> OpClass:
        parent, edge = of_edge_op(op)
        if edge.crosses:
            shape, count = op.results[0].type.shape, len(sources(op))
            view = _crossing(parent, edge.crosses, parent.at(edge.targets[0]).index)
            op_class = self.all[op] = OpClass(data_flow_edge, None, identity(shape, count), view=view)
            return op_class
        return self._plain_edge(op)

    def _plain_edge(self, op: Operation) -> OpClass:
        shape, count = op.results[0].type.shape, len(sources(op))
        key = op.operator, shape, count
        if key not in self.all:
            self.all[key] = OpClass(op.operator, None, identity(shape, count))
        return self.all[key]

    def _barrier(self, op: Operation) -> OpClass:
        direction = Direction[str(op.attrs["direction"]).upper()]
        key = propagation_barrier, op.results[0].type.shape, direction
        if key not in self.all:
            self.all[key] = OpClass(propagation_barrier, None, identity(op.results[0].type.shape), fixed=direction)
        return self.all[key]


def _wide(op: Operation) -> tuple[int, ...]:
    return tuple(i for i, value in enumerate(op.operands) if value.type.shape or value.type.dtype is TOKEN)


def _crossing(parent: Operation, crosses: str, index: int) -> View:
    """The views of an edge into or out of a body that is local along manual axes."""
    axes = parent.attrs["manual_axes"]
    name = "in_shardings" if crosses == INTO else "out_shardings"
    given = parent.attrs.get(name) or ()
    before = given[index] if index < len(given) else None

    def inward(sharding: Sharding) -> Sharding:
        return inside(sharding, axes)

    def outward(sharding: Sharding) -> Sharding:
        return outside(sharding, before, axes)

    return (outward, inward) if crosses == INTO else (inward, outward)
