"""Shardy's own passes in jaxlib, run by a process of their own: on some modules the released ones crash.

Run as a script this is that process: a line of JSON in, [module text, passes]; a line out, the text or an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

EDGES, SINK = "sdy-add-data-flow-edges", "func.func(sdy-sink-data-flow-edges)"
PIPELINES = {
    "basic": (EDGES, "sdy-basic-propagate", SINK),
    "aggressive": (EDGES, "sdy-aggressive-propagate", SINK),
    "op-priority": (EDGES, "sdy-op-priority-propagate", SINK),
    "user-priority": (EDGES, "sdy-user-priority-propagate", SINK),
    "full": ("sdy-propagation-pipeline",),
}


class ShardyFailed(Exception):
    """Shardy did not take the module: an error, or a crash of its own."""


class _Shardy:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, text: str, passes: Sequence[str]) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([text, list(passes)]) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


@lru_cache(maxsize=1)
def _shared() -> _Shardy:
    return _Shardy()


def shardy(text: str, passes: Sequence[str]) -> str:
    """The module after the passes, as text.

    Raises:
        ShardyFailed: the module is invalid, a pass fails, or the process dies.
    """
    answer = _shared().ask(text, passes)
    if not answer:
        _shared().process.wait()
        _shared.cache_clear()
        raise ShardyFailed("the process died")
    module, error = json.loads(answer)
    if error:
        raise ShardyFailed(error)
    return module


def run(text: str, passes: Sequence[str]) -> str:
    """The same in this process."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)
        return str(module)


def _serve() -> None:
    for line in sys.stdin:
        text, passes = json.loads(line)
        try:
            answer = [run(text, passes), ""]
        except Exception as error:
            answer = ["", str(error)[:2000]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
