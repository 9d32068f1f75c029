"""Running a planned pipeline: every group of ranks does its actions in order and has what it is sent."""

from autoshard.pipeline.execute.session import PipelineSession, Ran

__all__ = ["PipelineSession", "Ran"]
