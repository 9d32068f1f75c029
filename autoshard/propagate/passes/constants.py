"""Constants, a copy for each use while shardings spread, merged again afterwards.

A constant costs nothing to make anywhere, so each use of one may be split in its own way; as one value, it would carry
shardings from one use to the others. The same holds for what is computed from constants alone, and for scalars that
are broadcast. See ConstantOrScalarSplitterPass and ConstantOrScalarMergerPass of Shardy.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from autoshard.ops.registry import Operator
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation
from autoshard.propagate.passes.edit import clone, inside_out, is_pure, named, outside_in
from autoshard.propagate.passes.functions import Symbols, callees_first, clone_function, original_name


def split_constants(module: MutableModule) -> None:
    """Give each use of a constant computation, or of a scalar broadcast, its own copy.

    Constant computations are constants, iotas, and elementwise operations, broadcasts, reshapes, slices and calls of
    functions made of such that have only constant operands. Scalars are shared: they are never split.
    From here on, constants must not be folded together: the text form writes them as `sdy.constant`.
    This is sdy-constant-or-scalar-splitter.
    """
    for op in outside_in(module.op.blocks[0]):
        if _kind(op.operator) == _CONSTANT:
            _turn_uses(op.results[0])
    splitter = _Splitter(Symbols(module))
    for function in callees_first(module):
        for op in named(function, "NamedComputation"):
            splitter.split(op.blocks[0], function, op)
        splitter.split(function.blocks[0], function, None)


def _turn_uses(value: MutableValue) -> None:
    """Reverse the order of the uses, as MLIR does when an operation is exchanged for another."""
    if len(value.uses) > 1:
        value.uses = dict.fromkeys(reversed(value.uses))


# What an operator is to the splitter. An expansion broadcasts; if it does so to a scalar, each use gets its own.
_CONSTANT, _SOURCE, _FOLD, _EXPANSION, _CALL, _NAMED, _GROUP, _END, _OTHER = range(9)
_KINDS = {
    "Constant": _CONSTANT,
    "Fill": _CONSTANT,
    "Call": _CALL,
    "NamedComputation": _NAMED,
    "ShardingGroup": _GROUP,
    "Return": _END,
    "Yield": _END,
}


@lru_cache(maxsize=4096)
def _kind(operator: Operator) -> int:
    kind = _KINDS.get(operator.name)
    if kind is not None:
        return kind
    if operator.constant == "source":
        return _SOURCE
    if operator.constant == "fold":
        return _EXPANSION if operator.spread == "broadcast" else _FOLD
    return _OTHER


class _Splitter:
    """What is known while the blocks are split, callees first."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        # Names of functions and of named computations that do something else than computing on constants.
        self.varying_functions: set[str] = set()
        self.varying_named: set[str] = set()
        # Of the block at hand: constant computations, and broadcasts of scalars that are not.
        self.constants: dict[Operation, None] = {}
        self.expansions: dict[Operation, None] = {}

    def split(self, block: Block, function: Operation, inside: Operation | None) -> None:
        """Split what a block holds: the body of a function, or of the named computation `inside`."""
        self.constants, self.expansions = {}, {}
        if self.visit(block):
            self.varying_functions.add(original_name(function))
            if inside is not None:
                self.varying_named.add(inside.attrs["name"])
        for op in chain(self.expansions, reversed(self.constants)):
            _erase_unless_used(op)

    def visit(self, block: Block) -> bool:
        """Returns whether anything in it does something else than computing on constants."""
        varying = False
        op = block.first
        while op is not None:
            kind = _kind(op.operator)
            varying |= self.process(op, kind)
            if op.blocks and kind != _NAMED:
                for inner in op.blocks:
                    varying |= self.visit(inner)
            op = op.next
        return varying

    def process(self, op: Operation, kind: int) -> bool:
        if kind <= _SOURCE:
            self.constants[op] = None
            return False
        if kind == _GROUP:
            return False
        preserving = kind <= _NAMED and self.preserves(op, kind)
        if preserving and self.is_constant(op.operands):
            self.constants[op] = None
            return False
        if kind == _EXPANSION and not op.operands[0].type.shape:
            self.expansions[op] = None
        else:
            self.clone_operands(op)
        return not preserving and kind != _END

    def is_constant(self, values: list[MutableValue]) -> bool:
        constants = self.constants
        return all([value.owner in constants for value in values])

    def preserves(self, op: Operation, kind: int) -> bool:
        """Whether the results are constant when the operands are."""
        if kind == _CALL:
            return original_name(self.symbols.callee(op)) not in self.varying_functions
        if kind == _NAMED:
            return op.attrs["name"] not in self.varying_named
        return is_pure(op)

    def clone_operands(self, op: Operation) -> None:
        constants, expansions = self.constants, self.expansions
        for i, value in enumerate(op.operands):
            if value.owner in constants or value.owner in expansions:
                values: dict[MutableValue, MutableValue] = {}
                self.clone_computation(value, values)
                # A scalar stays the same value, but this becomes its newest use.
                op.set_operand(i, values.get(value, value))

    def clone_computation(self, value: MutableValue, values: dict[MutableValue, MutableValue]) -> None:
        """Copy what computes `value`, each operation directly before its original."""
        op = value.defining
        if op is None or not value.type.shape or value in values:
            return
        for operand in op.operands:
            self.clone_computation(operand, values)
        copy = _insert_clone(op, op, values)
        if copy.operator.name == "Call":
            copy.attrs["callee"] = clone_function(self.symbols.callee(copy), self.symbols)
        groups = [user for user, _ in value.users if user.operator.name == "ShardingGroup"]
        for group in groups:
            _insert_clone(group, op, values)


def _insert_clone(op: Operation, before: Operation, values: dict[MutableValue, MutableValue]) -> Operation:
    assert before.parent is not None
    return before.parent.insert(clone(op, values), before)


def _erase_unless_used(op: Operation) -> None:
    """Erase an operation, and the groups that it is in, if nothing else uses it."""
    users = {user: None for value in op.results for user, _ in value.users}
    if any(user.operator.name != "ShardingGroup" for user in users):
        return
    for user in users:
        user.erase()
    op.erase()


def merge_constants(module: MutableModule) -> None:
    """Let equal constants and equal broadcasts of one scalar be one again where their shardings are equal.

    What stands in different regions stays apart (sdy-constant-or-scalar-merger).
    """
    for function in module.op.blocks[0]:
        _merge(inside_out(function))


def _merge(ops: Iterable[Operation]) -> None:
    kept: dict[object, Operation] = {}
    same: dict[object, object] = {}
    for op in ops:
        kind = _kind(op.operator)
        scalar = None
        if kind == _EXPANSION:
            scalar = op.operands[0]
        if kind != _CONSTANT and (scalar is None or scalar.type.shape):
            continue
        result = op.results[0]
        # Most equal attributes are one object; for the others, and for types, one object is found.
        attrs = same.get(id(op.attrs))
        if attrs is None:
            attrs = same[id(op.attrs)] = same.setdefault(tuple(op.attrs.items()), op.attrs)
        key = op.operator, id(attrs), op.parent, result.type.shape, result.type.dtype, result.sharding, scalar
        first = kept.setdefault(key, op)
        if first is not op:
            result.replace_by(first.results[0])
            op.erase()
