"""Cells that say into how many micro batches `Model` cuts the batch of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.trace.cell import Cell
from autoshard.util.checks import positive
from autoshard.util.errors import StageError, at
from autoshard.util.near import nearest
from autoshard.util.source import caller


class MicroBatched(Cell):
    """A network whose batch is cut into parts, done one after the other; its names stay as they are without it.

    What it returns are the numbers of the whole batch, and so are gradients and updates: where MindSpore adds up the
    losses of the micro batches, the loss here is that of the network without it.

    Raises:
        StageError: no cell, or a number of micro batches that is none.
    """

    def __init__(self, network: Cell, micro_size: int) -> None:
        super().__init__()
        self.source, name = caller(), type(self).__name__
        if not isinstance(network, Cell):
            raise StageError(f"{name}{at(self.source)}: network is {network!r}, which is no Cell")
        if positive(micro_size) is None:
            raise StageError(
                f"{name}{at(self.source)}: micro_size is {micro_size!r}; it must be a whole number of at least 1"
            )
        self.network, self.micro_size = network, micro_size

    def prefixes(self, label: str, part: object) -> bool:
        return label != "network"

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)


class GradAccumulationCell(MicroBatched):
    """`GradAccumulationCell(network, n)`: as `set_auto_parallel_context(grad_accumulation_step=n)`."""


class PipelineCell(MicroBatched):
    """A network in stages: its micro batches pass from group to group of ranks.

        stages = {"_backbone.layer1": 0, "_backbone.layer2": 1}
        net = PipelineCell(WithLossCell(network, loss_fn), 4, stage_config=stages)
        Model(net, optimizer=optimizer).train(2, data)

    Args:
        micro_size: how many, not fewer than there are stages.
        stage_config: of cells by their names, seen from `network`, the `pipeline_stage`.
        segment_config: and the `pipeline_segment`, where ranks run several.

    Raises:
        StageError: as MicroBatched; a name that no cell has.
    """

    def __init__(
        self,
        network: Cell,
        micro_size: int,
        stage_config: Mapping[str, int] | None = None,
        segment_config: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(network, micro_size)
        self._give("stage_config", stage_config or {}, "pipeline_stage")
        self._give("segment_config", segment_config or {}, "pipeline_segment")

    def _give(self, what: str, config: Mapping[str, int], label: str) -> None:
        if not isinstance(config, Mapping):
            raise StageError(f"PipelineCell{at(self.source)}: {what} is {config!r}; it is a dict from names to numbers")
        cells = {_plain(name): cell for name, cell in self.network.cells_and_names() if name}
        for name, number in config.items():
            cell = cells.get(_plain(str(name)))
            if cell is None:
                near = nearest(_plain(str(name)), cells)
                raise StageError(
                    f"PipelineCell{at(self.source)}: {what} names {name!r}, but no cell; the nearest are {near}"
                )
            setattr(cell, label, number)


def _plain(name: str) -> str:
    """A cell's name as both MindSpore's own cells (`_backbone.layer1`) and ours have it."""
    return ".".join(word.removeprefix("_") for word in name.split("."))
