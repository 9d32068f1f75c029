"""Text of a stretch: a function of the slots of a program, which calls numpy line by line.

    def stretch(s):                          # of each slot a list with the array of the rank
        o3 = free(s[3], k0, k1)              # what ends here, if nobody else holds it
        x1 = s[1][0]
        x3 = s[3][0]
        s[3] = None
        v0 = matmul(x1, x3)
        del x1
        add(v0, c0, out=v0)                  # over what nothing reads any more
        s[5] = [v0]

What nothing reads is left out. An elementwise result is made in the memory of an operand that nothing reads after it;
where that came from outside by the same sign as elsewhere (`runtime/spare.py`). So a stretch holds no more memory than
its operators one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from autoshard.engines import numpy_library
from autoshard.engines.numpy_layouts import without_copies
from autoshard.engines.numpy_script import LARGEST
from autoshard.engines.numpy_stretch import Stretch, StretchLine, Var, vars_in
from autoshard.engines.numpy_values import AT, BROADCAST, CAST, GET, REDUCE, SET, UFUNC, VIEW, WHERE
from autoshard.partition.program import Register
from autoshard.runtime.comm import REDUCTIONS
from autoshard.runtime.spare import spare

_REDUCERS = {**REDUCTIONS, "all": np.logical_and, "any": np.logical_or}
"""numpy's functions that reduce, and the ufunc that each is the reduction by."""


def _free(parts: list[np.ndarray], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """The rank's array, if a result can be made in it as it would lie in memory of its own: nobody else holds it, and
    no dim of it lies backwards. (BLAS adds up in another order what lies otherwise.)"""
    found = spare(parts, _PLACES, shape, dtype)
    return None if found is None or min(found.strides, default=0) < 0 else found


_PLACES = (0,)
_NAMES = {
    "free": _free, "array": np.array, "asarray": np.asarray, "empty": np.empty, "copyto": np.copyto,
    "broadcast_to": np.broadcast_to, "errstate": np.errstate, "cast": numpy_library.cast,
    "logical_not": np.logical_not, "bitwise_and": np.bitwise_and,
}  # fmt: skip
_EVER = 1 << 60
_ROW = 64
"""Elements of a row from which numpy takes several of them at once."""


@lru_cache(1024)
def _code(source: str) -> CodeType:
    """Texts are alike where only the objects differ that they name."""
    return compile(source, "<stretch of a program>", "exec")


class StretchText:
    """Writes a stretch.

    Args:
        ending: registers that are let go in it.
        read: registers that are read outside of stretches.
        leaving: registers whose arrays leave the program: what is the caller's, or stays here, is copied for them.
        marks: where the number of the operator that is run is written; None: nowhere.
        advance: called after each operator; None: nothing is.
    """

    def __init__(
        self,
        stretch: Stretch,
        ending: set[Register],
        read: Collection[Register],
        leaving: Collection[Register],
        marks: Any = None,
        advance: Callable[[], None] | None = None,
    ) -> None:
        self.stretch, self.ending, self.read, self.leaving = stretch, ending, read, leaving
        self.marks, self.advance = marks, advance
        ended = {stretch.slots[one] for one in ending}
        self.results = {one: stretch.of[one] for one in stretch.results if self._is_stored(one)}
        self.lines = without_copies(self._live(), set(self.results.values()))
        self.last = self._last_uses()
        self.loaded = {one.slot: one for one in self.last if one.slot is not None}
        self.given = {slot: one for slot, one in self.loaded.items() if slot in ended}
        self.asked: dict[int, str] = {}
        """Names of the memory that may be taken, by slot."""
        self.objects: dict[str, Any] = {**_NAMES, "marks": marks, "advance": advance}

    def _is_stored(self, register: Register) -> bool:
        return register not in self.ending and (register not in self.stretch.fixed or register in self.read)

    def _live(self) -> list[StretchLine]:
        """The lines whose results are read."""
        wanted, kept = {*self.results.values()}, []
        for line in reversed(self.stretch.lines):
            if not wanted.isdisjoint(line.made):
                kept.append(line)
                wanted.update(line.uses)
        return kept[::-1]

    def _last_uses(self) -> dict[Var, int]:
        """The number of the last line that reads each array."""
        found: dict[Var, int] = {}
        for i, line in enumerate(self.lines):
            found.update((one, i) for one in (*line.uses, *line.made))
        found.update((one, _EVER) for one in self.results.values())
        return found

    # -- the function

    def function(self) -> Callable[[list], None]:
        """The stretch as a function of the slots."""
        body = list(self._body())
        source = "\n".join(("def stretch(s):", *(f"    {line}" for line in (*self._head(), *body, *self._tail()))))
        names = {name: one for name, one in (self.stretch.objects | self.objects).items() if name in source}
        exec(_code(f"{source}\n    return\n"), names)
        names["stretch"].text = source
        return names["stretch"]

    def _head(self) -> Iterator[str]:
        for slot, name in self.asked.items():
            var = self.given[slot]
            yield f"{name} = free(s[{slot}], {self._object(var.shape)}, {self._object(var.dtype)})"
        yield from (f"{var.name} = s[{slot}][0]" for slot, var in self.loaded.items())
        slots = sorted(self.stretch.slots[one] for one in self.ending.difference(self.stretch.results))
        if slots:
            yield f"{' = '.join(f's[{slot}]' for slot in slots)} = None"

    def _tail(self) -> Iterator[str]:
        stored: set[Var] = set()
        for register, var in self.results.items():
            is_constant = any(one.constant is not None for one in var.roots)
            is_anothers = var in stored or any(one.slot is not None and one.slot not in self.given for one in var.roots)
            stored.add(var)
            if is_constant or (is_anothers and register in self.leaving):
                made = f"array({var.name})"
            else:
                made = f"asarray({var.name})" if var.scalar else var.name
            yield f"s[{self.stretch.slots[register]}] = [{made}]"

    def _body(self) -> Iterator[str]:
        self._root_ends = self._ends_of_roots()
        operator, errors = None, None
        for i, line in enumerate(self.lines):
            if line.operator != operator:
                if operator is not None and self.advance is not None:
                    yield "advance()"
                if self.marks is not None:
                    yield f"marks[0] = {line.place}"
                operator = line.operator
            if line.errors is not None and line.errors != errors:
                yield f"with errstate({', '.join(f'{key}={value!r}' for key, value in line.errors)}):"
            errors = line.errors
            pad = "" if errors is None else "    "
            yield from (f"{pad}{text}" for text in self._line(line, i))
            gone = self._gone(line, i)
            if gone:
                yield f"{pad}del {', '.join(gone)}"
        if operator is not None and self.advance is not None:
            yield "advance()"

    def _ends_of_roots(self) -> dict[Var, int]:
        """The last line that reads memory, by the Var that it is of."""
        found: dict[Var, int] = {}
        for one, last in self.last.items():
            for root in one.roots:
                found[root] = max(last, found.get(root, -1))
        return found

    def _gone(self, line: StretchLine, i: int) -> list[str]:
        """Names that nothing reads after the line: of arrays whose memory another one has taken over, none."""
        over = {one.name for one in line.made if self.last[one] > i}
        ended = [one for one in dict.fromkeys((*line.uses, *line.made)) if self.last[one] <= i]
        names = dict.fromkeys(one.name for one in ended if one.constant is None and one.name not in over)
        asked = (self.asked.get(slot) for one in ended for slot in self._slots(one) if self._ends_at(slot, i))
        return [*names, *(name for name in dict.fromkeys(asked) if name)]

    def _slots(self, var: Var) -> list[int]:
        return [root.slot for root in var.roots if root.slot is not None]

    def _ends_at(self, slot: int, i: int) -> bool:
        return self._root_ends[self.loaded[slot]] == i if slot in self.loaded else False

    # -- one line

    def _line(self, line: StretchLine, i: int) -> Iterator[str]:
        """The line's text, made over an operand where that can be."""
        kind = line.of.kind
        if line.into is not None:
            yield from self._into(line)
        elif kind == UFUNC and not line.parts:
            yield self._ufunc(line, i)
        elif kind == WHERE:
            yield self._where(line, i)
        elif kind in (SET, AT):
            yield from self._changed(line, i)
        else:
            names = ", ".join(one.name for one in line.made)
            yield f"{names}{',' if line.parts else ''} = {self._value(line)}"

    def _ufunc(self, line: StretchLine, i: int) -> str:
        (made,), args = line.made, [self._operand(line, one) for one in line.args]
        call = f"{self._function(line)}({', '.join(args)}"
        is_elementwise = line.of.of.signature is None
        memory = self._memory(line, made, i, line.uses) if is_elementwise else None
        if memory is None:
            return f"{made.name} = {call})"
        var, asked = memory
        made.scalar = False
        if asked is None:
            made.name = var.name
            return f"{call}, out={var.name})"
        out = asked if var.slot is not None else f"None if {asked} is None else {var.name}"
        return f"{made.name} = {call}, out={out})"

    def _operand(self, line: StretchLine, var: Var) -> str:
        """An operand; of maximum and minimum a row of it in the place of one number that is always the same, with which
        numpy takes longer (128 x 128 in f32: 4.7 us, with one number 6.7)."""
        shape = line.made[0].shape
        if line.of.of in (np.maximum, np.minimum) and var.constant is not None and not var.shape and shape:
            return self._object(np.full(shape[-1], var.constant)) if shape[-1] >= _ROW else self.told(var)
        return self.told(var)

    def _into(self, line: StretchLine) -> Iterator[str]:
        """A result that is made in the layout that it is wanted in."""
        assert line.into is not None, "a layout is wanted"
        (made,), (shape, order) = line.made, line.into
        yield f"{made.name} = empty({made.shape}, {self._object(made.dtype)})"
        out = f"{made.name}.reshape({shape}).transpose({order})"
        yield f"{self._function(line)}({', '.join(self.told(one) for one in line.args)}, out={out})"

    def _memory(self, line: StretchLine, made: Var, i: int, givers: Iterable[Var]) -> tuple[Var, str | None] | None:
        """The operand in whose memory a result is made, and the name of what has to be there for that."""
        asked = None
        for var in givers if made.shape else ():
            if var.shape != made.shape or var.dtype != made.dtype or len(var.roots) != 1 or var.cut:
                continue
            (root,) = var.roots
            if root.constant is not None or self._root_ends[root] > i:
                continue
            if root.slot is None:
                return var, None
            if root.slot in self.given and asked is None:
                asked = var, root.slot
        return None if asked is None else (asked[0], self.asked.setdefault(asked[1], f"o{asked[1]}"))

    def _where(self, line: StretchLine, i: int) -> str:
        (made,), (condition, x, y) = line.made, line.args
        texts = [self.told(one) for one in line.args]
        for other, kept, holds in ((x, y, condition), (y, x, None)):
            memory = self._memory(line, made, i, iter([kept]) if isinstance(kept, Var) else iter(()))
            if memory is not None and memory[1] is None:
                made.name = memory[0].name
                mask = self._kept_bits(condition, other, holds is None)
                if mask is not None:
                    return f"bitwise_and({made.name}.view({mask}.dtype), {mask}, out={made.name}.view({mask}.dtype))"
                chosen = texts[0] if holds is not None else self._inverse(condition)
                return f"copyto({made.name}, {self.told(other)}, where={chosen})"
        return f"{made.name} = {self._function(line)}({', '.join(texts)})"

    def _kept_bits(self, condition: Var, other: Any, holds: bool) -> str | None:
        """The name of a mask of the bits that stay where elements become 0 by a mask that is always the same: numpy is
        faster with whole numbers than with `where`. Its elements are as wide; None: there is none."""
        if condition.constant is None or not isinstance(other, Var) or other.constant is None or other.shape:
            return None
        if other.dtype.kind != "f" or other.dtype.itemsize > 8 or any(other.constant.tobytes()):
            return None
        kept = condition.constant if holds else np.logical_not(condition.constant)
        mask = kept.astype(f"i{other.dtype.itemsize}")
        return self._object(np.negative(mask)) if mask.nbytes <= LARGEST else None

    def _inverse(self, condition: Var) -> str:
        if condition.constant is None:
            return f"logical_not({self.told(condition)})"
        return self._object(np.logical_not(condition.constant))

    def _changed(self, line: StretchLine, i: int) -> Iterator[str]:
        """An array of which a part is written to: in its own memory, if nothing else reads that."""
        (made,), args = line.made, list(line.args)
        name = args.pop(0) if line.of.kind == AT else None
        raw, index, part = args
        memory = self._memory(line, made, i, iter([raw]))
        if memory is not None and memory[1] is None:
            made.name = memory[0].name
        else:
            yield f"{made.name} = array({self.told(raw)})"
        if name is None:
            yield f"{made.name}[{self.told(index)}] = {self.told(part)}"
        else:
            yield f"{self._object(getattr(np, name).at)}({made.name}, {self.told(index)}, {self.told(part)})"

    def _value(self, line: StretchLine) -> str:
        kind, args = line.of.kind, line.args
        if kind == REDUCE and args[0] in _REDUCERS:
            name, raw, axes, keepdims = args
            along = axes[0] if len(axes) == 1 else tuple(axes)
            return f"{self._object(_REDUCERS[name].reduce)}({self.told(raw)}, {along}, None, None, {keepdims})"
        if kind == VIEW:
            return f"{self._array(args[0])}.{line.of.of.__name__}({self.told(args[1])})"
        if kind == BROADCAST:
            return f"broadcast_to({self.told(args[0])}, {self.told(args[1])})"
        if kind == GET:
            index = self.told(args[1]) if any(vars_in(args[1])) else self._object(args[1])
            return f"{self._array(args[0])}[{index}]"
        if kind == CAST:
            raw, to = args
            if np.can_cast(raw.dtype, to, "safe"):
                return f"{self._array(raw)}.astype({self.told(to)})"
            return f"cast({self._array(raw)}, {self.told(to)})"
        told = [self._array(one) if isinstance(one, Var) else self.told(one) for one in args]
        told += [f"{key}={self.told(one)}" for key, one in line.kwargs]
        return f"{self._function(line)}({', '.join(told)})"

    def _array(self, var: Var) -> str:
        return f"asarray({var.name})" if var.scalar else var.name

    def _function(self, line: StretchLine) -> str:
        return self._object(line.of.of)

    def told(self, value: Any) -> str:
        return self.stretch.told(value)

    def _object(self, value: Any) -> str:
        name = self.stretch.object_name(value, "k")
        self.objects[name] = value
        return name
