"""One operator or value of a plan in words: how it lies, what makes and reads it, what decided that, and what else it
could be for how much more."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoshard.propagate.record import Holder, Output
from autoshard.report.explained import explainer
from autoshard.report.explained_records import (
    ExplainedRecord,
    FollowedRecord,
    InsteadRecord,
    LiesRecord,
    MadeRecord,
    MovedRecord,
    ReadRecord,
)
from costmodel import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData

_STEP = "  "


def explain_name(planned: PlannedData, name: str) -> str:
    """How the operator or value of that name lies in a plan, as text.

    Raises:
        UnknownNameError: there is none; the message lists near names.
    """
    return explained_text(explainer(planned).of(name))


def location_explained(planned: PlannedData, name: str, place: Holder) -> ExplainedRecord:
    """What is known of a place of the program, which is called by that name.

    Args:
        place: a value of the working copy from which rules spread, or an output.
    """
    known = explainer(planned)
    if isinstance(place, Output):
        return known.of_output(name, place.index)
    origin = place.origin
    if origin is not None and origin in planned.plan.layouts:
        return known.of_values(name, [origin])
    values = known.names.get(getattr(origin, "name", None) or "", ())
    return known.of_values(name, values) if values else known.head(name)


def explained_text(one: ExplainedRecord) -> str:
    """The same in words, a line for each fact."""
    return "\n".join(_lines(one)) + "\n"


def wrapped(text: str, width: int) -> str:
    """Lines broken at blanks to a width, and what follows a break set in further than its line."""
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    lead = len(line) - len(line.lstrip())
    indent = " " * min(lead + 4, width // 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _lines(one: ExplainedRecord) -> Iterator[str]:
    yield f"in the plan by {one.mode} on mesh {one.mesh}:"
    if not one.values and not one.made:
        yield f"{_STEP}{one.name} is no value of its own: it was folded into what uses it, or nothing needs it"
    for lies in one.values:
        yield f"{_STEP}{_lies(lies)}"
    for made in one.made:
        yield from _made(made)
    for lies in one.values:
        if lies.why:
            yield f"{_STEP}an input of the program: {lies.why}"
            yield from _chain(lies.followed)
    yield from map(_read, one.read)
    if one.more_readers:
        yield f"{_STEP}and by {one.more_readers} more"


def _lies(one: LiesRecord) -> str:
    if one.held == one.type and not _has_axes(one.layout):
        return f"{one.name} lies whole on each device, {one.type}"
    return f"{one.name} lies as [{one.layout}]: a device holds {one.held}"


def _has_axes(layout: str) -> bool:
    """Whether a layout has anything but whole dims; that of a scalar is `()`."""
    return bool(layout.strip("()-, "))


def _made(one: MadeRecord) -> Iterator[str]:
    where = f"  [{one.source}]" if one.source is not None else ""
    yield f"{_STEP}made by {one.op} {one.operator} as {one.strategy}: {one.why}{where}"
    yield from _chain(one.followed)
    times = f"{one.times} x " if one.times > 1 else ""
    yield f"{_STEP}{_STEP}takes {times}{format_seconds(one.seconds)}, {one.share:.1%} of the step"
    yield from map(_instead, one.instead)


def _instead(one: InsteadRecord) -> str:
    more = "more" if one.more_seconds >= 0 else "less here, and more elsewhere"
    leaving = ", ".join(f"[{layout}]" for layout in one.leaves)
    words = f"{format_seconds(abs(one.more_seconds))} {more}"
    return f"{_STEP}{_STEP}instead {one.strategy} leaving {leaving}: {words} ({_parts(one)})"


def _parts(one: InsteadRecord) -> str:
    parts = (
        ("bringing operands", one.operands_seconds),
        ("bringing results", one.results_seconds),
        ("work", one.work_seconds),
    )
    return ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts if seconds)


def _chain(followed: tuple[FollowedRecord, ...]) -> Iterator[str]:
    return (f"{_STEP}{_STEP}{one.name}: {one.why}" for one in followed)


def _read(one: ReadRecord) -> str:
    moved = "" if one.moved is None else _moved(one.moved)
    if one.output is not None:
        return f"{_STEP}output {one.output} of the program{moved}"
    return f"{_STEP}read by {one.op} {one.operator} as {one.strategy}{moved}"


def _moved(one: MovedRecord) -> str:
    sentence = f", after a redistribution to [{one.to}]"
    if not one.steps:
        return sentence
    return f"{sentence}: {', '.join(one.steps)}, {format_bytes(one.bytes)} in {format_seconds(one.seconds)}"
