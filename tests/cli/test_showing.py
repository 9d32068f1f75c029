"""Commands that show what autoshard knows, and the help of all."""

from __future__ import annotations

import pytest

import autoshard
from autoshard.ops import operators
from autoshard.search import search_modes
from costmodel import preset, presets, save


@pytest.mark.parametrize(
    "command, options",
    [
        (
            "plan",
            ["--mesh", "--search", "--hardware", "--dataset-strategy", "--json", "--alternatives", "-n"],
        ),
        ("dump", ["--mesh", "--output", "--ranks", "-n"]),
        ("run", ["--hosts", "--rank-table", "--threads", "--timeout", "-n"]),
        ("layout", ["--mesh", "-n"]),
        ("operators", ["--mesh", "-n"]),
        ("modes", []),
        ("hardware", []),
    ],
)
def test_help_names_the_options(cli, command, options):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert all(option in out for option in options)
    assert command in cli("--help")[1]


def test_version(cli):
    assert cli("--version") == (0, f"autoshard {autoshard.__version__}\n", "")


def test_unknown_command(cli):
    code, _, err = cli("divide")
    assert code == 2
    assert "divide" in err


def test_layout_draws_and_translates(cli):
    code, out, _ = cli("layout", "f32[64, 1024]", "dp, tp", "--mesh", "dp=2,tp=4")
    assert code == 0
    assert "a rank holds f32[32, 256], 32 KiB" in out
    assert "device_matrix [2, 4] tensor_map [1, 0]" in out
    assert "768:1024" in out and out.rstrip().endswith("7")


def test_layout_with_terms(cli):
    _, out, _ = cli("layout", "f32[12, 6]", "dp, - +tp", "--mesh", "dp=2,tp=4")
    assert "each rank holds a term of a sum over tp" in out
    assert "device_matrix" not in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("f32[64]", "dp, tp", "--mesh", "dp=2,tp=4"), "has 2 dims"),
        (("f32[64, 24]", "dp, xp", "--mesh", "dp=2,tp=4"), "xp"),
        (("f32(64)", "dp", "--mesh", "dp=2"), "cannot read tensor type"),
        (("f32[64]", "d"), "neither is given"),
    ],
)
def test_layout_errors(cli, arguments, words):
    code, _, err = cli("layout", *arguments)
    assert code == 2
    assert words in err


def test_operators_lists_all(cli):
    _, out, _ = cli("operators")
    assert all(f"{op.name}(" in out for op in operators())


def test_one_operator(cli):
    _, out, _ = cli("operators", "ReLU")
    assert "rule      ... -> ..." in out
    assert "gradient  yes" in out


def test_a_call_of_an_operator(cli):
    code, out, _ = cli("operators", "MatMul", "f32[64, 24]", "f32[12, 24]", "transpose_b=True", "-n", "4")
    assert code == 0
    assert "m=64" in out and "k=24" in out and "n=12" in out
    assert "f32[64, 12]" in out
    # Split along k: both operands in parts, the result in terms.
    assert "((1, 4), (1, 4))" in out and "[-, - +d]" in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("Matmul",), "did you mean 'MatMul'"),
        (("MatMul", "f32[64, 24]"), "takes 2 operands"),
        (("MatMul", "f32[64, 24]", "f32[10, 12]"), "24"),
        (("ReLU", "f32[6]", "slope=2"), "no attribute 'slope'"),
        (("ReLU", "six"), "cannot read tensor type 'six'"),
        (("ReLU", "-n", "4"), "add their types"),
    ],
)
def test_operator_errors(cli, arguments, words):
    code, _, err = cli("operators", *arguments)
    assert code == 2
    assert words in err


def test_modes_and_hardware(cli):
    _, out, _ = cli("modes")
    # Lines that begin with a space too many go on with the row before.
    rows = {line.split()[0]: line for line in out.splitlines()[2:] if line[1:2].strip()}
    assert set(rows) == set(search_modes())
    assert all(len(row.split()) > 3 for row in rows.values()), "each mode says what it does"
    assert "time_limit, recompute" in rows["optimal"]
    _, out, _ = cli("hardware")
    assert all(f"{name}: " in out for name in presets())
    assert "source: " in out


def test_hardware_lists_what_was_saved(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSHARD_CALIBRATION", str(tmp_path / "own.json"))
    _, out, _ = cli("hardware")
    assert "no calibration of this machine is saved" in out
    save(preset("h100"), tmp_path / "own.json")
    save(preset("cpu"), tmp_path / "another.json")
    (tmp_path / "letters.json").write_text("[]")
    code, out, err = cli("hardware")
    assert not code and not err and "letters" not in out
    assert out.index("--hardware calibrated, in ") < out.index(f"--hardware {tmp_path / 'another.json'}")
    (tmp_path / "own.json").write_text("[]")
    _, _, err = cli("hardware")
    assert "own.json is no hardware file" in err
