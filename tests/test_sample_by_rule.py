"""The sample of shardings by rule: what its script prints, and the commands that its page shows."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import autoshard as ash
from autoshard.cli.commands import app

FOLDER = Path(ash.__file__).parents[1] / "sample_code" / "06_shardings_by_rule"
COMMANDS = re.findall(r"^    autoshard (.*)$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
BATCH, BOTH, WHOLE = '[{"batch"}, {}]', '[{"batch"}, {"model"}]', "[{}, {}]"


@pytest.fixture(scope="module")
def printed() -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(FOLDER / "mlp.py"), run_name="__main__")
    return out.getvalue()


def shardings(printed: str, title: str) -> dict[str, str]:
    """The lines below a title, by the name of the value."""
    lines = printed.split(f"{title}:\n")[1].split("\n")[:6]
    rows = re.findall(r"^    (\w+) +\S+\[[\d, ]+\] +<@mesh, (.*)>$", "\n".join(lines), re.MULTILINE)
    return dict(rows)


def test_each_step_adds_to_the_one_before(printed: str) -> None:
    batch = {"x": BATCH, "w1": WHOLE, "w2": WHOLE, "matmul": BATCH, "tanh": BATCH, "matmul_1": BATCH}
    megatron = batch | {"w1": '[{}, {"model"}]', "w2": '[{"model"}, {}]', "matmul": BOTH, "tanh": BOTH}
    zero = megatron | {"w1": BOTH, "w2": '[{"model"}, {"batch"}]'}
    assert shardings(printed, "batch parallelism") == batch
    assert shardings(printed, "then Megatron") == megatron
    assert shardings(printed, "then ZeRO") == zero
    assert shardings(printed, "all at once") == zero | {"matmul_1": '[{}, {"batch"}]'}


def test_the_report_and_the_explanation(printed: str) -> None:
    report, story = printed.split("all at once:")[1].split("\n\nmatmul_1:")
    assert "conflicts" in report and "mlp.py:" in report
    assert "asked of argument x" in story and "mlp.py:" in story


@pytest.mark.jax
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in FOLDER.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, shlex.split(command))
    assert answer.exit_code == 0, answer.output
    if "-o" in command:
        text = (tmp_path / "mlp_sharded.mlir").read_text(encoding="utf-8")
        assert text == ash.propagate(FOLDER / "mlp.mlir").to_mlir()
        assert (
            len(re.findall(r'tensor<16x48xf32> \{sdy.sharding = #sdy.sharding<@mesh, \[\{"batch"\}, \{\}\]>', text))
            == 1
        )
    else:
        assert "%2" in answer.output and "mlp.mlir:" in answer.output


def test_the_page_shows_both_commands() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["propagate", "explain"]
