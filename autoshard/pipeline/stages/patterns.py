"""Stages by names: `{"model.layers.{0..15}.*": 0, "model.layers.{16..31}.*": 1}`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from autoshard.util.errors import StageError, UnknownNameError, shortened

_RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}")
_MOST = 65536


def stages_by_name(given: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """The stage of each name that a pattern means; of several patterns the last one counts.

    `*` stands for any part of a name without dots, `**` for any part at all, `{0..15}` for each of these numbers. What
    is inside of a module that is meant is meant, too.

    Raises:
        StageError: no dict from patterns to numbers from 0 on without gaps.
        UnknownNameError: a pattern that matches nothing.
    """
    _check(given)
    known, found = list(dict.fromkeys(names)), {}
    for pattern, stage in given.items():
        form = _compiled(pattern)
        meant = [name for name in known if form.fullmatch(name)]
        if not meant:
            near = difflib.get_close_matches(pattern, known, 3, 0.4) or known[:3]
            raise UnknownNameError(
                f"stages: pattern {pattern!r} matches no operator or parameter; the nearest names are {', '.join(near)}"
            )
        found.update(dict.fromkeys(meant, stage))
    missing = next(stage for stage in range(len(given) + 1) if stage not in given.values())
    if missing <= max(given.values()):
        raise StageError(f"stages: nothing is given to stage {missing}, but to stage {max(given.values())}")
    return found


def _check(given: Mapping[str, int]) -> None:
    if not isinstance(given, Mapping) or not given:
        raise StageError(
            f"stages is {shortened(repr(given), 80)}; give a dict from patterns of names to numbers of stages, such as "
            "{'model.layers.{0..15}.*': 0, 'model.layers.{16..31}.*': 1}"
        )
    for pattern, stage in given.items():
        if not isinstance(pattern, str):
            raise StageError(f"stages: {pattern!r} is no pattern of names, such as 'model.layers.{{0..15}}.*'")
        if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage < _MOST:
            raise StageError(f"stages: {pattern!r} is given to stage {stage!r}; stages are numbered 0, 1, 2, ...")


def _compiled(pattern: str) -> re.Pattern[str]:
    meanings = {"**": ".*", "*": "[^.]*"}
    parts = re.split(r"(\*\*|\*|\{\d{1,6}\.\.\d{1,6}\})", pattern)
    text = "".join(meanings.get(part) or _numbers(part) or re.escape(part) for part in parts)
    return re.compile(text + r"(\..*)?")


def _numbers(part: str) -> str | None:
    found = _RANGE.fullmatch(part)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + _MOST:
        raise StageError(f"stages: {part} has no numbers, or too many; write {{0..15}}")
    return f"(?:{'|'.join(map(str, range(first, last + 1)))})"
