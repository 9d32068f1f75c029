"""`survive(read, samples)`: a reader answers each sample rightly or by the project's error, quickly, in little memory,
and does nothing else.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autoshard.util.errors import AutoshardError

MOST_CHARACTERS = 2000
MOST_SECONDS = 10.0
"""CPU time of one sample: milliseconds are usual, and the machine may be busy."""
MOST_BYTES = 2**30
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.Popen",
    "pickle.find_class",
)
_watching: list[Path] = []
_seen: list[str] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event in _FORBIDDEN:
        _seen.append(f"{event} {args!r:.200}")
    if event == "open" and isinstance(args[0], str | bytes) and _writes(args[1], args[2]):
        path = Path(os.path.abspath(os.fsdecode(args[0])))
        if not path.is_relative_to(_watching[-1]) and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            _seen.append(f"wrote {path}")


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(one in mode for one in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


sys.addaudithook(_audit)


def survive(
    read: Callable[[bytes], Any],
    samples: Iterable[bytes],
    folder: Path,
    right: Callable[[Any], None] = lambda found: None,
    errors: tuple[type[Exception], ...] = (AutoshardError,),
) -> tuple[int, int]:
    """Give each sample to a reader; how many it read, and how many it refused.

    Args:
        folder: where alone it may write.
        right: looks at what was read, and may refuse it by such an error too.
    """
    read_count = refused = 0
    for number, sample in enumerate(samples):
        with pytest.MonkeyPatch.context() as patch, _limits():
            patch.chdir(folder)
            _watching.append(folder)
            try:
                right(read(sample))
                read_count += 1
            except errors as error:
                refused += 1
                assert len(str(error)) < MOST_CHARACTERS, f"sample {number}: a message of {len(str(error))} characters"
            except BaseException as error:
                shown = sample if len(sample) < 1500 else sample[:1000] + b" ... " + sample[-400:]
                error.add_note(f"sample {number}: {shown!r}")
                raise
            finally:
                _watching.pop()
    assert not _seen, _seen
    return read_count, refused


@contextmanager
def _limits() -> Iterator[None]:
    """Raise an error in what takes long or much memory."""

    def late(*_: Any) -> None:
        raise RuntimeError(f"it takes more than {MOST_SECONDS} seconds")

    before, limits = signal.signal(signal.SIGVTALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
