"""One operator or value of a plan in stages: how it lies in each stage that has it, and how it is sent to others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.report.explain_plan import explained_text
from autoshard.report.explained import explainer
from autoshard.report.explained_records import CrossingRecord, StageExplainedRecord
from autoshard.util.errors import UnknownNameError
from costmodel import format_bytes, format_seconds

MICRO = ".micro"
"""The end of names of what is a value of one micro batch."""


def explained_stages(planned: PipelineData, name: str) -> tuple[StageExplainedRecord, ...]:
    """What is known of an operator or value in each stage that has it.

    Args:
        name: of it; of a value of one micro batch without the ending `.micro`, too.

    Raises:
        UnknownNameError: no stage has it; the message lists near names.
    """
    known = [explainer(planned.stage_planned(number)) for number in range(planned.stages)]
    found = []
    for stage, one in enumerate(known):
        names = [each for each in (name, f"{name}{MICRO}") if each in one.names]
        if names:
            group = planned.schedule.ranks_of_stages[stage]
            found.append(StageExplainedRecord(stage, group, one.of(names[0]), tuple(_sent(planned, stage, names))))
    if not found:
        names = dict.fromkeys(each for one in known for each in one.names)
        near = difflib.get_close_matches(name, names, n=6, cutoff=0.5)
        some = f"did you mean {', '.join(near)}?" if near else f"they have {len(names)} names"
        raise UnknownNameError(f"no stage of {planned.graph.name} has an operator or value named {name!r}; {some}")
    return tuple(found)


def _sent(planned: PipelineData, stage: int, names: list[str]) -> Iterator[CrossingRecord]:
    price = PipelinePrice(planned)
    for route in price.crossing:
        if route.source[0] == stage and route.value.name in names:
            yield CrossingRecord(
                name=route.value.name,
                to=route.stage,
                leaves=str(route.before.layout),
                arrives=str(route.after.layout),
                bytes=route.value.type.nbytes,
                seconds=price.moving(route),
                repeated=route.is_repeated,
            )


def stages_text(found: tuple[StageExplainedRecord, ...]) -> str:
    """The same in words."""
    return "".join(line for one in found for line in _lines(one))


def _lines(one: StageExplainedRecord) -> Iterator[str]:
    yield f"stage {one.stage}, on group {one.group}, for one micro batch:\n"
    yield explained_text(one.plan)
    for sent in one.sent:
        often = "for each micro batch" if sent.repeated else "once in a step"
        yield (
            f"  sent to stage {sent.to} {often}: leaves as [{sent.leaves}], arrives as [{sent.arrives}]; "
            f"{format_bytes(sent.bytes)} in all, {format_seconds(sent.seconds)}\n"
        )
