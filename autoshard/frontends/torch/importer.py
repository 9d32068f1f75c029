"""Runs an exported graph on symbolic tensors (or on arrays): each node by its translator, named after its module.

What no translator knows, or refuses, is gathered over the whole graph and told in one error.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType, dtype
from autoshard.frontends.torch.autograd import differentiated_for, own_value
from autoshard.frontends.torch.functional import (
    COND,
    EFFECTS,
    WHILE,
    changes_first,
    for_checks_alone,
    functional_name,
)
from autoshard.frontends.torch.locations import module_path, source_line
from autoshard.frontends.torch.table import CHECKS, TABLE, Call, Refused, do, load_translators
from autoshard.frontends.torch.tensors import array_of, type_of_tensor
from autoshard.ops.registry import lookup
from autoshard.trace import control
from autoshard.trace.parameter import active
from autoshard.util.errors import AutoshardError, GraphError, ShapeError, at


class Importer:
    """Runs one exported graph.

    Args:
        program: the decomposed ExportedProgram.
        counter: gives the scalar that random operators count their uses by.
        training: whether a gradient will be taken.
        wrapped: a prefix of module paths to leave out.
    """

    def __init__(self, program: Any, counter: Callable[[], Any], training: bool, wrapped: str = "") -> None:
        load_translators()
        self.program, self.counter, self.training, self.wrapped = program, counter, training, wrapped
        self.trouble: list[tuple[str, str, Any]] = []
        self.memo: dict[Any, Any] = {}
        self.count = 0

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The graph's outputs in order, from values by placeholder name.

        Raises:
            ShapeError: overloads that are not known or not as they are used; all of them are listed.
        """
        # What is computed at once is so as torch does it: logarithms of zero are no matter for a warning.
        with np.errstate(all="ignore"):
            outputs = self.graph(self.program.graph_module, inputs.__getitem__)
        self.tell()
        return outputs

    def graph(self, module: Any, input_of: Callable[[str], Any]) -> list[Any]:
        """The outputs of a graph, that of the program or one inside it."""
        held: dict[Any, Any] = {}
        outputs: list[Any] = []
        left_out, own = for_checks_alone(module.graph), differentiated_for(module.graph)
        for node in module.graph.nodes:
            if node in left_out:
                held[node] = None
            elif node.op == "placeholder":
                held[node] = input_of(node.name)
            elif node.op == "get_attr":
                held[node] = _attribute(module, node.target)
            elif node.op == "output":
                given = node.args[0] if isinstance(node.args[0], tuple | list) else node.args  # conditions return one
                outputs = list(_filled(given, held))
            else:
                made = self.node(node, held)
                held[node] = own_value(made) if node in own else made
                if changes_first(node):
                    held[node.args[0]] = held[node]  # from here on; see `functional`
        return outputs

    def node(self, node: Any, held: Mapping[Any, Any]) -> Any:
        """What a node returns."""
        if node.target is operator.getitem:
            return held[node.args[0]][node.args[1]]
        name = str(node.target)
        if name in CHECKS:
            return None
        if name == EFFECTS:
            return self.with_effects(node, *_filled(node.args, held))
        if name in (COND, WHILE):
            with self.placed(node):
                return (self.chosen if name == COND else self.repeated)(*_filled(node.args, held))
        name = functional_name(node) if changes_first(node) else name
        try:
            types = result_types(node)
        except ShapeError as error:
            return self.unknown(node, name, str(error) if name in TABLE else "")
        if types and all(one is not None and 0 in one.shape for one in types):
            return _empty(node, types)
        if name not in TABLE:
            made = made_of_numbers(node, types)
            return self.unknown(node, name, "") if made is None else made
        self.count += 1
        call = Call(node, types, self.counter, self.count, self.training, self.memo)
        with self.placed(node):
            try:
                found = TABLE[name](call, *_filled(node.args, held), **_filled(node.kwargs, held))
            except Refused as refusal:
                return self.unknown(node, name, str(refusal))
            except AutoshardError as error:
                raise type(error)(f"importing {name} ({node.name}){at(source_line(node))}: {error}") from None
            except Exception as error:  # arguments of a kind that the translator was not written for
                self.unknown(node, name, f"it cannot take these arguments ({type(error).__name__}: {error})")
                self.tell()
        check_results(node, call.results, found)
        return found

    def with_effects(self, node: Any, token: Any, overload: Any, *operands: Any) -> Any:
        """The token of a check; other overloads that must stay in order are not known."""
        return (token,) if str(overload) in CHECKS else self.unknown(node, str(overload), "it has side effects")

    def chosen(self, holds: Any, yes: Any, no: Any, operands: Sequence[Any]) -> list[Any]:
        """torch.cond: the outputs of one of two graphs."""
        if isinstance(holds, np.ndarray):
            return self.inside(yes if holds else no, operands)
        return control.cond(holds, lambda: self.inside(yes, operands), lambda: self.inside(no, operands))

    def repeated(self, holds: Any, body: Any, carried: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
        """torch's while_loop: what it carries in the end."""
        return control.while_loop(
            lambda now: self.inside(holds, [*now, *others])[0],
            lambda now: self.inside(body, [*now, *others]),
            [*carried],
        )

    def inside(self, module: Any, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a graph inside for these operands; what it makes stays inside."""
        given, memo = iter(operands), self.memo
        self.memo = {}
        try:
            return self.graph(module, lambda _: next(given))
        finally:
            self.memo = memo

    @contextmanager
    def placed(self, node: Any) -> Iterator[None]:
        """Name what is recorded meanwhile after the node's module, and point to its line."""
        recorder = active()
        if recorder is None:
            yield
            return
        with recorder.at(module_path(node, self.wrapped), source_line(node)):
            yield

    def unknown(self, node: Any, name: str, why: str) -> Any:
        """Note the trouble; zeros of the right types, so that the rest of the graph is looked at as well."""
        self.trouble.append((name, why, node))
        try:
            made = [None if one is None else _zeros(one) for one in result_types(node)]
        except ShapeError:
            self.tell()
            raise
        if isinstance(node.meta.get("val"), tuple | list):
            return made
        if made[0] is None:
            self.tell()  # a number, for which there is no zero that what follows could go on with
        return made[0]

    def tell(self) -> None:
        """Raises ShapeError with all troubles so far, if there are any."""
        if not self.trouble:
            return
        first: dict[tuple[str, str], Any] = {}
        for name, why, node in self.trouble:
            first.setdefault((name, why), node)
        counts = Counter((name, why) for name, why, _ in self.trouble)
        lines = [
            f"  {name}{f': {why}' if why else ''} ({_times(counts[name, why], source_line(node))})"
            for (name, why), node in first.items()
        ]
        raise ShapeError(
            "cannot import this program: autoshard has no operators for\n"
            + "\n".join(lines)
            + "\nLeave them out of the module, or say them with other functions of torch"
        )


def _times(count: int, source: Any) -> str:
    if count == 1:
        return f"once{at(source)}"
    return f"{count} times{', first' if source is not None else ''}{at(source)}"


def _filled(part: Any, held: Mapping[Any, Any]) -> Any:
    """Arguments with the values of nodes in their place."""
    if isinstance(part, tuple | list):
        return type(part)(_filled(one, held) for one in part)
    if isinstance(part, dict):
        return {key: _filled(one, held) for key, one in part.items()}
    return held[part] if hasattr(part, "op") and hasattr(part, "users") else part


def _attribute(module: Any, target: str) -> Any:
    """What a graph module holds under a dotted name."""
    for word in target.split("."):
        module = getattr(module, word)
    return module


def _zeros(of: TensorType) -> Any:
    kind = float if of.dtype.is_float else int
    return do(lookup("Fill"), shape=of.shape, value=kind(0), dtype=of.dtype.name)


def _empty(node: Any, types: Sequence[TensorType | None]) -> Any:
    """Results without elements, such as slices of nothing: whatever made them, there is nothing to compute."""
    made = [np.zeros(one.shape, one.dtype.numpy) for one in types if one is not None]
    return made if isinstance(node.meta.get("val"), tuple | list) else made[0]


def made_of_numbers(node: Any, types: Sequence[TensorType | None]) -> np.ndarray | None:
    """The tensor that torch makes of numbers alone, such as a window for Fourier transforms; None where an overload
    takes tensors, makes none or several, or draws random numbers."""
    import torch

    overload = node.target
    if not isinstance(overload, torch._ops.OpOverload) or node.all_input_nodes or len(types) != 1 or types[0] is None:
        return None
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return None
    named = {key: "cpu" if key == "device" else value for key, value in node.kwargs.items()}
    return array_of(overload(*node.args, **named).to(node.meta["val"].dtype))


def result_types(node: Any) -> tuple[TensorType | None, ...]:
    """The types of the tensors that a node returns, by torch's own inference."""
    value = node.meta.get("val")
    values: Sequence[Any] = value if isinstance(value, tuple | list) else (value,)
    return tuple(type_of_tensor(one) if hasattr(one, "dtype") and hasattr(one, "shape") else None for one in values)


def check_results(node: Any, wanted: Sequence[TensorType | None], found: Any) -> None:
    """That the translation makes results of the types that torch says.

    Raises:
        GraphError: it does not: autoshard has the overload wrong.
    """
    values = found if isinstance(found, tuple | list) else (found,)
    for i, (one, of) in enumerate(zip(values, wanted, strict=False)):
        if one is None or of is None:
            continue
        made = TensorType.of(one.shape, dtype(one.dtype))
        if made != of:
            raise GraphError(
                f"internal error: {node.target} ({node.name}){at(source_line(node))}: torch says that result {i} is "
                f"{of}, autoshard's operators make {made}"
            )
