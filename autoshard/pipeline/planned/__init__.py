"""A pipeline on devices: the plan of each stage on its mesh, the programs of its pieces, and what goes between them."""

from autoshard.pipeline.planned.plan import PlannedPipeline, plan_pipeline

__all__ = ["PlannedPipeline", "plan_pipeline"]
