"""Two working copies compared to the last operation: what a pass of ours leaves against what Shardy's pass leaves.

`check(text, our pass, their passes)` reads a module, runs ours on it, runs Shardy's on the text, reads what comes out
with the same reader, and asserts that both are the same. With `uses`, the order of the uses of each value is compared
as well, which no text shows, but which decides what propagation chases first.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.layout.sdy_show import show_mesh
from autoshard.layout.sdy_text import show_sharding
from autoshard.layout.sharding import Sharding
from autoshard.ops.attributes import Literal
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation, from_graph
from autoshard.propagate.values import store

Pass = Callable[[MutableModule], Any]
# What the reader finds out from other operations, or keeps of one that it does not know, shardings among it.
_NOT_COMPARED = {"Opaque": {"text"}, "Concatenate": {"of_slices"}, "DynamicUpdateSlice": {"fixed"}}


def module_text(name: str) -> str:
    """A module of the folder `modules`."""
    return (Path(__file__).parent / "modules" / f"{name}.mlir").read_text()


def load(text: str) -> MutableModule:
    """The working copy of a module, its public functions marked."""
    imported = read_module(parse_module(text), dynamic=True)
    mutable = from_graph(imported.graph, imported.asked, imported.order)
    for function in mutable.functions:
        function.attrs["public"] = function.attrs["name"] in imported.public
    return mutable


def run_shardy(text: str, passes: Sequence[str]) -> str:
    """The module after Shardy's passes, as text."""
    return str(_run(text, passes))


def _run(text: str, passes: Sequence[str]) -> Any:
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        if passes:
            PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)
        return module


def check(text: str, ours: Pass, theirs: Sequence[str], *, uses: bool = False, before: Sequence[str] = ()) -> None:
    """Assert that our pass does what Shardy's passes do to a module.

    Args:
        before: Shardy's passes that both start after.
    """
    text = run_shardy(text, before) if before else text
    mutable = load(text)
    ours(mutable)
    module = _run(text, theirs)
    with module.context:
        difference = differing(mutable, load(str(module)))
        assert not difference, f"ours is '-', Shardy's '+':\n{difference}"
        if uses:
            assert list(use_order(mutable)) == list(use_order_of(module))


def differing(ours: MutableModule, theirs: MutableModule) -> str:
    """What differs, as lines of a dump that only ours has ('-') or only theirs ('+'); '' if nothing does."""
    for mutable in (ours, theirs):
        store(mutable)
    a, b = list(dump(ours)), list(dump(theirs))
    return "" if a == b else "\n".join(difflib.unified_diff(a, b, "ours", "Shardy's", lineterm="", n=4))


# -- the dump of a working copy


def dump(mutable: MutableModule) -> Iterator[str]:
    """A line per mesh, function, argument and operation: operands by number, attributes, shardings."""
    for name, mesh in mutable.meshes.items():
        yield f"mesh @{name} = {show_mesh(mesh)}"
    for function in mutable.functions:
        attrs = function.attrs
        yield f"{'public' if attrs['public'] else 'private'} function @{attrs['name']}"
        yield f"  results {_shardings(attrs['outputs'])}"
        yield from _dump_block(function.blocks[0], {}, "  ")


def _dump_block(block: Block, numbers: dict[MutableValue, int], indent: str) -> Iterator[str]:
    for arg in block.args:
        numbers[arg] = len(numbers)
        yield f"{indent}arg %{numbers[arg]}: {arg.type} {_shardings([arg.sharding])}"
    for op in block:
        operands = ", ".join(f"%{numbers[value]}" for value in op.operands)
        for value in op.results:
            numbers[value] = len(numbers)
        results = ", ".join(f"%{numbers[value]}: {value.type}" for value in op.results)
        shardings = _shardings([value.sharding for value in op.results])
        yield f"{indent}{results} = {op.name}({operands}) {shardings} {_attributes(op)}"
        for inner in op.blocks:
            yield f"{indent}  block"
            yield from _dump_block(inner, numbers, f"{indent}    ")


def _attributes(op: Operation) -> str:
    left_out = _NOT_COMPARED.get(op.name, set())
    return " ".join(f"{name}={_text(value)}" for name, value in sorted(op.attrs.items()) if name not in left_out)


def _shardings(shardings: Sequence[Sharding | None]) -> str:
    return "" if not any(shardings) else f"[{', '.join(map(_text, shardings))}]"


def _text(value: Any) -> str:
    if isinstance(value, Sharding):
        return show_sharding(value)
    if isinstance(value, Literal):
        return f"{value!r} {hash(value)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return str(value)


# -- the order of uses

Uses = tuple[int, int, list[tuple[int, int]]]


def use_order(mutable: MutableModule) -> Iterator[Uses]:
    """Per value with several uses: (number of its operation, which value of it, uses, newest first).

    Values of an operation are its results and then the arguments of its regions.
    """
    ops = [op for function in mutable.functions for op in function.walk()]
    numbers = {op: i for i, op in enumerate(ops)}
    for op in ops:
        values = [*op.results, *(arg for block in op.blocks for arg in block.args)]
        for i, value in enumerate(values):
            if len(value.uses) > 1:
                yield numbers[op], i, [(numbers[user], index) for user, index in value.users]


def use_order_of(module: Any) -> Iterator[Uses]:
    """The same of an MLIR module."""
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    ops = [op for function in functions for op in _walk(function)]
    numbers = {op: i for i, op in enumerate(ops)}
    for op in ops:
        for i, value in enumerate([*op.results, *(arg for block in _blocks(op) for arg in block.arguments)]):
            uses = [(numbers[use.owner.operation], use.operand_number) for use in value.uses]
            if len(uses) > 1:
                yield numbers[op], i, uses


def _walk(op: Any) -> Iterator[Any]:
    yield op
    for block in _blocks(op):
        for inner in block.operations:
            yield from _walk(inner.operation)


def _blocks(op: Any) -> Iterator[Any]:
    """The blocks that the working copy has too: the bodies of reductions, comparisons, ... are attributes there."""
    return (block for region in op.regions for block in region.blocks if op.name in _HOLDING)


_HOLDING = {"func.func", "sdy.manual_computation", "sdy.named_computation"}
_HOLDING |= {f"stablehlo.{name}" for name in ("while", "case", "if")}
