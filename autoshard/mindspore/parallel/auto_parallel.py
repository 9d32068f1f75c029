"""AutoParallel: a network together with how it is split, instead of `set_auto_parallel_context`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.mindspore.context import ParallelSettings, changed_settings, parallel_settings
from autoshard.trace.cell import Cell
from autoshard.util.errors import ContextError

_MODES = {
    "semi_auto": {"parallel_mode": "semi_auto_parallel"},
    "sharding_propagation": {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"},
    "recursive_programming": {"parallel_mode": "auto_parallel", "search_mode": "recursive_programming"},
}


class AutoParallel(Cell):
    """A network that `Model` splits as said here; parameters keep the network's names.

        net = AutoParallel(network, parallel_mode="sharding_propagation")
        net.dataset_strategy("full_batch")
        net.hsdp()
        Model(net, loss, optimizer).train(3, data)

    Args:
        parallel_mode: "semi_auto", "sharding_propagation" or "recursive_programming".

    Raises:
        ContextError: no cell, or another mode.
    """

    def __init__(self, network: Cell, parallel_mode: str = "semi_auto") -> None:
        super().__init__()
        if not isinstance(network, Cell):
            raise ContextError(f"AutoParallel: network is {network!r}, which is no Cell")
        if parallel_mode not in _MODES:
            raise ContextError(f"AutoParallel: parallel_mode is {parallel_mode!r}; it is one of {', '.join(_MODES)}")
        self.network = network
        self._changes: dict[str, Any] = dict(_MODES[parallel_mode])
        self._known: tuple[ParallelSettings, ParallelSettings] | None = None
        self.settings  # noqa: B018  (a search mode that does not exist is said here)

    def prefixes(self, label: str, part: object) -> bool:
        return False

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)

    @property
    def settings(self) -> ParallelSettings:
        """The settings of the context with those of this network in their place."""
        base = parallel_settings()
        if self._known is None or self._known[0] is not base:
            self._known = base, changed_settings("AutoParallel", base, self._changes)
        return self._known[1]

    def _change(self, **changes: Any) -> None:
        before = dict(self._changes)
        self._changes.update(changes)
        self._known = None
        try:
            self.settings  # noqa: B018
        except ContextError:
            self._changes = before
            raise

    def dataset_strategy(self, config: Any) -> None:
        """How data lies: "full_batch", "data_parallel", or a tuple per data input."""
        self._change(dataset_strategy=config)

    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Split parameters that ranks hold alike, and the optimizer's states, between these ranks.

        Args:
            shard_size: into how many parts at most; -1: all.
            threshold: KB below which a parameter stays whole.
            optimizer_level: "level1" or "level3", which are the same here: gathered where used, and let go.
        """
        config = {
            "optimizer_weight_shard_size": shard_size,
            "parallel_optimizer_threshold": threshold,
            "optimizer_level": optimizer_level,
        }
        self._change(enable_parallel_optimizer=True, parallel_optimizer_config=config)

    def comm_fusion(self, config: Mapping[str, Any]) -> None:
        """Whether small collectives are joined, as in `set_auto_parallel_context(comm_fusion=...)`."""
        self._change(comm_fusion=config)

    def pipeline(
        self, stages: int = 1, output_broadcast: bool = False, interleave: bool = False, scheduler: str = "1f1b"
    ) -> None:
        """Divide the devices into so many groups, as `pipeline_stages` and `pipeline_config` of the context do."""
        config = {"pipeline_interleave": interleave, "pipeline_scheduler": scheduler}
        self._change(pipeline_stages=stages, pipeline_config=config, pipeline_result_broadcast=output_broadcast)

    def enable_gradients_mean(self) -> None:
        """Ask for gradients of a mean: the loss has reduction="mean"."""
        self._change(gradients_mean=True)

    def save_param_strategy_file(self, file_path: str) -> None:
        """Write the strategies of what is planned to a file."""
        self._change(strategy_ckpt_save_file=file_path)

    def load_param_strategy_file(self, file_path: str) -> None:
        """Take strategies from such a file."""
        self._change(strategy_ckpt_load_file=file_path)

    save_operator_strategy_file, load_operator_strategy_file = save_param_strategy_file, load_param_strategy_file

    def no_init_parameters_in_compile(self) -> None:
        """Nothing to switch: initial values are always made when they are first asked for."""
