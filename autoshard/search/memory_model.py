"""The memory of a problem's plans as terms that depend on choices: what searches under a limit go by."""

from __future__ import annotations

from autoshard.cost.memory import MemoryModel, ModelBuilder, Part, result_part
from autoshard.ir.graph import Node
from autoshard.search.problem import Problem


def memory_model(problem: Problem) -> MemoryModel:
    """The terms of a problem: a plan's peak is the largest row under the plan's choices."""

    def left(node: Node, i: int) -> Part:
        annotation = problem.annotations.get(node)
        if annotation is None or annotation.out_strategy is None:
            return result_part(node, i)
        return Part(node, lambda strategy: problem.left(node, strategy)[i], ("left", node, i))

    pinned = {node for node, one in problem.annotations.items() if one.out_strategy is not None}
    return ModelBuilder(problem.graph, left, None, pinned).build()
