"""What the user sees of mpiexec's stderr: everything but banners, and every failure once, however it is
cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.runtime.reports import MARK, StderrFilter

RULE = "-" * 74


def banner(text: str) -> str:
    return f"{RULE}\n{text}\n{RULE}\n"


ABORT = banner("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Errorcode: 1")
KILLED = banner("prterun noticed that process rank 2 with PID 0 on node vm exited on\nsignal 9 (Killed).")
EXITED = banner(
    "prterun detected that one or more processes exited with non-zero status,\n"
    "thus causing the job to be terminated. The first process to do so was:\n\n"
    "   Process name: [prterun-vm-3079@1,1]\n   Exit code:    3"
)
LEFT = banner(
    "prterun has exited due to process rank 0 with PID 17 on node vm exiting\nimproperly. There are three reasons\n"
    + "this could occur:\n\n" * 3
    + "You can avoid this message by specifying -quiet on the prterun command\nline."
)
NO_SLOTS = banner("There are not enough slots available in the system")


def shown(text: str, cuts: list[int] | None = None, quiet: bool = False) -> str:
    data, output, start = text.encode(), b"", 0
    filtered = StderrFilter()
    for cut in sorted(cut % (len(data) + 1) for cut in cuts or []):
        output += filtered.feed(data[start:cut])
        start = cut
    return (output + filtered.feed(data[start:]) + filtered.close(quiet)).decode()


def report(rank: int, *lines: str) -> str:
    return "".join(f"{MARK}{rank}{MARK}{line}\n" for line in lines)


STREAM = (
    f"warning\n{RULE}\n| a table |\n{RULE}\ndone\n"
    + report(1, "Traceback", "rank 1 failed: ValueError: x")
    + ABORT
    + report(0, "Traceback", "rank 0 failed: ValueError: x")
    + report(2, "Traceback", "rank 2 failed: TypeError: y")
    + "\0more\n"
    + KILLED
)
SEEN = f"warning\n{RULE}\n| a table |\n{RULE}\ndone\nTraceback\nrank 1 failed: ValueError: x\nmore\n"
SUMMARY = "rank 2 failed: TypeError: y\nthe same on rank 0\n"


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_a_stream_reads_the_same_however_it_arrives(cuts: list[int]) -> None:
    assert shown(STREAM, cuts) == SEEN + SUMMARY
    assert shown(STREAM, cuts, quiet=True) == SEEN


@settings(deadline=None)
@given(st.text(alphabet="-=ab\r\n ", max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_ordinary_output_passes_untouched(text: str, cuts: list[int]) -> None:
    assert shown(text, cuts) == text


def test_progress_bars_are_not_held_back() -> None:
    filtered = StderrFilter()
    assert filtered.feed(b"\r 10%") == b"\r 10%"
    assert filtered.feed(b"\r 20%") == b"\r 20%"
    assert filtered.feed(report(3, "rank 3 failed: KeyError: 1").encode()) == b"\nrank 3 failed: KeyError: 1\n"


def test_a_silent_death_is_told_from_the_banner() -> None:
    assert shown(KILLED) == "rank 2 failed: ended by signal 9 (Killed)\n"
    assert shown(EXITED) == "rank 1 failed: exit code 3\n"
    assert shown(LEFT) == "rank 0 failed: it left before its end, without an error\n"
    assert shown(ABORT) == ""


def test_the_first_of_several_deaths_is_the_cause() -> None:
    assert shown(KILLED + EXITED) == "rank 2 failed: ended by signal 9 (Killed)\n"
    assert shown(KILLED, quiet=True) == ""


def test_a_silent_death_is_told_after_what_it_did_to_others() -> None:
    """The error of a rank that lost its partner comes first; the partner's end, which is the cause, is not lost."""
    assert shown(report(1, "rank 1 failed: Exception: MPI_ERR_TRUNCATE") + KILLED) == (
        "rank 1 failed: Exception: MPI_ERR_TRUNCATE\nrank 2 failed: ended by signal 9 (Killed)\n"
    )
    spoke = report(1, "rank 1 failed: ValueError: x")
    assert shown(spoke + EXITED) == "rank 1 failed: ValueError: x\n", "it has said itself why"


def test_what_is_known_of_a_silent_rank_is_told() -> None:
    filtered = StderrFilter(lambda rank, text: [f"stack of {rank}", f"{text}, in step 7"])
    assert not filtered.told
    filtered.feed(KILLED.encode())
    assert filtered.told
    assert filtered.close() == b"stack of 2\nrank 2 failed: ended by signal 9 (Killed), in step 7\n"


def test_a_report_inside_a_banner_is_not_lost() -> None:
    half = ABORT.index("  Errorcode")
    mixed = ABORT[:half] + report(1, "rank 1 failed: ValueError: x") + ABORT[half:]
    assert shown(mixed) == "rank 1 failed: ValueError: x\n"


def test_other_messages_of_the_launcher_pass() -> None:
    assert shown(NO_SLOTS) == NO_SLOTS
    assert shown(RULE) == RULE
