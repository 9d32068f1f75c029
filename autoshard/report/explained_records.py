"""What is told of an operator or value of a plan, as Records: `explained.Explainer` fills them."""

from __future__ import annotations

from costmodel.json_door import Natural, Positive, Record


class FollowedRecord(Record, frozen=True):
    """An operator or input that a decision followed from, and why that is as it is."""

    name: str
    why: str


class LiesRecord(Record, frozen=True, kw_only=True):
    """A value: its layout, and what a device holds of it; of an input why that is so."""

    name: str
    type: str
    layout: str
    held: str
    why: str = ""
    followed: tuple[FollowedRecord, ...] = ()


class InsteadRecord(Record, frozen=True):
    """Another strategy: how it leaves results, and what it costs with all else as it is, and more than the chosen."""

    strategy: str
    leaves: tuple[str, ...]
    more_seconds: float
    operands_seconds: float
    results_seconds: float
    work_seconds: float


class MadeRecord(Record, frozen=True, kw_only=True):
    """The operator that makes a value; it runs `times` times a step, each of `seconds`."""

    operator: str
    op: str
    strategy: str
    why: str
    followed: tuple[FollowedRecord, ...]
    source: str | None
    seconds: float
    times: Positive
    share: float
    instead: tuple[InsteadRecord, ...]


class MovedRecord(Record, frozen=True):
    """A redistribution: to which layout, by which collectives, the bytes that a device sends, the seconds."""

    to: str
    steps: tuple[str, ...] = ()
    bytes: float = 0.0
    seconds: float = 0.0


class ReadRecord(Record, frozen=True, kw_only=True):
    """An operator that reads a value, or an output of the program that is one."""

    value: str
    operator: str = ""
    op: str = ""
    strategy: str = ""
    output: Natural | None = None
    moved: MovedRecord | None = None


class ExplainedRecord(Record, frozen=True, kw_only=True):
    """A name of a plan: the values that it stands for, what makes them and what reads them."""

    name: str
    mode: str
    mesh: str
    values: tuple[LiesRecord, ...] = ()
    made: tuple[MadeRecord, ...] = ()
    read: tuple[ReadRecord, ...] = ()
    more_readers: Natural = 0


class CrossingRecord(Record, frozen=True, kw_only=True):
    """A value on its way from the devices of a stage to those of another, for each micro batch or once in a step."""

    name: str
    to: Natural
    leaves: str
    arrives: str
    bytes: Natural
    seconds: float
    repeated: bool


class StageExplainedRecord(Record, frozen=True):
    """A name in a stage, which a group of devices runs, and where it is sent from there."""

    stage: Natural
    group: Natural
    plan: ExplainedRecord
    sent: tuple[CrossingRecord, ...] = ()
