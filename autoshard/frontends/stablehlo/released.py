"""Shardy's own passes, as jaxlib releases them, on the text of a module; both give text.

They run in a process of their own, because on some modules the released ones crash or never end. Run as a script this
file is that process: a line of JSON in, [module text, pipelines]; a line out per pipeline, [text, error, 0]. It imports
what it needs, and forks the process that does the work: where that one ends it says by which signal, ["", "", code] for
the pipeline, and forks the next.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache

from autoshard.frontends.propagated import PropagatedData
from autoshard.util.errors import AutoshardError, PlanError

EDGES, SINK = "sdy-add-data-flow-edges", "func.func(sdy-sink-data-flow-edges)"
# Seconds of computing that Shardy may take for a module, of which it needs milliseconds; and seconds that may go by,
# however busy the machine is.
MOST_WORK, MOST_WAIT = 3, 300
_ENDLESS = (-signal.SIGXCPU, -signal.SIGALRM)


class ShardyFailed(AutoshardError):
    """Shardy did not take the module: an error, or a crash of its own."""


def differing(spread: PropagatedData, ours: str) -> list[str]:
    """How the module that Shardy's pass of the same name leaves differs from ours, as lines of a diff; [] if nothing
    does.

    Args:
        ours: the text of the module as `spread` leaves it.

    Raises:
        PlanError: it was not read from a StableHLO module.
        ShardyFailed: Shardy does not take the module, or crashes.
    """
    if spread.imported is None:
        raise PlanError(f"{spread.graph.name!r} was not read from a StableHLO module, which alone Shardy's passes take")
    passes = pipeline(spread.which, conservative=spread.options.conservative)
    try:
        theirs = shardy(str(spread.imported.module), passes)
    except ShardyFailed as error:
        raise ShardyFailed(f"nothing to compare with: Shardy's own {' and '.join(passes)} failed: {error}") from None
    lines = difflib.unified_diff(ours.splitlines(), theirs.splitlines(), "autoshard", "shardy", n=0, lineterm="")
    return list(lines)


def pipeline(
    which: str, *, edges: bool = True, keep_rules: bool = False, conservative: bool = False
) -> tuple[str, ...]:
    """Shardy's passes that one of `api.propagate.PASSES` stands for.

    Args:
        edges: add data-flow edges first; False for modules that hold them.
        keep_rules: leave the rules on the operations; not for "full".
        conservative: never split unevenly or by parts of axes; not for "full".
    """
    if which == "full":
        return ("sdy-propagation-pipeline",)
    options = f"keep-sharding-rules={str(keep_rules).lower()} conservative-propagation={str(conservative).lower()}"
    return (*([EDGES] if edges else []), f"sdy-{which}-propagate{{{options}}}", SINK)


def shardy(text: str, passes: Sequence[str]) -> str:
    """The module after Shardy's passes, as text.

    Raises:
        ShardyFailed: the module is invalid, a pass fails, or the process dies or does not end.
    """
    (answer,) = shardy_each(text, [passes])
    if isinstance(answer, ShardyFailed):
        raise answer
    return answer


def shardy_each(text: str, pipelines: Sequence[Sequence[str]]) -> list[str | ShardyFailed]:
    """The same for several pipelines, each from the start."""
    found: list[str | ShardyFailed] = []
    while len(found) < len(pipelines):
        found += _shared().ask(text, pipelines[len(found) :])
    return found


class _Shardy:
    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, text: str, pipelines: Sequence[Sequence[str]]) -> list[str | ShardyFailed]:
        """What the pipelines make of a module, up to the first that ends the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([text, [list(passes) for passes in pipelines]]) + "\n")
        self.process.stdin.flush()
        found: list[str | ShardyFailed] = []
        for _ in pipelines:
            module, error, code = json.loads(self.process.stdout.readline())
            if code:
                failed = "it does not end" if code in _ENDLESS else f"the process died ({code})"
                return [*found, ShardyFailed(failed)]
            found.append(ShardyFailed(error) if error else module)
        return found


@lru_cache(maxsize=1)
def _shared() -> _Shardy:
    return _Shardy()


def _serve() -> None:
    """Import once, and have forked processes work until there is nothing more to read."""
    from jax._src.interpreters import mlir  # noqa: F401  (what the forked processes would each import)
    from jaxlib.mlir import passmanager  # noqa: F401

    while pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not code:
            return
        print(json.dumps(["", "", code]), flush=True)
    _work()


def _work() -> None:
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    for line in sys.stdin:
        text, pipelines = json.loads(line)
        with jax_mlir.make_ir_context() as context:
            # With several threads, the one that reports an error can wait for Python for ever.
            context.enable_multithreading(False)
            for passes in pipelines:
                _limit_time()
                try:
                    module = ir.Module.parse(text)
                    PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)
                    answer = [str(module), "", 0]
                except Exception as error:
                    answer = ["", str(error)[:2000], 0]
                print(json.dumps(answer), flush=True)
        signal.alarm(0)  # waiting for the next module is no work


def _limit_time() -> None:
    """Have the system end this process when a pipeline takes too long."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + MOST_WORK, most))
    signal.alarm(MOST_WAIT)


if __name__ == "__main__":
    _serve()
