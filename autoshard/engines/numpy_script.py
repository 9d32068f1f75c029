"""Script: what the meaning of an operator asks of numpy, as calls that follow each other, noted while it runs.

    script, made = scripts().of(add, [x, y], {}, [F32], [False, False])    # x, y: arrays as a rank holds them
    script.steps                                                           # one step: numpy's add of both

The meaning is the operator's own, retargeted (`retarget.py`), so that nothing is said twice. Some have no script: those
that look at numbers, hold bodies, or have effects; they run as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from autoshard.core.tensortype import TOKEN, DType
from autoshard.engines import numpy_values
from autoshard.engines.namespace import Namespace
from autoshard.engines.numpy_library import Known
from autoshard.engines.numpy_values import NumpyCall, NumpyValue
from autoshard.engines.overrides import override
from autoshard.engines.retarget import Retarget
from autoshard.engines.tape import Broken, told_apart
from autoshard.ops.registry import Operator
from autoshard.util.memo import Memo

LONGEST = 64
"""Calls of a script at most: of longer ones the lines of Python that a script saves are few beside what they do."""
LARGEST = 1 << 18
"""Bytes that a script keeps because they are the same in each run, at most, as of tapes (`tape.py`)."""
MOST = 1 << 11
"""How many scripts are remembered: a program has some hundreds of operators that differ."""


@dataclass(frozen=True)
class Ref:
    """An array that steps take or make: "operand", "step" or "constant" of that number; `part` of a step's results."""

    kind: str
    number: int
    part: int | None = None


@dataclass(frozen=True)
class ScriptStep:
    """One call; Refs stand for arrays among its arguments.

    Args:
        made: shape and type of what it makes, or of each part of that.
        parts: whether it makes several, if only one.
        errors: what numpy is told of floating point errors, where that is not what is usual; else None.
    """

    of: NumpyCall
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]
    made: tuple[tuple[tuple[int, ...], np.dtype], ...]
    parts: bool
    errors: tuple[tuple[str, Any], ...] | None


@dataclass(frozen=True, eq=False)
class Script:
    """The calls, and where the results come from: a Ref, or an array that is the same in each run."""

    steps: tuple[ScriptStep, ...]
    constants: tuple[np.ndarray, ...]
    outputs: tuple[Ref | np.ndarray, ...]
    key: Hashable
    """What it is for."""


class _Noted:
    """What a Namespace tells its calls to: the face of `tape.Tape` while notes are taken."""

    is_blind = False

    def __init__(self, operands: Sequence[NumpyValue | np.ndarray]) -> None:
        self._refs = {id(one): Ref("operand", i) for i, one in enumerate(operands)}
        self._held: list[Any] = list(operands)
        """All that has a Ref: as long as it is held no other object has its id."""
        self.steps: list[ScriptStep] = []
        self.constants: list[np.ndarray] = []
        self._usual = np.geterr()

    def breaks(self, why: str) -> None:
        raise Broken(why)

    def assume(self, raw: Any, value: bool) -> None:
        raise Broken("what it does depends on the numbers of an operand")

    def constant(self, value: np.ndarray, raw: NumpyValue) -> None:
        self._name(raw, Ref("constant", len(self.constants)))
        self.constants.append(value)

    def note(self, of: NumpyCall, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        if id(made) in self._refs:  # it is an operand: there was nothing to do
            return
        if len(self.steps) == LONGEST:
            raise Broken(f"it is more than {LONGEST} calls")
        errors, parts = np.geterr(), made if isinstance(made, tuple) else (made,)
        if not all(isinstance(one, NumpyValue) for one in parts):
            raise Broken("a call gives what is no array")
        number = len(self.steps)
        self.steps.append(
            ScriptStep(
                of,
                tuple(map(self.told, args)),
                tuple((key, self.told(one)) for key, one in kwargs.items()),
                tuple((one.shape, one.dtype) for one in parts),
                isinstance(made, tuple),
                None if errors == self._usual else tuple(errors.items()),
            )
        )
        for i, one in enumerate(parts):
            self._name(one, Ref("step", number, i if isinstance(made, tuple) else None))

    def _name(self, value: NumpyValue, ref: Ref) -> None:
        self._refs[id(value)] = ref
        self._held.append(value)

    def told(self, value: Any) -> Any:
        """An argument with Refs for Values."""
        if isinstance(value, NumpyValue):
            if id(value) not in self._refs:
                raise Broken("an array comes from nowhere")
            return self._refs[id(value)]
        return type(value)(map(self.told, value)) if isinstance(value, tuple | list) else value


class Scripts:
    """Operators retargeted to noted numpy, and their scripts by what they are for."""

    def __init__(self) -> None:
        self._space = Namespace(Known(numpy_values))
        self._retarget = Retarget(self._space, {}, {})
        self._known: Memo[Any, Script | str] = Memo(MOST)

    def of(
        self,
        op: Operator,
        arrays: Sequence[np.ndarray],
        attrs: Mapping[str, Any],
        kinds: Sequence[DType],
        fixed: Sequence[bool],
    ) -> tuple[Script | str, list[np.ndarray] | None]:
        """The script, or why there is none; and what it has made of the arrays, unless it was known before.

        Args:
            kinds: element types of the results.
            fixed: for each operand whether it is the same array in each run.
        """
        known = tuple(one.tobytes() if still else None for one, still in zip(arrays, fixed, strict=True))
        key = (
            op, numpy_values.kinds(arrays), known, tuple(one.name for one in kinds), tuple(attrs),
            told_apart(tuple(attrs.values())),
        )  # fmt: skip
        try:
            found = self._known.get(key)
        except TypeError:
            return "its attributes cannot be told from others", None
        if found is not None:
            return found, None
        operands = [one if still else NumpyValue(one) for one, still in zip(arrays, fixed, strict=True)]
        try:
            found, made = self._noted(op, operands, attrs, kinds, key)
        except Exception as error:  # whatever a meaning that is not made for this may raise
            found, made = f"{type(error).__name__}: {error}", None
        self._known[key] = found
        return found, made

    def refuse(self, script: Script) -> None:
        """Play it nowhere: it has made something else than its operator."""
        self._known[script.key] = "it makes something else than its operator"

    def _noted(
        self,
        op: Operator,
        operands: Sequence[NumpyValue | np.ndarray],
        attrs: Mapping[str, Any],
        kinds: Sequence[DType],
        key: Hashable,
    ) -> tuple[Script | str, list[np.ndarray] | None]:
        if op.takes_regions or op.has_effects(attrs) or override(op.name, self._space) is not None:
            return "it does more than numpy is asked for", None
        noting = self._space.library.noting
        notes = noting.tape = _Noted(operands)
        try:
            given = {name: self._retarget.value(value) for name, value in attrs.items()}
            made = self._retarget.value(op.run)(*map(self._space.asarray, operands), **given)
            parts = made if isinstance(made, tuple) else (made,)
            results = [self._final(part, of) for part, of in zip(parts, kinds, strict=True)]
            outputs = tuple(one if isinstance(one, np.ndarray) else notes.told(one) for one in results)
        finally:
            noting.tape = None
        kept = (*notes.constants, *(one for one in outputs if isinstance(one, np.ndarray)))
        if sum(one.nbytes for one in kept) > LARGEST:
            return f"it holds more than {LARGEST} bytes that are the same in each run", None
        script = Script(tuple(notes.steps), tuple(notes.constants), outputs, key)
        return script, [numpy_values.plain(one) for one in results]

    def _final(self, part: Any, of: DType) -> NumpyValue | np.ndarray:
        kind = np.dtype(bool) if of is TOKEN else of.numpy
        raw = self._space.library.cast(self._space.raw(part), kind)
        return raw if isinstance(raw, NumpyValue) else np.asarray(raw)


@cache
def scripts() -> Scripts:
    """Those of this process."""
    return Scripts()


__all__ = ["Ref", "Script", "ScriptStep", "Scripts", "scripts"]
