"""Runs scripts on ranks of torch.distributed like torchrun, but forked from this process, which imports torch once.

Each line read is JSON, {"folder": where it runs, "ranks": how many, "paths": where modules are looked for, "command":
the script and its arguments}; each is answered with a line, {"error": what went wrong, or nothing}.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import tempfile
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

# What scripts import is there when ranks are forked; no thread of torch's runs yet.
import numpy  # noqa: F401
import torch.distributed
import torch.distributed.pipelining  # noqa: F401

TIMEOUT = 240
sys.path.pop(0)  # the folder of this script, which is none of theirs


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def on_rank(rank: int, port: int, log: str, job: dict[str, Any]) -> None:
    """The script on one rank, as `python SCRIPT ARGUMENTS` runs it there."""
    told = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(told, 1)
    os.dup2(told, 2)
    ranks = job["ranks"]
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
    os.chdir(job["folder"])
    script = job["command"][0]
    sys.argv[:] = job["command"]
    sys.path[:] = [str(Path(script).resolve().parent), *job["paths"], *sys.path]
    runpy.run_path(script, run_name="__main__")


def answer(job: dict[str, Any]) -> str:
    """What the ranks say of a failure; nothing if all end well. The first that fails ends the others."""
    with tempfile.NamedTemporaryFile("r") as log:
        context, port = get_context("fork"), free_port()
        ranks = [context.Process(target=on_rank, args=(rank, port, log.name, job)) for rank in range(job["ranks"])]
        for one in ranks:
            one.start()
        running: dict[Any, Any] = {one.sentinel: one for one in ranks}
        while running:
            ended = [running.pop(sentinel) for sentinel in connection.wait(list(running), TIMEOUT)]
            for one in ended:
                one.join()
            if not ended or any(one.exitcode for one in ended):
                for one in running.values():
                    one.kill()
                return log.read() or f"no end after {TIMEOUT} s"
        return ""


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps({"error": answer(json.loads(line))}), flush=True)
