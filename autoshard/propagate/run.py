"""Propagation as one call: strategy, op priority and user priority, nested as in Shardy.

Outermost are the rounds of user priority, inside them the levels of op priority, inside these the strategies, each a
run to the fixed point. `run_basic`, `run_aggressive`, `run_op_priority` and `run_user_priority` equal Shardy's passes
sdy-basic-propagate, sdy-aggressive-propagate, sdy-op-priority-propagate and sdy-user-priority-propagate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autoshard.propagate.driver import Event, PropagationDriver
from autoshard.propagate.levels import ANY, ORDER, Level, Mode
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation
from autoshard.propagate.op_classes import OpClasses
from autoshard.propagate.priorities import release, start_with_priority_0
from autoshard.propagate.values import store
from autoshard.util.errors import ContextError

STRATEGIES = {"basic": (False,), "aggressive": (True,), "basic-then-aggressive": (False, True)}


@dataclass(frozen=True)
class Options:
    """How shardings are propagated.

    Attributes:
        strategy: 'basic' (only what suits all tensors of an operator), 'aggressive' (conflicts between factors are
            decided) or 'basic-then-aggressive'.
        op_priority: go through the levels of `order`, Shardy's if None.
        user_priority: go through the priorities that shardings give to dims; otherwise these are not looked at.
        conservative: never split unevenly or by parts of axes.
        keep_rules: leave the rule of each op in `op.info.rule`.
        foreign: spread also through operators that Shardy has no rule for.

    Raises:
        ContextError: no such strategy.
    """

    strategy: str = "aggressive"
    op_priority: bool = True
    user_priority: bool = True
    conservative: bool = False
    order: tuple[Level, ...] | None = None
    keep_rules: bool = False
    foreign: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ContextError(f"unknown propagation strategy {self.strategy!r}; known are {', '.join(STRATEGIES)}")


@dataclass(frozen=True, eq=False)
class Log:
    """What a propagation did.

    Attributes:
        events: the steps that changed something, in order.
        without_rule: ops that shardings do not pass because nothing is known of them.
        groups: the members of the sharding groups, by number; the values that stand for them where they disagreed.
        warnings: disagreements in sharding groups.
    """

    events: tuple[Event, ...]
    without_rule: tuple[Operation, ...]
    groups: dict[int, list[MutableValue]]
    warnings: tuple[str, ...]


def propagate(module: MutableModule, options: Options = Options()) -> Log:
    """Spread the shardings of a mutable module over it, in place.

    Data-flow edges are spread along if they have DataFlowEdge ops, see `edges.add_edges`. Values, outputs and
    the attributes `sharding`, `in_shardings` and `out_shardings` have the new shardings afterwards.
    """
    classes = OpClasses(options.conservative, options.foreign)
    spreader = PropagationDriver(module, classes)
    waiting = start_with_priority_0(module) if options.user_priority else {}
    _levels(spreader, options)
    for priority, locations in waiting.items():
        release(locations, priority)
        spreader.invalidate()
        spreader.priority = priority
        _levels(spreader, options)
    store(module)
    if not options.keep_rules:
        for op in spreader.ops:
            op.op_class = None
    groups = spreader.groups
    return Log(tuple(spreader.events), tuple(spreader.without_rule), groups.members, tuple(groups.warnings))


def _levels(spreader: PropagationDriver, options: Options) -> None:
    levels = (options.order or ORDER) if options.op_priority else ANY
    for i in range(len(levels)):
        spreader.level = i if options.op_priority else None
        for aggressive in STRATEGIES[options.strategy]:
            spreader.run(levels[: i + 1], Mode(aggressive, options.conservative))


def run_basic(module: MutableModule, **options: Any) -> Log:
    """Only what suits all tensors of an operator; no priorities. Options as in `Options`."""
    return propagate(module, replace(_PLAIN, strategy="basic", **options))


def run_aggressive(module: MutableModule, **options: Any) -> Log:
    """Conflicts between factors are decided; no priorities. Options as in `Options`."""
    return propagate(module, replace(_PLAIN, **options))


def run_op_priority(module: MutableModule, **options: Any) -> Log:
    """Level by level of op priority. Options as in `Options`."""
    return propagate(module, replace(_PLAIN, op_priority=True, **options))


def run_user_priority(module: MutableModule, **options: Any) -> Log:
    """Round by round of user priority, in each level by level of op priority. Options as in `Options`."""
    return propagate(module, replace(_PLAIN, op_priority=True, user_priority=True, **options))


_PLAIN = Options(op_priority=False, user_priority=False)
