"""Write a working copy back as a StableHLO module with its shardings as sdy attributes.

The module is built anew in the context of the one that was read: every operation is a copy of the one it came from,
with the operands and shardings that the working copy has. Operations that passes made (reshards, edges, ...) are
created. Locations and all other attributes stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

from jaxlib.mlir import ir

from autoshard.core.rule_sdy import show_sdy
from autoshard.frontends.stablehlo.attributes import constants_outside
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.frontends.stablehlo.table import TABLE
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import Mesh
from autoshard.layout.sdy_show import show_axis, show_mesh
from autoshard.layout.sdy_text import show_per_value, show_sharding
from autoshard.layout.sharding import Sharding
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation
from autoshard.util.errors import PlanError

_CONSTANT = "stablehlo.constant"
_VALUE = re.compile(r"<\{value = (.*)\}> ?(?:\{.*\} )?: \(\) -> ")
_SHARDING, _RULE = "sdy.sharding", "sdy.sharding_rule"
# How the text of a rule ends that is the user's; others that a module holds were written by passes, which drop them.
_CUSTOM = ", custom>"


def to_module(work: MutableModule, imported: Imported, *, rules: bool = False, full: bool = False) -> Any:
    """The MLIR module of a working copy of `imported`.

    Args:
        rules: write the rule of every operation that propagation visited.
        full: the whole pipeline was run: constants become `sdy.constant`, which nothing folds together again, and
            meshes also say what they are in StableHLO's terms.

    Raises:
        PlanError: an operation that has no form in StableHLO or sdy, or shardings that sdy does not allow.
    """
    with imported.module.context, ir.Location.unknown():
        made = _SdyWriter(imported, rules, full).module(work)
        _verify(made)
        return made


def _verify(made: Any) -> None:
    """Single passes can spread an axis where it is taken: into a manual computation that has it for a manual one."""
    # With several threads the bindings can wait for each other for ever: the one that reports an error needs Python,
    # which the one that waits for it holds.
    made.context.enable_multithreading(False)
    try:
        made.operation.verify()
    except ir.MLIRError as error:
        messages = "; ".join(diagnostic.message for diagnostic in error.error_diagnostics)
        raise PlanError(
            f"cannot write the module with these shardings: {messages.rstrip('.')}. Ask for other axes there; single "
            "passes can give an axis to a manual computation that has it already, which `full` prevents"
        ) from None


class _SdyWriter:
    def __init__(self, imported: Imported, rules: bool, full: bool) -> None:
        self.imported = imported
        self.rules = rules
        self.full = full
        bodies = [op.operation for op in imported.module.body.operations if op.operation.name == "func.func"]
        self.functions = {_symbol(op): op for op in bodies}
        self.values: dict[MutableValue, Any] = {}
        self.parsed = lru_cache(maxsize=None)(ir.Attribute.parse)

    def module(self, work: MutableModule) -> Any:
        made = ir.Module.create()
        old = self.imported.module.operation
        for named in old.attributes:
            made.operation.attributes[_name(named)] = old.attributes[_name(named)]
        with ir.InsertionPoint(made.body):
            self.meshes(work)
            for function in work.functions:
                self.function(function)
        if not self.full:
            self.reorder(made)
        return made

    def reorder(self, made: Any) -> None:
        """Put functions and meshes in the order that the module has; single passes leave it as it is."""
        found = {_symbol(op.operation): op.operation for op in made.body.operations}
        named = (_symbol(op.operation) for op in self.imported.module.body.operations)
        ordered = [found[name] for name in named if name in found]
        for before, op in pairwise(ordered):
            op.move_after(before)

    def meshes(self, work: MutableModule) -> None:
        """All that is no function, and behind it the meshes that passes gave a symbol."""
        others = [op.operation for op in self.imported.module.body.operations if op.operation.name != "func.func"]
        known = {_symbol(op) for op in others if op.name == "sdy.mesh"}
        for op in others:
            name = _symbol(op)
            if op.name != "sdy.mesh" or name in work.meshes:
                self.note(op.clone(), work.meshes.get(name))
        for name, mesh in work.meshes.items():
            if name not in known:
                attributes = {"sym_name": ir.StringAttr.get(name), "mesh": self.parsed(f"#sdy.mesh{show_mesh(mesh)}")}
                self.note(ir.Operation.create("sdy.mesh", attributes=attributes), mesh)

    def note(self, op: Any, mesh: Mesh | None) -> None:
        """Say what a mesh is in StableHLO's own terms too, as Shardy's pipeline does."""
        if self.full and mesh is not None and "stablehlo.mesh" not in op.attributes:
            axes = ", ".join(f'{{name = "{name}", size = {size} : i64}}' for name, size in mesh.axes)
            order = mesh.order or ()
            shown = order[0] if len(order) == 1 else list(order)
            ids = f", device_ids = dense<{shown}> : tensor<{len(order)}xi64>" if order else ""
            op.attributes["stablehlo.mesh"] = self.parsed(f"{{axes = [{axes}]{ids}}}")

    def function(self, function: Operation) -> None:
        named = self.imported.operations.get(function.origin) if function.origin is not None else None
        old = self.functions[function.attrs.get("copy_of", function.attrs["name"])] if named is None else named
        attributes = _attributes(old) if named is None else {"function_type": _function_type(named)}
        attributes["sym_name"] = ir.StringAttr.get(function.attrs["name"])
        if not function.attrs["public"]:
            attributes["sym_visibility"] = ir.StringAttr.get("private")
        block = function.blocks[0]
        args = [value.sharding for value in block.args]
        attributes |= self.lists(old, "arg_attrs", args) | self.lists(old, "res_attrs", function.attrs["outputs"])
        made = ir.Operation.create("func.func", attributes=attributes, regions=1, loc=old.location)
        self.block(made.regions[0], block, old.regions[0].blocks[0])

    def lists(self, old: Any, name: str, shardings: list[Sharding | None]) -> dict[str, Any]:
        """The attribute lists of arguments or results, their shardings replaced."""
        before = old.attributes[name] if name in old.attributes else [ir.DictAttr.get({})] * len(shardings)
        dicts = []
        for attrs, sharding in zip(before, shardings, strict=True):
            entries = {_name(named): attrs[_name(named)] for named in attrs}
            entries.pop(_SHARDING, None)
            if sharding is not None:
                entries[_SHARDING] = self.sharding(sharding)
            dicts.append(ir.DictAttr.get(entries))
        return {name: ir.ArrayAttr.get(dicts)} if any(len(attrs) for attrs in dicts) or name in old.attributes else {}

    def sharding(self, sharding: Sharding) -> Any:
        return self.parsed(f"#sdy.sharding{show_sharding(sharding)}")

    def per_value(self, shardings: Any) -> Any:
        return self.parsed(f"#sdy.sharding_per_value{show_per_value(shardings)}")

    def block(self, region: Any, block: Block, old: Any) -> None:
        """Fill a region; the terminator is of the kind that the old block had."""
        types = [argument.type for argument in old.arguments]
        made = region.blocks.append(*types, arg_locs=[argument.location for argument in old.arguments])
        self.values.update(zip(block.args, made.arguments, strict=True))
        *body, last = block
        with ir.InsertionPoint(made):
            for op in body:
                self.operation(op)
            ending = old.operations[len(old.operations) - 1].operation
            operands = [self.values[value] for value in last.operands]
            name = "func.return" if last.name == "Return" else ending.name
            ir.Operation.create(name, (), operands, _attributes(ending), loc=ending.location)

    def operation(self, op: Operation) -> None:
        old = self.imported.operations.get(op.origin) if op.origin is not None else None
        is_same = old is not None and op.origin is not None and op.origin.op is op.operator
        made = self.copied(op, old) if is_same else self.created(op, old)
        self.values.update(zip(op.results, made.results, strict=True))

    def copied(self, op: Operation, old: Any) -> Any:
        """The operation it came from, with new operands; regions are written anew or copied whole."""
        operands = [self.values[value] for value in op.operands]
        if not op.blocks:
            made = _sdy_constant(old) if self.full and old.name == _CONSTANT else old.clone()
            _own_constants(made)
            for i, value in enumerate(operands):
                made.operands[i] = value
            self.mark(op, made.attributes)
            if self.rules:
                self.mark_inner(made)
            if self.full:
                _settle_inner(made)
            return made
        attributes = _attributes(old)
        self.mark(op, attributes)
        types = [result.type for result in old.results]
        made = ir.Operation.create(
            old.name, types, operands, attributes, regions=len(op.blocks), successors=None, loc=old.location
        )
        for region, block, before in zip(made.regions, op.blocks, old.regions, strict=True):
            self.block(region, block, before.blocks[0])
        return made

    def mark(self, op: Operation, attributes: Any) -> None:
        """Set the sharding and rule attributes."""
        if op.name in _MADE:
            for name, value in _MADE[op.name](self, op)[1].items():
                attributes[name] = value
        if op.name not in _MADE or op.name == "Call":
            self.mark_results(op, attributes)
        self.mark_rule(op, attributes)

    def mark_results(self, op: Operation, attributes: Any) -> None:
        shardings = [value.sharding for value in op.results] if op.results else [op.devices]
        if any(sharding is not None for sharding in shardings):
            attributes[_SHARDING] = self.per_value(shardings)
        elif _SHARDING in attributes and op.results:
            del attributes[_SHARDING]

    def mark_rule(self, op: Operation, attributes: Any) -> None:
        rule = op.op_class.rule if self.rules and op.op_class is not None else None
        if rule is not None and _RULE not in attributes:
            attributes[_RULE] = self.parsed(f"#sdy.op_sharding_rule<{show_sdy(rule)}>")
        elif _RULE in attributes and not self.rules and not str(attributes[_RULE]).endswith(_CUSTOM):
            del attributes[_RULE]

    def mark_inner(self, made: Any) -> None:
        """Give the scalar operations inside a reduction, a comparison, ... the rules that propagation gives them."""
        for inner in (inner.operation for region in made.regions for block in region for inner in block):
            if inner.name in TABLE and len(inner.operands) and len(inner.results):
                operator = lookup(TABLE[inner.name](inner)[0])
                if operator.has_rule and not operator.foreign:
                    operands, results = (", ".join(["[]"] * len(some)) for some in (inner.operands, inner.results))
                    inner.attributes[_RULE] = self.parsed(f"#sdy.op_sharding_rule<({operands})->({results})>")

    def created(self, op: Operation, old: Any) -> Any:
        """An operation that a pass made."""
        if op.name not in _MADE or op.blocks:
            raise PlanError(f"cannot write {op.name} as an operation of StableHLO or sdy")
        operands = [self.values[value] for value in op.operands]
        name, attributes = _MADE[op.name](self, op)
        if op.name == "Call":
            self.mark_results(op, attributes)
        self.mark_rule(op, attributes)
        types = [value.type for value in (old.results if op.name == "Call" else operands)]
        location = old.location if old is not None else None
        return ir.Operation.create(name, types, operands, attributes, loc=location)


def _symbol(op: Any) -> str:
    """The name of a function or mesh."""
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""


def _function_type(named: Any) -> Any:
    """The type of the function that a named computation becomes."""
    inputs, results = ([value.type for value in values] for values in (named.operands, named.results))
    return ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def _attributes(op: Any) -> dict[str, Any]:
    return {_name(named): op.attributes[_name(named)] for named in op.attributes}


def _sdy_constant(old: Any) -> Any:
    """The same constant as one that nothing folds together."""
    value = _constant_value(old)
    if isinstance(value, str):
        made = ir.Operation.parse(f'"sdy.constant"() <{{value = {value}}}> : () -> {old.results[0].type}')
        point: Any = ir.InsertionPoint.current
        point.insert(made)
        return made.operation
    return ir.Operation.create("sdy.constant", [old.results[0].type], (), {"value": value}, loc=old.location)


def _constant_value(op: Any) -> Any:
    """The value as an attribute; as text where the bindings cannot hold it, which is so for complex elements."""
    try:
        return op.attributes["value"]
    except TypeError:
        shown = _VALUE.search(op.get_asm(print_generic_op_form=True))
        assert shown is not None, f"no value in {op}"
        return shown.group(1)


def _own_constants(made: Any) -> None:
    """Give the scalar functions inside an operation constants of their own for those that they use from outside, which
    need not be written."""
    for block in (block for region in made.regions for block in region):
        own: dict[Any, Any] = {}
        for constant in constants_outside(block):
            with ir.InsertionPoint.at_block_begin(block):
                own[constant.results[0]] = constant.clone().results[0]
        for op in block if own else ():
            for i, value in enumerate(op.operation.operands):
                if value in own:
                    op.operation.operands[i] = own[value]


def _settle_inner(made: Any) -> None:
    """Do to the scalar operations inside a reduction, a comparison, ... what the pipeline does to all operations."""
    for block in (block for region in made.regions for block in region):
        known: dict[Any, Any] = {}
        for inner in [inner.operation for inner in block]:
            with ir.InsertionPoint(inner):
                if inner.name == _CONSTANT:
                    _share(inner, known)
                elif inner.name == "sdy.sharding_constraint":
                    _reshard_inner(inner)


def _share(constant: Any, known: dict[Any, Any]) -> None:
    """Let one `sdy.constant` stand for all equal constants of a block."""
    value = _constant_value(constant)
    if value not in known:
        known[value] = _sdy_constant(constant).results[0]
    constant.results[0].replace_all_uses_with(known[value])
    constant.erase()


def _reshard_inner(constraint: Any) -> None:
    """Write a constraint of a scalar as a reshard, and its sharding also on what makes the scalar."""
    (value,), sharding = constraint.operands, constraint.attributes["sharding"]
    if isinstance(value.owner, ir.Operation | ir.OpView) and _SHARDING not in value.owner.attributes:
        per_value = str(sharding).replace("#sdy.sharding", "#sdy.sharding_per_value<[", 1) + "]>"
        value.owner.attributes[_SHARDING] = ir.Attribute.parse(per_value)
    made = ir.Operation.create("sdy.reshard", [value.type], [value], {"sharding": sharding}, loc=constraint.location)
    constraint.results[0].replace_all_uses_with(made.results[0])
    constraint.erase()


def _name(named: Any) -> str:
    return named if isinstance(named, str) else named.name


# -- operations whose attributes say how they are sharded: operation name, attributes


Made = tuple[str, dict[str, Any]]


def _constraint(writer: _SdyWriter, op: Operation) -> Made:
    return "sdy.sharding_constraint", {"sharding": writer.sharding(op.attrs["sharding"])}


def _reshard(writer: _SdyWriter, op: Operation) -> Made:
    return "sdy.reshard", {"sharding": writer.sharding(op.attrs["sharding"])}


def _edge(writer: _SdyWriter, op: Operation) -> Made:
    sharding = op.results[0].sharding or op.attrs.get("sharding")
    return "sdy.data_flow_edge", {"sharding": writer.sharding(sharding)} if sharding is not None else {}


def _manual(writer: _SdyWriter, op: Operation) -> Made:
    axes = ", ".join(f'"{axis}"' for axis in op.attrs["manual_axes"])
    return "sdy.manual_computation", {
        "in_shardings": writer.per_value(op.attrs["in_shardings"]),
        "out_shardings": writer.per_value(op.attrs["out_shardings"]),
        "manual_axes": writer.parsed(f"#sdy<manual_axes{{{axes}}}>"),
    }


def _call(writer: _SdyWriter, op: Operation) -> Made:
    return "func.call", {"callee": ir.FlatSymbolRefAttr.get(op.attrs["callee"])}


def _named(writer: _SdyWriter, op: Operation) -> Made:
    lists = {name: op.attrs[name] for name in ("in_shardings", "out_shardings") if op.attrs[name]}
    attributes = {name: writer.per_value(shardings) for name, shardings in lists.items()}
    return "sdy.named_computation", {"name": ir.StringAttr.get(op.attrs["name"]), **attributes}


def _sums(name: str, attribute: str, per_dim: bool) -> Callable[[_SdyWriter, Operation], Made]:
    """An operation that begins or ends a partial sum; its axes are one list, or one for each dim."""

    def make(writer: _SdyWriter, op: Operation) -> Made:
        target: Sharding = op.attrs["sharding"]

        def shown(axes: Refs) -> str:
            return f"{{{', '.join(show_axis(axis, target.mesh) for axis in axes)}}}"

        axes = op.attrs["axes"]
        text = f"list_of_axis_ref_lists[{', '.join(map(shown, axes))}]" if per_dim else f"axis_ref_list{shown(axes)}"
        return name, {attribute: writer.parsed(f"#sdy<{text}>"), "out_sharding": writer.sharding(target)}

    return make


_MADE: dict[str, Callable[[_SdyWriter, Operation], Made]] = {
    "ShardingConstraint": _constraint,
    "Reshard": _reshard,
    "DataFlowEdge": _edge,
    "ManualComputation": _manual,
    "NamedComputation": _named,
    "Call": _call,
    "SdyAllReduce": _sums("sdy.all_reduce", "reduction_axes", per_dim=False),
    "SdyAllGather": _sums("sdy.all_gather", "gathering_axes", per_dim=True),
    "ReplicatedToUnreduced": _sums("sdy.replicated_to_unreduced", "axes", per_dim=False),
    "ShardedToUnreduced": _sums("sdy.sharded_to_unreduced", "axes", per_dim=True),
}
