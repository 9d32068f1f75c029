"""Modules with tuples, as compilers that take HLO write them, without: `flat_tuples(module)`.

Arguments and results of functions that are tuples become their elements, in order and at any depth; what takes elements
out of a tuple that was put together before takes the elements themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

_TUPLE, _ELEMENT = "stablehlo.tuple", "stablehlo.get_tuple_element"


def flat_tuples(module: Any) -> Any:
    """The module itself if none of its functions takes or returns a tuple, else a copy without tuples.

    Loops, branches and custom calls keep theirs.
    """
    if not any(map(_has_tuples, _functions(module))):
        return module
    with module.context, ir.Location.unknown():
        flat = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
        for function in _functions(flat):
            _flatten(function)
        for function in _functions(flat):
            _drop_tuples(list(_operations(function)))
    return flat


def _functions(module: Any) -> list[Any]:
    return [op.operation for op in module.body.operations if op.operation.name == "func.func"]


def _type(function: Any) -> Any:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _has_tuples(function: Any) -> bool:
    of = _type(function)
    return any(isinstance(one, ir.TupleType) for one in (*of.inputs, *of.results))


def _flatten(function: Any) -> None:
    """Take tuples from what a function takes and returns, and from what its calls do."""
    of = _type(function)
    for name, types in (("arg_attrs", of.inputs), ("res_attrs", of.results)):
        if name in function.attributes:
            pairs = zip(function.attributes[name], types, strict=True)
            function.attributes[name] = ir.ArrayAttr.get([attrs for attrs, one in pairs for _ in _elements(one)])
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(_flat(of.inputs), _flat(of.results)))
    if not len(function.regions[0].blocks):
        return
    _flatten_arguments(function.regions[0].blocks[0])
    for op in list(_operations(function)):
        if op.name in ("func.call", "func.return") and any(map(_is_tuple, (*op.operands, *op.results))):
            _rewrite(op)


def _flatten_arguments(block: Any) -> None:
    old = list(block.arguments)
    if not any(map(_is_tuple, old)):
        return
    new = [block.add_argument(of, one.location) for one in old for of in _elements(one.type)]
    with ir.InsertionPoint.at_block_begin(block):
        _replace(old, new)
    for _ in old:
        block.erase_argument(0)


def _rewrite(op: Any) -> None:
    """A call, or a return, of the elements of tuples."""
    with ir.InsertionPoint(op):
        operands = [element for value in op.operands for element in _taken_apart(value)]
        attributes = {named.name: named.attr for named in _named_attributes(op)}
        types = _flat(value.type for value in op.results)
        made = ir.Operation.create(op.name, types, operands, attributes, loc=op.location)
        _replace(list(op.results), list(made.results))
    op.erase()


def _replace(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Let values be made of their elements."""
    given = iter(new)
    for value in old:
        value.replace_all_uses_with(_put_together(value.type, given))


def _put_together(of: Any, elements: Iterator[Any]) -> Any:
    if not isinstance(of, ir.TupleType):
        return next(elements)
    operands = [_put_together(of.get_type(i), elements) for i in range(of.num_types)]
    return ir.Operation.create(_TUPLE, [of], operands).results[0]


def _taken_apart(value: Any) -> Iterator[Any]:
    """The elements of a value, of one that is no tuple itself."""
    of = value.type
    if not isinstance(of, ir.TupleType):
        yield value
        return
    for i in range(of.num_types):
        index: Any = {"index": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), i)}
        yield from _taken_apart(ir.Operation.create(_ELEMENT, [of.get_type(i)], [value], index).results[0])


def _drop_tuples(operations: Sequence[Any]) -> None:
    """Use elements of tuples that are put together in sight themselves, and drop those tuples that nobody uses then."""
    tuples = [op for op in operations if op.name == _TUPLE]
    for op in operations:
        maker = op.operands[0].owner if op.name == _ELEMENT else None
        if maker is not None and not isinstance(maker, ir.Block) and maker.name == _TUPLE:
            op.results[0].replace_all_uses_with(maker.operands[ir.IntegerAttr(op.attributes["index"]).value])
            op.erase()
    for op in reversed(tuples):
        if not any(True for _ in op.results[0].uses):
            op.erase()


def _operations(op: Any) -> Iterator[Any]:
    """All operations inside of one, in order."""
    for block in (block for region in op.regions for block in region.blocks):
        for inner in block.operations:
            yield inner.operation
            yield from _operations(inner.operation)


def _elements(of: Any) -> Iterator[Any]:
    """The types in a type, at any depth."""
    if not isinstance(of, ir.TupleType):
        yield of
        return
    for i in range(of.num_types):
        yield from _elements(of.get_type(i))


def _flat(types: Iterable[Any]) -> list[Any]:
    return [one for of in types for one in _elements(of)]


def _is_tuple(value: Any) -> bool:
    return isinstance(value.type, ir.TupleType)


def _named_attributes(op: Any) -> list[Any]:
    return [op.attributes[i] for i in range(len(op.attributes))]
