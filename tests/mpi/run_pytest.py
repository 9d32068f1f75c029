"""pytest on every rank: `autoshard run -n 4 tests/mpi/run_pytest.py ARGUMENTS...`.

Rank 0 writes pytest's report, the others write theirs only if a test failed there. A rank stops at its first
failure and so ends all of them: the others would wait in the next collective for it. Where pytest-randomly shuffles
the tests, all ranks shuffle them alike.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import sys

import pytest

from autoshard.mindspore.communication import get_rank

# Ranks would overwrite each other's cache; and to each its output is a terminal, wherever it goes in the end.
_FLAGS = ["-x", "-p", "no:cacheprovider", "--color=no"]


def main(arguments: list[str]) -> int:
    """pytest's exit code on this rank; 0 too where no test was selected."""
    arguments = [*_order(arguments), *arguments]
    if get_rank() == 0:
        code = pytest.main([*_FLAGS, *arguments])
    else:
        report = io.StringIO()
        with contextlib.redirect_stdout(report):
            code = pytest.main([*_FLAGS, *arguments])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            print(f"rank {get_rank()}:\n{report.getvalue()}", file=sys.stderr)
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


def _order(arguments: list[str]) -> list[str]:
    """The arguments by which all ranks run their tests in one order."""
    if importlib.util.find_spec("pytest_randomly") is None or any("randomly" in one for one in arguments):
        return []
    from mpi4py import MPI

    return [f"--randomly-seed={MPI.COMM_WORLD.bcast(random.getrandbits(31))}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
