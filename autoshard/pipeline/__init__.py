"""Training steps cut in time and in space: `schedules` says who does what and when, `stages` what there is to do,
`transfers` what goes between their devices, `planned` how each stage lies on its own, `execute` runs it all."""

from autoshard.pipeline.in_any_form import plan_auto
from autoshard.pipeline.planning import PlannedPipeline, plan_pipeline
from autoshard.pipeline.virtual import run_stages

__all__ = ["PlannedPipeline", "plan_auto", "plan_pipeline", "run_stages"]
