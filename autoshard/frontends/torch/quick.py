"""torch.export in less time: while a module is captured, no code is generated that nobody runs.

torch.fx writes Python code for a graph module whenever its graph changes, some thirty times for an export, and asks the
interpreter for the whole stack at each node. Here a graph module gets its code when it is first called or its code is
read, each line of a stack is looked up once, and Python's garbage collector waits. The exported program is the same.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from autoshard.frontends.torch.patch import Patches
from autoshard.util.gc_paused import gc_paused

_QUICK = Patches()


@contextmanager
def quick_capture() -> Iterator[None]:
    """Capture so in this thread. Graph modules that come out of it lack their code until `with_code`."""
    with _QUICK.active(), gc_paused():
        yield


@_QUICK.replaces("torch.fx:GraphModule", "recompile")
def _recompile(at_once: Any, inside: Callable[[], bool]) -> Any:
    return lambda module: _later(module, at_once) if inside() else at_once(module)


@_QUICK.replaces("torch.fx.proxy", "CapturedTraceback")
def _stacks(own: Any, inside: Callable[[], bool]) -> Any:
    """A class whose `extract` is ours for threads inside."""

    def extract(*, skip: int = 0, **options: Any) -> Any:
        return _Stack.extract() if inside() else own.extract(skip=skip + 1, **options)

    return type("CapturedTraceback", (own,), {"extract": staticmethod(extract)})


def with_code(program: Any) -> Any:
    """The exported program, its graph module with the code that torch would have given it, made when it is read."""
    module = program.graph_module
    if "_code" in vars(module):  # it has been called meanwhile, and may have changed since
        module.recompile()
    else:
        type(module)._code = _Code()  # each graph module has a class of its own
    return program


class _Code:
    """Stands for the code of a graph module that has none yet."""

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        module.recompile()  # from here on the module has its own
        return vars(module)["_code"]


def _later(module: Any, recompile: Any) -> None:
    """Note the graph's signature as `recompile` does, which is left to the first call."""
    codegen = getattr(module.graph, "_codegen", None)
    if (of := getattr(codegen, "pytree_info", None)) is not None:
        module._in_spec, module._out_spec = of.in_spec, of.out_spec

    # Not called `forward`: by that name the tracer tells lines of models.
    def first_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recompile(self)
        return self(*args, **kwargs)

    type(module).forward = first_call


class _Stack:
    """What the tracer asks for the present stack, as torch's CapturedTraceback, from the outermost frame to the caller.

    A line is looked up once, however many nodes it leads to.
    """

    # By the code's id, for its hash takes long; the code is kept with it, so that no other gets the id.
    _known: dict[tuple[int, int | None], tuple[traceback.FrameSummary, CodeType]] = {}

    def __init__(self, frames: list[traceback.FrameSummary]) -> None:
        self.frames = frames

    @classmethod
    def extract(cls) -> _Stack:
        frames, frame, known = [], sys._getframe(2), cls._known
        while frame is not None:
            code, line = frame.f_code, frame.f_lineno
            found = known.get((id(code), line))
            if found is None:
                found = traceback.FrameSummary(code.co_filename, line, code.co_name), code
                known[id(code), line] = found
            frames.append(found[0])
            frame = frame.f_back
        return cls(frames[::-1])

    def summary(self) -> traceback.StackSummary:
        return traceback.StackSummary(self.frames)
