"""`STAGE_FORMS`: the forms of a plan in stages, by name. A row of a table is all that a new form needs here.

The function of a row imports what only it needs when it is called.
"""

from __future__ import annotations

from autoshard.exporters.export import PLAN_FORMS
from autoshard.exporters.forms import ExportForms
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.schedules import csv_text


def _schedule(planned: PipelineData) -> str:
    return csv_text(planned.schedule)


STAGE_FORMS: ExportForms[PipelineData] = ExportForms(
    "a plan in stages",
    texts={
        "schedule": ("who does what when, as the CSV that torch.distributed.pipelining reads", _schedule),
    },
    files={},
    folders={},
    elsewhere=PLAN_FORMS.names,
)
"""The forms of a plan in stages: the door of `PlannedPipeline.export` and of the command."""
