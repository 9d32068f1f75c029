"""A training step cut in space: stages with graphs of their own for forward and backward, and values between them."""

from autoshard.pipeline.stages.cut import Piece, Pipeline, Stage, cut_stages, stages_of_cells
from autoshard.pipeline.stages.run import run_stages

__all__ = ["Piece", "Pipeline", "Stage", "cut_stages", "run_stages", "stages_of_cells"]
