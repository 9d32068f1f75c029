"""Loops and branches in model code: `while_loop`, `cond`, `switch`.

Inside a trace they become one node whose regions are what the given functions do; on arrays they compute at once.
Functions may use tensors and parameters from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autoshard.core.tensortype import TensorType, dtype, type_of
from autoshard.ir.graph import Region, Value
from autoshard.ops.registry import lookup
from autoshard.trace.arithmetic import is_number
from autoshard.trace.asking import is_tensor, recorder_of
from autoshard.trace.parameter import Parameter
from autoshard.trace.structure import Unquoted, flatten, unflatten
from autoshard.trace.tensor import Recorder, TracedTensor, number_type
from autoshard.util.errors import GraphError, ShapeError, at
from autoshard.util.source import caller

_BOOL = TensorType((), dtype("bool"))


def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Apply `body` to `init`, to what comes out, and so on, as long as `cond` of it holds.

    Args:
        cond: from what the loop carries to a bool scalar.
        body: from what the loop carries to its next value, of the same structure and types.
        init: a tensor, or nested tuples, lists and dicts of tensors and numbers.

    Returns:
        What the loop carries in the end, nested as `init`.

    Raises:
        ShapeError: `cond` gives no bool scalar, or `body` gives another structure or other types than `init`.
        GraphError: `init` holds no tensor.
    """
    where = f"while_loop{at(caller())}"
    leaves, structure = flatten(init, is_tensor)
    if not leaves:
        raise GraphError(f"{where}: init is {init!r}, which holds no tensor")
    recorder = recorder_of(leaf for _, leaf in leaves)
    if recorder is None:
        return _loop(cond, body, [_array(leaf) for _, leaf in leaves], structure, where)
    start = [recorder.tensor(recorder.lift(leaf)) for _, leaf in leaves]
    carried = Yielded.of("init", structure, start)
    names = [path for path, _ in leaves]

    def again(*tensors: TracedTensor) -> list[Value]:
        made = Yielded.read("the body", body(unflatten(structure, tensors)), recorder, carried.types)
        return made.agreeing(carried, where)

    def holds(*tensors: TracedTensor) -> list[Value]:
        return [_predicate(cond(unflatten(structure, tensors)), recorder, f"{where}: the condition")]

    regions = (
        recorder.region(holds, carried.types, "while.cond", names=names),
        recorder.region(again, carried.types, "while.body", names=names),
    )
    return unflatten(structure, recorder.add(lookup("While"), start, {}, regions))


def cond(pred: Any, true_fn: Callable, false_fn: Callable, *operands: Any) -> Any:
    """`true_fn(*operands)` where the bool scalar `pred` holds, else `false_fn(*operands)`; only one of them is run.

    Raises:
        ShapeError: pred is no bool scalar, or the functions return other structures or types than each other.
    """
    where = f"cond{at(caller())}"
    recorder = recorder_of(leaf for _, leaf in flatten((pred, operands), is_tensor)[0])
    if recorder is None:
        return (true_fn if bool(_checked(_array(pred), f"{where}: pred", "bool")) else false_fn)(*operands)
    chosen = _predicate(pred, recorder, f"{where}: pred")
    index = recorder.tensor(chosen).astype("i32")
    return _choose(index, {"false_fn": false_fn, "true_fn": true_fn}, operands, recorder, where)


def switch(index: Any, branches: Sequence[Callable], *operands: Any) -> Any:
    """`branches[index](*operands)`; an index out of range takes the last branch. Only one of them is run.

    Raises:
        ShapeError: index is no whole-number scalar, or branches return other structures or types than each other.
        GraphError: there are no branches.
    """
    where = f"switch{at(caller())}"
    if not branches:
        raise GraphError(f"{where}: there are no branches to choose from")
    recorder = recorder_of(leaf for _, leaf in flatten((index, operands), is_tensor)[0])
    if recorder is None:
        number = int(_checked(_array(index), f"{where}: index", "whole number"))
        return branches[number if 0 <= number < len(branches) else -1](*operands)
    value = recorder.lift(index)
    _check_scalar(value.type, f"{where}: index", "whole number")
    named = {f"branch {i}": branch for i, branch in enumerate(branches)}
    return _choose(recorder.tensor(value).astype("i32"), named, operands, recorder, where)


def _choose(index: TracedTensor, branches: dict[str, Callable], operands: tuple, recorder: Recorder, where: str) -> Any:
    """A Case node: its regions use the operands from outside."""
    first: list[Yielded] = []
    regions: list[Region] = []
    for name, branch in branches.items():

        def run(name: str = name, branch: Callable = branch) -> list[Value]:
            types = first[0].types if first else ()
            made = Yielded.read(name, branch(*operands), recorder, types)
            if not made.values:
                raise GraphError(f"{where}: {name} returns {made.shown}, which holds no tensor")
            first.append(made)
            return made.agreeing(first[0], where)

        regions.append(recorder.region(run, (), "case"))
    results = recorder.add(lookup("Case"), [index], {"types": first[0].types}, tuple(regions))
    return unflatten(first[0].structure, results)


# -- structures that have to agree


class Yielded(NamedTuple):
    """What a function returned: who returned it, its structure, the values in it."""

    who: str
    structure: Any
    paths: tuple[str, ...]
    values: tuple[Any, ...]
    types: tuple[TensorType, ...]

    @staticmethod
    def of(who: str, structure: Any, values: Sequence[Any], paths: Sequence[str] = ()) -> Yielded:
        types = tuple(value.type if hasattr(value, "type") else type_of(value) for value in values)
        return Yielded(who, structure, tuple(paths), tuple(values), types)

    @staticmethod
    def read(who: str, returned: Any, recorder: Recorder, types: Sequence[TensorType]) -> Yielded:
        """What `returned` holds as values of the graph; numbers take the type at their place in `types`."""
        leaves, structure = flatten(returned, is_tensor)
        near = [[of.dtype] for of in types] if len(types) == len(leaves) else [[]] * len(leaves)
        values = [recorder.lift(leaf, one) for (_, leaf), one in zip(leaves, near, strict=True)]
        return Yielded.of(who, structure, values, [path for path, _ in leaves])

    @property
    def shown(self) -> str:
        return repr(unflatten(self.structure, [Unquoted(of) for of in self.types]))

    def agreeing(self, wanted: Yielded, where: str) -> list[Any]:
        """The values, if they are nested as `wanted` and of its types.

        Raises:
            ShapeError: they are not; the message names both.
        """
        if self.structure != wanted.structure:
            raise ShapeError(
                f"{where}: {self.who} gives {self.shown}, but {wanted.who} gives {wanted.shown}; "
                "both have to be nested alike"
            )
        for path, mine, other in zip(self.paths, self.types, wanted.types, strict=True):
            if mine != other:
                place = f" for {path!r}" if path else ""
                raise ShapeError(
                    f"{where}: {self.who} gives {mine}{place}, but {wanted.who} gives {other}; types have to be equal"
                )
        return list(self.values)


def _predicate(pred: Any, recorder: Recorder, what: str) -> Value:
    if not is_tensor(pred):
        raise ShapeError(f"{what} is {pred!r}; it has to be a bool scalar")
    value = recorder.lift(pred)
    _check_scalar(value.type, what, "bool")
    return value


def _check_scalar(of: TensorType, what: str, kind: str) -> None:
    fits = of.dtype.name == "bool" if kind == "bool" else of.dtype.numpy.kind in "iu"
    if of.shape or not fits:
        raise ShapeError(f"{what} is {of}; it has to be a {kind} scalar")


# -- at once


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, Parameter):
        return leaf.data
    return np.asarray(leaf, number_type(leaf, ()).numpy if is_number(leaf) and not _typed(leaf) else None)


def _typed(leaf: Any) -> bool:
    return isinstance(leaf, np.generic)


def _checked(array: np.ndarray, what: str, kind: str) -> np.ndarray:
    _check_scalar(type_of(array), what, kind)
    return array


def _loop(cond: Callable, body: Callable, arrays: list[np.ndarray], structure: Any, where: str) -> Any:
    carried = Yielded.of("init", structure, arrays)
    while bool(_checked(_array(cond(unflatten(structure, arrays))), f"{where}: the condition", "bool")):
        leaves, made = flatten(body(unflatten(structure, arrays)), is_tensor)
        near = carried.types if len(leaves) == len(arrays) else (None,) * len(leaves)
        found = [_like(leaf, of) for (_, leaf), of in zip(leaves, near, strict=True)]
        arrays = Yielded.of("the body", made, found, [path for path, _ in leaves]).agreeing(carried, where)
    return unflatten(structure, arrays)


def _like(leaf: Any, of: TensorType | None) -> np.ndarray:
    """An array; a plain number takes the type at its place, as in a trace."""
    if of is None or not is_number(leaf) or _typed(leaf):
        return _array(leaf)
    return np.asarray(leaf, number_type(leaf, [of.dtype]).numpy)
