"""`autoshard run`, and the scripts that lead to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "sample_code" / "sharding_propagation" / "run.sh"


@pytest.mark.mpi
def test_run_passes_options_behind_the_script(cli, tmp_path):
    script = tmp_path / "show.py"
    script.write_text(
        "import sys\nfrom autoshard.mindspore.communication import get_group_size, get_rank\n"
        "print(get_rank(), 'of', get_group_size(), *sys.argv[1:])\n"
    )
    code, out, _ = cli("run", "-n", "2", "--timeout", "60", str(script), "--epochs", "3", "-n", "5")
    assert code == 0
    assert sorted(out.splitlines()) == [f"{rank} of 2 --epochs 3 -n 5" for rank in range(2)]


@pytest.mark.mpi
def test_run_keeps_the_exit_code(cli, tmp_path):
    script = tmp_path / "stop.py"
    script.write_text("import sys\nsys.exit(7)\n")
    assert cli("run", "-n", "2", "--timeout", "60", str(script))[0] == 7


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("-n", "2", "missing.py"), "missing.py"),
        (("-n", "0", str(ROOT / "setup.cfg")), "at least 1"),
        (("missing.py",), "-n"),
        (("-n", "2"), "SCRIPT"),
    ],
)
def test_run_errors(cli, arguments, words):
    code, _, err = cli("run", *arguments)
    assert code == 2
    assert words in err


def bash(*command: object, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if path is None else {"PATH": path})}
    shell = shutil.which("bash") or "bash"
    return subprocess.run([shell, *map(str, command)], capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize("arguments", [(), ("8", "8"), ("3",), ("0",), ("-2",), ("many",)])
def test_run_script_tells_its_usage(arguments):
    answer = bash(RUN, *arguments)
    assert answer.returncode == 2
    assert "usage: bash sample_code/sharding_propagation/run.sh RANKS" in answer.stderr
    assert len(arguments) != 1 or arguments[0] in answer.stderr


def test_run_script_has_help():
    answer = bash(RUN, "--help")
    assert answer.returncode == 0
    assert "usage:" in answer.stdout


def test_no_python_is_said(tmp_path):
    """In a copy, which has no .venv, with nothing but one tool on PATH."""
    shutil.copytree(ROOT / "sample_code", tmp_path / "sample_code")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "dirname").symlink_to(shutil.which("dirname") or "/usr/bin/dirname")
    (tmp_path / "setup.cfg").write_text("")
    answer = bash(tmp_path / "sample_code" / "sharding_propagation" / "run.sh", "2", path=str(tools))
    assert answer.returncode == 1
    assert "needs Python 3.11 or later" in answer.stderr
    assert not (tmp_path / ".venv").exists()
