"""A training step cut in space: stages with graphs of their own for forward and backward, and values between them."""

from typing import Any

from autoshard.pipeline.stages.cut import Pipeline, Stage, StagePiece, cut_stages
from autoshard.trace.cell import stages_of_cells
from autoshard.util.moved import former

__all__ = ["Pipeline", "Stage", "StagePiece", "cut_stages", "stages_of_cells"]


def __getattr__(name: str) -> Any:
    return former(__name__, name)
