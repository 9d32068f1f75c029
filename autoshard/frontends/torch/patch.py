"""Replaces attributes of torch while a module is captured, for the capturing threads alone.

Several threads may be inside at once: each sees the replacement, all others torch's own, and the last one to leave puts
torch's own back.

    LAZY = Patches()

    @LAZY.replaces("torch.fx:GraphModule", "recompile")
    def _recompile(own, inside):
        return lambda module: ... if inside() else own(module)

    with LAZY.active(): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pkgutil import resolve_name
from threading import RLock, get_ident
from typing import Any

Dispatcher = Callable[[Any, Callable[[], bool]], Any]
_LOCK = RLock()


class Patch:
    """One attribute of torch that is another for the threads inside.

    Args:
        owner: the class or module that has the attribute.
        name: the attribute's name.
        dispatcher: from torch's own attribute and a function that tells whether the present thread is inside, what
            stands in the attribute's place meanwhile.
    """

    def __init__(self, owner: Any, name: str, dispatcher: Dispatcher) -> None:
        self.owner, self.name, self.dispatcher = owner, name, dispatcher
        self._threads: Counter[int] = Counter()
        self._own: Any = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Applies the patch in this thread."""
        self._enter(get_ident())
        try:
            yield
        finally:
            self._leave(get_ident())

    def _enter(self, thread: int) -> None:
        with _LOCK:
            if not self._threads:
                # As it stands in the owner's own dict, so that a classmethod comes back as one.
                self._own = vars(self.owner)[self.name]
                setattr(self.owner, self.name, self.dispatcher(self._own, self._is_inside))
            self._threads[thread] += 1

    def _leave(self, thread: int) -> None:
        with _LOCK:
            self._threads[thread] -= 1
            if not self._threads[thread]:
                del self._threads[thread]
            if not self._threads:
                setattr(self.owner, self.name, self._own)

    def _is_inside(self) -> bool:
        return get_ident() in self._threads


class Patches:
    """Patches that apply together; what they replace is imported when they first do."""

    def __init__(self) -> None:
        self._places: list[tuple[str, str, Dispatcher]] = []

    def replaces(self, owner: str, name: str) -> Callable[[Dispatcher], Dispatcher]:
        """Decorates the dispatcher of a patch.

        Args:
            owner: the module, or the class behind a colon (`torch.nn:Module`).
            name: the attribute's name.
        """

        def register(dispatcher: Dispatcher) -> Dispatcher:
            self._places.append((owner, name, dispatcher))
            return dispatcher

        return register

    @cached_property
    def _patches(self) -> tuple[Patch, ...]:
        return tuple(Patch(resolve_name(owner), name, dispatcher) for owner, name, dispatcher in self._places)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Applies them in this thread."""
        with ExitStack() as stack:
            for one in self._patches:
                stack.enter_context(one.active())
            yield


WHILE_CAPTURING = Patches()
"""What is replaced while a module is captured."""
