"""Attribute values, types and names as text, both ways; `text` prints whole graphs with them.

>>> read_value(Scanner(show_value((4, None, "a")), 1))
(4, None, 'a')
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.core.rule import Rule
from autoshard.core.rule_sdy import parse_sdy_rule, show_sdy
from autoshard.core.tensortype import DType, TensorType, dtype, type_of
from autoshard.ir.scan import Scanner, quote
from autoshard.layout.sdy_text import parse_sharding, show_sharding
from autoshard.layout.sharding import Sharding
from autoshard.ops.attributes import Literal
from autoshard.ops.body import Body
from autoshard.util.errors import AutoshardError, GraphError, ShapeError
from autoshard.util.text import integer

SMALL_LITERAL = 16
WORD = re.compile(r"%?[^\W\d][\w./-]*|%\d[\w./#-]*")
_TYPE = re.compile(r"\w+\[[0-9, ]*\]")
_NUMBER = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\b")
_CONSTANTS = {"True": True, "False": False, "None": None}
_WORDS_OF_THE_FORM = ("return", "graph", "function", "region", "yield")


# -- printing


def show_name(name: str) -> str:
    """A name as it stands in a graph's text: bare where that is unambiguous, else in quotes."""
    return name if WORD.fullmatch(name) and name not in _WORDS_OF_THE_FORM else quote(name)


def show_value(value: Any) -> str:
    """The text of an attribute value: numbers, strings, None, tuples, types, arrays, bodies, rules, shardings.

    Raises:
        GraphError: any other kind of value.
    """
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, tuple | list):
        items = ", ".join(map(show_value, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, Literal):
        return _show_literal(value.array)
    if isinstance(value, DType | np.dtype | type):
        return f"dtype({dtype(value)})"
    if isinstance(value, TensorType):
        return str(value)
    if isinstance(value, Body):
        return f'Body("", {quote(value.text)})' if value.text else f"Body({quote(value.name)})"
    if isinstance(value, Sharding):
        # The mesh is written out, so that the text says all; the name it had in its module stands before it.
        return f"Sharding({quote(value.mesh_name)}, {quote(show_sharding(value.replace(mesh_name='')))})"
    if isinstance(value, Rule):
        return f"Rule({quote(show_sdy(value))}, {show_value(tuple(factor.whole for factor in value.factors))})"
    raise GraphError(
        f"attribute value {value!r} ({type(value).__name__}) has no text; a graph can hold numbers, strings, "
        f"None, tuples, types, Literal arrays, bodies, rules and shardings"
    )


def _show_literal(array: np.ndarray) -> str:
    """Small arrays as nested lists; others, and what a list would lose bits of (any NaN), as base64 of the bytes."""
    of = type_of(array)
    if of.dtype.extended or array.dtype.kind == "c":
        return f"Literal({of}, {quote(base64.b64encode(np.ascontiguousarray(array).tobytes()).decode())})"
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).reshape(array.shape)
    if array.size <= SMALL_LITERAL and not np.isnan(array).any():
        return f"Literal({of}, {_show_nested(native.tolist())})"
    return f"Literal({of}, {quote(base64.b64encode(native.tobytes()).decode())})"


def _show_nested(items: Any) -> str:
    return f"[{', '.join(map(_show_nested, items))}]" if isinstance(items, list) else repr(items)


# -- reading


def read_name(line: Scanner) -> str:
    """What `show_name` prints."""
    line.skip()
    return line.string() if line.text.startswith('"', line.position) else line.need(WORD, "a name")


def read_type(line: Scanner) -> TensorType:
    text = line.need(_TYPE, "a type such as f32[64, 1024]")
    try:
        return TensorType.parse(text)
    except AutoshardError as error:
        raise line.error(str(error)) from None


def read_value(line: Scanner) -> Any:
    """An attribute value as `show_value` prints it."""
    if line.take("("):
        return tuple(line.several(")", lambda: read_value(line)))
    if line.take("Literal("):
        return _read_literal(line)
    if line.take("dtype("):
        name = line.need(WORD, "an element type")
        line.expect(")")
        return dtype(name)
    if line.take("complex("):
        return _read_complex(line)
    if line.take("Body("):
        return _read_body(line)
    if line.take("Rule("):
        return _read_rule(line)
    if line.take("Sharding("):
        return _read_sharding(line)
    if line.text.startswith('"', line.position):
        return line.string()
    return read_type(line) if _TYPE.match(line.text, line.position) else _read_scalar(line)


def _read_complex(line: Scanner) -> complex:
    parts = line.several(")", lambda: _read_scalar(line))
    if len(parts) != 2 or not all(isinstance(one, float) for one in parts):
        raise line.error("complex(...) before here holds no real and imaginary part, like complex(1.0, -2.0)")
    return complex(*parts)


def _read_body(line: Scanner) -> Body:
    name = line.string()
    text = line.string() if line.take(",") else ""
    line.expect(")")
    if not text:
        return Body(name)
    if not text.startswith("graph "):
        return Body(name, text, _unreadable(text))
    if line.function is None:
        raise line.error("the Body before here is a graph, which is read by `parse` of graphs alone")
    try:
        return Body("", text, line.function(text))
    except AutoshardError as error:
        raise line.error(f"bad Body before here: {error}") from None


def _unreadable(text: str) -> Callable:
    """What stands for a function that was described in words, not as a graph."""

    def run(*arrays: np.ndarray) -> tuple:
        raise ShapeError(f"cannot run the function {text!r}: it was read from a text, which only says that")

    return run


def _read_rule(line: Scanner) -> Rule:
    text = line.string()
    line.expect(",")
    whole = read_value(line)
    line.expect(")")
    try:
        rule, _ = parse_sdy_rule(text)
        factors = zip(rule.factors, whole, strict=True)
        return replace(rule, factors=tuple(replace(factor, whole=bool(one)) for factor, one in factors))
    except (AutoshardError, TypeError, ValueError) as error:
        raise line.error(f"bad Rule before here: {error}") from None


def _read_sharding(line: Scanner) -> Sharding:
    name = line.string()
    line.expect(",")
    text = line.string()
    line.expect(")")
    try:
        return parse_sharding(text).replace(mesh_name=name)
    except AutoshardError as error:
        raise line.error(f"bad Sharding before here: {error}") from None


def _read_scalar(line: Scanner) -> Any:
    for word, value in _CONSTANTS.items():
        if line.take(word):
            return value
    number = line.need(_NUMBER, "a value (number, string, True, False, None, tuple, dtype(..) or Literal(..))")
    return integer(number) if re.fullmatch(r"-?[0-9]+", number) else float(number)


def _read_literal(line: Scanner) -> Literal:
    of = read_type(line)
    line.expect(",")
    line.skip()
    try:
        if line.text.startswith('"', line.position):
            data = base64.b64decode(line.string(), validate=True)
            kind = of.dtype.numpy
            flat = np.frombuffer(data, kind if of.dtype.extended else kind.newbyteorder("<"))
            array = flat.astype(of.dtype.numpy).reshape(of.shape)
        else:
            array = np.array(_read_nested(line), of.dtype.numpy).reshape(of.shape)
    except (ValueError, OverflowError) as error:
        raise line.error(f"bad data for a Literal of type {of} before here: {error}") from None
    line.expect(")")
    return Literal(array)


def _read_nested(line: Scanner) -> Any:
    return line.several("]", lambda: _read_nested(line)) if line.take("[") else _read_scalar(line)
