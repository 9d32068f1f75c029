"""Shardy's own passes in jaxlib and ours on the same module text, both giving text.

Shardy's run in a process of their own, because on some modules the released ones crash or never end. Run as a script
this file is that process: a line of JSON in, [module text, pipelines]; a line out per pipeline, [text, error, 0]. It
imports what it needs, and forks the process that does the work: where that one ends it says by which signal, ["", "",
code] for the pipeline, and forks the next.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any

from autoshard.util.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.frontends.stablehlo.imported import Imported

EDGES, SINK = "sdy-add-data-flow-edges", "func.func(sdy-sink-data-flow-edges)"
PASSES = ("basic", "aggressive", "op-priority", "user-priority", "full")
# Seconds of computing that Shardy may take for a module, of which it needs milliseconds; and seconds that may go by,
# however busy the machine is.
MOST_WORK, MOST_WAIT = 3, 300
_ENDLESS = (-signal.SIGXCPU, -signal.SIGALRM)


class ShardyFailed(Exception):
    """Shardy did not take the module: an error, or a crash of its own."""


def pipeline(
    which: str, *, edges: bool = True, keep_rules: bool = False, conservative: bool = False
) -> tuple[str, ...]:
    """Shardy's passes that one of PASSES stands for.

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


PIPELINES = {which: pipeline(which) for which in PASSES}


def ours_each(text: str, pipelines: Sequence[dict[str, Any]]) -> list[str | AutoshardError]:
    """Our own result for several pipelines, each given as the arguments of `pipeline`, or the error that they end with.

    Errors of other kinds are raised.
    """
    from autoshard.frontends.stablehlo.reader import parse_module, read_module

    imported = read_module(parse_module(text), dynamic=True)
    found: list[str | AutoshardError] = []
    for options in pipelines:
        try:
            found.append(_ours(imported, **options))
        except AutoshardError as error:
            found.append(error)
    return found


def _ours(
    imported: Imported, which: str, edges: bool = True, keep_rules: bool = False, conservative: bool = False
) -> str:
    from autoshard.exporters.sdy import to_module
    from autoshard.propagate.edges import add_edges, sink_edges
    from autoshard.propagate.pipeline import run_pipeline
    from autoshard.propagate.run import run_aggressive, run_basic, run_op_priority, run_user_priority
    from autoshard.propagate.values import store
    from autoshard.propagate.work import from_graph

    runs = {
        "basic": run_basic,
        "aggressive": run_aggressive,
        "op-priority": run_op_priority,
        "user-priority": run_user_priority,
    }
    work = from_graph(imported.graph, imported.asked, imported.order)
    for function in work.functions:
        function.attrs["public"] = function.attrs["name"] in imported.public
    if which == "full":
        run_pipeline(work)
    else:
        if edges:
            add_edges(work)
        runs[which](work, keep_rules=keep_rules, conservative=conservative)
        sink_edges(work)
        store(work)
    return str(to_module(work, imported, rules=keep_rules, full=which == "full"))


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
