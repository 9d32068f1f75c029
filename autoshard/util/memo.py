"""What is remembered stays bounded: interned values that live as long as they are used, and memos that forget."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import wraps
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

RECENT = 1 << 14
"""How many interned values are kept though nobody uses them: about 10 MiB of layouts."""
LISTED = 1 << 15
"""How many elements all lists hold together that a function is remembered to have made: strategies take 330 bytes."""
MOST = 1 << 16
"""How many answers a memo holds: a plan of 8,000 operators asks for half as many, and a number with its key takes some
200 bytes."""


class Interned(Generic[Value]):
    """Values by what they are made of: as long as somebody uses one, the same object is found for it.

    Those that nobody uses go, but for the RECENT ones made last. Threads that make equal values get the same one.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Value] = WeakValueDictionary()
        self._recent: deque[Value] = deque(maxlen=RECENT)
        self._making = threading.Lock()
        self.get = self._known.get

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, key: Hashable, value: Value) -> Value:
        """The value that is known by the key; the one given, if none is."""
        with self._making:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = value
                self._recent.append(value)
            return known


class Memo(dict[Key, Value]):
    """A dict of answers that can be worked out again: when it is full the older half is forgotten.

    >>> memo = Memo(most=4)
    >>> for number in range(6):
    ...     memo[number] = number**2
    >>> list(memo)
    [2, 3, 4, 5]
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = MOST if most is None else most

    def __setitem__(self, key: Key, value: Value) -> None:
        if len(self) >= self.most and key not in self:
            for old in list(islice(self, max(1, self.most // 2))):
                self.pop(old, None)
        super().__setitem__(key, value)


def remembered(weigh: Callable[[Any], int] = len, most: int = LISTED) -> Callable[[Callable], Callable]:
    """Decorate a function of hashable arguments whose answers are large: the oldest are forgotten while all together
    weigh more than `most`.

    >>> @remembered(most=5)
    ... def count(number):
    ...     print("counts to", number)
    ...     return range(number)
    >>> _ = count(3), count(3), count(2), count(4), count(3)
    counts to 3
    counts to 2
    counts to 4
    counts to 3
    """

    def decorate(function: Callable) -> Callable:
        known: dict[tuple, Any] = {}
        weight, adding = 0, threading.Lock()

        @wraps(function)
        def answer(*key: Any) -> Any:
            nonlocal weight
            found = known.get(key)
            if found is None:
                found = function(*key)
                with adding:
                    if key not in known:
                        known[key] = found
                        weight += weigh(found)
                    while weight > most and len(known) > 1:
                        weight -= weigh(known.pop(next(iter(known))))
            return found

        return answer

    return decorate
