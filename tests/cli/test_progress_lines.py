"""What is shown of work that takes long: a line in a terminal, lines with -v, nothing in a pipe and with -q."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import autoshard.cli.progress as progress
from autoshard.cli.progress import Phase, shown_progress
from autoshard.util.doing import doing, so_far

FFN = f"{Path(__file__).resolve().parents[2]}/sample_code/sharding_propagation/train.py:forward"
Cli = Callable[..., tuple[int, str, str]]


def console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=is_terminal, width=100, highlight=False, markup=False), written


def work(until: Callable[[], bool] = lambda: True) -> None:
    """Something in two parts, the second of which goes on until something has happened."""
    with doing("searching"):
        with doing("trying zero3"):
            so_far(best=2e-3)
        so_far(best=1e-3, bound=9e-4)
        end = time.monotonic() + 30
        while not until() and time.monotonic() < end:
            time.sleep(0.005)


@pytest.mark.parametrize("verbose, quiet, told", [(False, False, False), (True, False, True), (False, True, False)])
def test_in_a_pipe_only_v_tells(verbose, quiet, told):
    out, written = console(is_terminal=False)
    with shown_progress(quiet, verbose, out):
        work()
    lines = written.getvalue().splitlines()
    assert len(lines) == (2 if told else 0)
    if told:
        assert re.fullmatch(r"  trying zero3  [\d.]+ s  best 2 ms", lines[0])
        assert re.fullmatch(r"searching  [\d.]+ s  best 1 ms, bound 900 us, gap 10\.0%", lines[1])


def test_in_a_pipe_v_tells_what_goes_on(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.01)
    out, written = console(is_terminal=False)
    with shown_progress(False, True, out):
        work(until=lambda: written.getvalue().count("... searching") > 1)
    assert "... searching  0" in written.getvalue() and "gap 10.0%" in written.getvalue()


def test_in_a_terminal_a_line_appears_and_goes(monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 0.01)
    out, written = console(is_terminal=True)
    with shown_progress(False, False, out):
        work(until=lambda: "gap 10.0%" in written.getvalue())
    assert "searching" in written.getvalue() and written.getvalue().endswith("\x1b[2K")
    # What is short is not shown, and -q shows nothing.
    for quiet, after in ((False, 600.0), (True, 0.0)):
        monkeypatch.setattr(progress, "AFTER", after)
        out, written = console(is_terminal=True)
        with shown_progress(quiet, False, out):
            work()
        assert written.getvalue() == ""


def test_a_phase_in_words():
    assert re.fullmatch(r"reading  [\d.]+ s", str(Phase("reading", time.monotonic())))
    assert str(Phase("x", time.monotonic(), best=2.0, bound=3.0)).endswith("gap 0.0%"), "a bound of sums may be above"


def test_what_fails_leaves_no_line():
    out, written = console(is_terminal=False)
    with pytest.raises(ZeroDivisionError), shown_progress(False, True, out), doing("dividing"):
        raise ZeroDivisionError
    assert written.getvalue().startswith("dividing")
    with doing("unheard"):
        so_far(best=1.0)
    assert "unheard" not in written.getvalue()


def test_commands_tell_on_the_standard_error_output_only(cli: Cli):
    call = ("plan", FFN, "-n", "2", "--mode", "optimal")
    plain = cli(*call)
    assert plain[0] == 0 and plain[2] == ""
    code, out, err = cli(*call, "-v")
    assert (code, out) == plain[:2]
    assert all(word in err for word in ("loading", "reading the model", "searching by optimal", "bound", "gap"))
    assert cli(*call, "--quiet") == plain
    code, _, err = cli(*call, "-q", "-v")
    assert code == 2 and "give one of both" in err
