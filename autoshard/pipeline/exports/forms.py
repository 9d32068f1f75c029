"""`STAGE_FORMS`: the forms of a plan in stages, by name. A row of a table is all that a new form needs here.

The function of a row imports what only it needs when it is called.
"""

from __future__ import annotations

from autoshard.exporters.export import PLAN_FORMS
from autoshard.exporters.forms import ExportForms
from autoshard.pipeline.exports.mindspore_stages import save_strategies, stage_lines
from autoshard.pipeline.exports.stages_file import stages_data
from autoshard.pipeline.exports.torch_pipelining import save_torch_pipelining
from autoshard.pipeline.exports.torch_stages import save_torch_stages
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.schedules import csv_text


def _schedule(planned: PipelineData) -> str:
    return csv_text(planned.schedule)


def _jax_stages(planned: PipelineData) -> str:
    from autoshard.pipeline.exports.jax_stages import jax_stages_code

    return jax_stages_code(planned)


def _mpmd(planned: PipelineData) -> str:
    from autoshard.engines.extras import need

    need("jax", "exporting a plan in stages as a module of MPMD")
    from autoshard.pipeline.exports.mpmd import mpmd_module

    return mpmd_module(planned)


STAGE_FORMS: ExportForms[PipelineData] = ExportForms(
    "a plan in stages",
    texts={
        "json": ("the whole plan, which `plan_pipeline(..., search=FILE.json)` takes up again", stages_data),
        "shard": ("MindSpore's lines: stages of cells, shard(...), micro batches and schedule", stage_lines),
        "schedule": ("who does what when, as the CSV that torch.distributed.pipelining reads", _schedule),
        "jax-stages": (
            "functions of each stage and what plays them, as a Python module of JAX alone",
            _jax_stages,
        ),
        "mpmd": ("the module of Shardy's MPMD dialect: fragments in the schedule's order, transfers, shardings", _mpmd),
    },
    files={},
    folders={
        "mindspore": ("a folder of MindSpore's strategy checkpoints, one for each stage, as JSON", save_strategies),
        "torch-stages": (
            "a folder of Python modules, one for each stage, which torchrun runs with torch alone",
            save_torch_stages,
        ),
        "torch-pipelining": (
            "a folder of modules, one for each stage, which torch.distributed.pipelining runs",
            save_torch_pipelining,
        ),
    },
    elsewhere=PLAN_FORMS.names,
    hint=" yet",
)
"""The forms of a plan in stages: the door of `PlannedPipeline.export` and of the command."""
