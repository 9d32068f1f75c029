"""Tape: what the meaning of an operator asked of a library, noted once, and played again without the meaning.

An operator's meaning decides by shapes, types and attributes, which are the same from step to step; what remains of it
is a list of calls of the library on tensors. A `Tape` notes them while the meaning runs; `Tape.played` is a function of
the operands that makes the same calls again: what is called twice alike is called once, what nothing reads is left out.

    tape = Tape([x, y], torch.is_tensor)      # while the meaning runs, `Known` tells it of each call
    tape.note(torch.mul, (x, y), {}, z)
    tape.note(torch.add, (z, 1), {}, w)
    tape.played([w])                          # lambda x, y: (torch.add(torch.mul(x, y), 1),)

A meaning that asks whether something holds for its tensors (that all indices are inside, say) is played as long as the
answer is the same: else what is played gives None. One that looks at other numbers may go another way next time: such
a tape breaks, as does one on which a tensor turns up that nobody has noted. Of a blind tape meanings ask nothing: they
go the way that they go where a framework traces.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from autoshard.util.memo import Memo

LARGEST = 1 << 18
"""Bytes of constants (masks, positions) that a tape holds at most: more are cheap to make, and dear to keep."""
_PLAIN = (bool, int, float, complex, str, type(None), type(Ellipsis), np.dtype)
MOST = 1 << 11
"""How many tapes are kept: a program has some hundreds of operators that differ."""
_ONCE = "has run once"


class Broken(Exception):
    """Something that no tape can say."""


class Tape:
    """The calls of one run of a meaning.

    Args:
        operands: the tensors that the meaning takes; each other one comes of a call, or is a constant.
        is_tensor: whether a value is a tensor of the library.
        largest: bytes of constants that it holds at most.
        is_blind: whether meanings shall not look at numbers of tensors.
    """

    def __init__(
        self,
        operands: Sequence[Any],
        is_tensor: Callable[[Any], bool],
        largest: int = LARGEST,
        is_blind: bool = False,
    ) -> None:
        self._is_tensor, self._largest, self.is_blind = is_tensor, largest, is_blind
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        """All that has a name: as long as it is kept, no other object has its id."""
        self._objects: dict[str, Any] = {}
        """What the text of the tape speaks of that is no operand."""
        self._calls: dict[str, tuple[str, Set[str]]] = {}
        """Text of a call -> the name of its result, and the names that it uses; in the order of the calls."""
        self._bytes = 0
        self.broken = ""
        """Why it cannot be played; '' as long as it can."""
        self.says: Hashable = None
        """What is played, once it is: equal for tapes that do the same. Functions of the library are told by their ids:
        who keeps this keeps what is played, too."""
        self._keys: dict[str, Hashable] = {}
        """What tells constants and numbers from others, by name; ids would not, as others may get them later."""
        self._operands = [self._name(one, f"x{i}") for i, one in enumerate(operands)]

    def _name(self, value: Any, name: str) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = name
            self._kept.append(value)
        return name

    def breaks(self, why: str) -> None:
        """It cannot be played, for that reason; the first one stays."""
        self.broken = self.broken or why

    def constant(self, value: np.ndarray, raw: Any) -> None:
        """Note a tensor that no operand goes into, and the array that it was made of."""
        if self.broken:
            return
        self._bytes += raw.nbytes
        if self._bytes > self._largest:
            return self.breaks(f"it holds more than {self._largest} bytes of constants")
        self._keys[self._object(raw)] = value.dtype.str, value.shape, value.tobytes()

    def assume(self, raw: Any, value: bool) -> None:
        """Note that a tensor of one truth value had this one."""
        name = self._names.get(id(raw))
        if name is None:
            self.breaks("a tensor comes from nowhere")
        else:
            self._calls.setdefault(f"if bool({name}) is not {value}: return None", ("", {name}))

    def note(self, of: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        """Note a call and what it has made."""
        if self.broken:
            return
        uses: set[str] = set()
        try:
            told = [self._told(one, uses) for one in args]
            told += [f"{key}={self._told(value, uses)}" for key, value in kwargs.items()]
            self._note(f"{self._object(of)}({', '.join(told)})", uses, made)
        except Broken as error:
            self.breaks(str(error))

    def _note(self, text: str, uses: Set[str], made: Any) -> None:
        if self._is_tensor(made):
            if id(made) not in self._names:  # else it is an operand of the call: nothing was to be done
                self._name(made, self._called(text, uses))
            return
        if not isinstance(made, tuple):
            raise Broken(f"a call gives a value of type {type(made).__name__}")
        name = self._called(text, uses)
        self._kept.append(made)
        for i, part in enumerate(made):
            self._note(f"{name}[{i}]", {name}, part)

    def _called(self, text: str, uses: Set[str]) -> str:
        """The name of what a call makes: of an equal one's, if there is one."""
        return self._calls.setdefault(text, (f"y{len(self._calls)}", uses))[0]

    def _object(self, value: Any) -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._name(value, f"c{len(self._objects)}")
            self._objects[name] = value
        return name

    def _told(self, value: Any, uses: set[str]) -> str:
        """The text of an argument; the names in it go into `uses`."""
        if type(value) is tuple or type(value) is list:
            inside = "".join(f"{self._told(one, uses)}, " for one in value)
            return f"({inside})" if type(value) is tuple else f"[{inside}]"
        if type(value) is slice:
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(self._told(one, uses) for one in parts)})"
        if type(value) in (bool, int, str, type(None)):
            return repr(value)
        if isinstance(value, _PLAIN):
            name = self._object(value)
            self._keys[name] = told_apart(value)
            return name
        if not self._is_tensor(value):
            raise Broken(f"a value of type {type(value).__name__} has no text")
        name = self._names.get(id(value))
        if name is None:
            raise Broken("a tensor comes from nowhere")
        uses.add(name)
        return name

    def played(self, outputs: Sequence[Any]) -> Callable[..., tuple | None] | None:
        """A function of the operands that makes the outputs, or None where something no longer holds; None: the tape is
        broken."""
        uses: set[str] = set()
        try:
            made = self._told(tuple(outputs), uses)
        except Broken as error:
            self.breaks(str(error))
        return None if self.broken else self._function(made, uses)

    def _function(self, made: str, live: set[str]) -> Callable[..., tuple | None]:
        """The calls that what is made needs; each result is let go after its last use."""
        lines = [f"    return {made}"]
        for text, (name, uses) in reversed(self._calls.items()):
            if name and name not in live:
                continue
            ending = sorted(one for one in uses - live if one.startswith("y"))
            lines += [f"    del {', '.join(ending)}"] if ending else []
            lines.append(f"    {name} = {text}" if name else f"    {text}")
            live |= uses
        source = "\n".join((f"def played({', '.join(self._operands)}):", *reversed(lines)))
        names = {name: one for name, one in self._objects.items() if name in source}
        self.says = source, tuple(self._keys.get(name, id(one)) for name, one in names.items())
        exec(compile(source, "<tape of an operator>", "exec"), names)
        return names["played"]


class Tapes:
    """Tapes by what they are for: the first run of a meaning is not noted, the second is, later ones are played.

    Args:
        noting: where a tape lies while calls are noted on it (`numpy_library.Noting`).
        is_tensor: whether a value is a tensor of the library.
    """

    def __init__(self, noting: Any, is_tensor: Callable[[Any], bool]) -> None:
        self._noting, self._is_tensor = noting, is_tensor
        self._known: Memo[Hashable, Callable[..., tuple | None] | str] = Memo(MOST)

    def run(self, key: Hashable, operands: Sequence[Any], meaning: Callable[[], tuple]) -> tuple:
        """What the meaning makes of the operands; equal keys say that it makes the same calls. A key that has no hash
        tells nothing."""
        if shared := same_objects(operands):
            key = key, shared
        try:
            found = self._known.get(key)
        except TypeError:
            return meaning()
        if found is None:
            self._known[key] = _ONCE
            return meaning()
        if found == _ONCE:
            made, tape = self.noted(meaning, operands)
            self._known[key] = tape.played(made) or tape.broken
            return made
        made = None if isinstance(found, str) else found(*operands)
        return meaning() if made is None else made

    @property
    def is_noting(self) -> bool:
        """Whether calls are noted now."""
        return self._noting.tape is not None

    def noted(self, run: Callable[[], tuple], operands: Sequence[Any], **options: Any) -> tuple[tuple, Tape]:
        """What the function makes of the operands, and the tape of it, which has the options."""
        tape = self._noting.tape = Tape(operands, self._is_tensor, **options)
        try:
            return run(), tape
        finally:
            self._noting.tape = None


def same_objects(operands: Sequence[Any]) -> tuple[int, ...]:
    """Of each operand the place of the first that is the same object; empty if all differ. A tape has one name for each
    object: noted of one tensor given twice, it says nothing of two."""
    ids = [id(one) for one in operands]
    return () if len(set(ids)) == len(ids) else tuple(map(ids.index, ids))


def told_apart(value: Any) -> Hashable:
    """An attribute's value as part of a key: 1, 1.0 and True are three, as are 0.0 and -0.0."""
    of = type(value)
    if of is tuple or of is list:
        return of, tuple(map(told_apart, value))
    return of, value.hex() if of is float else repr(value) if of is complex else value


__all__ = ["Tape", "Tapes", "same_objects", "told_apart"]
