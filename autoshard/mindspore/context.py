"""Settings of a run as in MindSpore's scripts: `set_context`, `set_auto_parallel_context`, and getters.

Two frozen values hold them, `Settings` and `ParallelSettings`; setting replaces the value. A field or value
that does not exist, or that MindSpore has and autoshard does not honour, is a ContextError. ENVIRONMENT lists
all variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from autoshard.layout.mesh import Mesh
from autoshard.mindspore.setting_checks import (
    check_config,
    check_count,
    check_fusion,
    check_hardware,
    check_memory,
    check_mesh,
    check_optimizer_config,
    check_path,
    check_pipeline_config,
    check_save_graphs,
    check_search,
    check_strategy_file,
    check_whole_number,
    one_of,
)
from autoshard.plan.data_layouts import DATA_PARALLEL, FULL_BATCH, DatasetStrategy, check_dataset_strategy
from autoshard.runtime.identity import identity
from autoshard.runtime.world import planned_by
from autoshard.util.errors import ContextError
from autoshard.util.near import did_you_mean

GRAPH_MODE, PYNATIVE_MODE = 0, 1

ENVIRONMENT: Mapping[str, str] = {
    "AUTOSHARD_SAVE_GRAPHS": "default of set_context(save_graphs=...): 0, 1, 2 or 3",
    "AUTOSHARD_SAVE_GRAPHS_PATH": "default of set_context(save_graphs_path=...)",
    "AUTOSHARD_HARDWARE": "default of set_auto_parallel_context(hardware=...), a preset of costmodel, or a file",
    "AUTOSHARD_CALIBRATION": "the file that the hardware `calibrated` stands for",
    "AUTOSHARD_DEBUG": "1 shows tracebacks of the command line, 4 every collective at run time",
    "AUTOSHARD_MPIEXEC": "the mpiexec that `autoshard run` uses; of Open MPI's, one on this machine listens everywhere",
    "AUTOSHARD_PROGRESS": "set by `autoshard run` for its ranks: the folder in which they note what they are doing",
    "AUTOSHARD_JOB": "a name that all processes of one job share and no other's, where RANK_ID or SLURM number them",
    "AUTOSHARD_JOIN_SECONDS": "how long such processes wait until all have come; 120 by default",
    "AUTOSHARD_LAUNCHED": "set by `autoshard run` for its ranks",
    "AUTOSHARD_RANKS": "set by `autoshard run` for its ranks: how many there are",
}
"""Every environment variable that autoshard reads, and what it means."""


class ParallelMode:
    """MindSpore's names of the parallel modes."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODES = (STAND_ALONE, DATA_PARALLEL, SEMI_AUTO_PARALLEL, AUTO_PARALLEL)


@dataclass(frozen=True)
class Settings:
    """What `set_context` sets.

    Attributes:
        mode: GRAPH_MODE or PYNATIVE_MODE; Model takes only the first.
        device_target: accepted for the sake of MindSpore's scripts; ranks always compute on the CPU.
        save_graphs: 0 none; from 1 on three .ir files per rank for each program that is trained.
        save_graphs_path: the folder of the rank_<r> folders.
        max_device_memory: bytes, or text such as "30GB": plans that need more on a device are refused. None: no limit.
    """

    mode: int = GRAPH_MODE
    device_target: str = "CPU"
    save_graphs: int = 0
    save_graphs_path: str = "."
    max_device_memory: int | None = None


@dataclass(frozen=True)
class ParallelSettings:
    """What `set_auto_parallel_context` sets.

    Attributes:
        parallel_mode: stand_alone (one device, strategies ignored), data_parallel (the batch split,
            parameters whole on each rank, strategies ignored), semi_auto_parallel (operators without a
            strategy run batch parallel) or auto_parallel (the search fills in what is missing).
        search_mode: any registered search; MindSpore's default. Only two modes have parameters, see
            `parallel.set_algo_parameters`.
        device_num: ranks of the plan; None means as many as were started.
        dataset_strategy: "data_parallel" (each rank feeds its own part of dim 0), "full_batch" (each rank
            feeds the whole batch), or per data input a tuple of parts or a Layout (each rank feeds its
            block). `full_batch=True` is MindSpore's older spelling.
        mesh: a Mesh or its text, instead of device_num.
        hardware: what prices are for: a preset of costmodel, "calibrated", or a FILE.json.
        gradients_mean: in data_parallel, whether gradients are the mean of the ranks' or their sum: those of the loss
            over each rank's own part (so that of a mean the sum is as many times the gradient as there are ranks). In
            the other modes gradients are those of the loss over the whole batch; True asks for reduction="mean".
        parameter_broadcast: true or not, ranks begin with the parameters of the first rank.
        strategy_ckpt_save_file: where the strategies of what is planned are written.
        strategy_ckpt_load_file: a file of strategies for operators that the model does not configure itself.
            `strategy_ckpt_config` names both as save_file and load_file.
        enable_parallel_optimizer: parameters that several ranks hold alike, and the optimizer's states, lie in parts on
            them, and are gathered before use (ZeRO).
        parallel_optimizer_config: parallel_optimizer_threshold, the least size in KB of what is cut (64);
            optimizer_weight_shard_size, into how many parts at most (-1: all); gradient_accumulation_shard, False only.
        comm_fusion: whether small collectives are joined: {"openstate": False} says no; {"allreduce": {"mode": "auto"}}
            and the like say yes, which is how it is without.
        grad_accumulation_step: into how many micro batches a step of training cuts its batch, done one after the other;
            gradients are added up before the update. Losses and updates are those of the whole batch. An operator that
            needs the whole batch at once (its statistics) is refused by name.
        pipeline_stages: into how many groups of equal size the devices are divided, in the order of ranks; strategies
            are for the devices of one group. With `mesh` the groups lie along its first axis. The network is in
            `nn.PipelineCell`, and its cells bear `pipeline_stage`; where none does, stages are made that cost alike.
        pipeline_config: pipeline_scheduler, "1f1b" (the default), "gpipe", "zero_bubble_v", or a name of
            `autoshard schedule`; pipeline_interleave, whether ranks run several segments (`cell.pipeline_segment`).
        pipeline_result_broadcast: true or not, every rank has the results of the last stage.
        global_rank: this process's rank, checked against the launcher's.
    """

    parallel_mode: str = ParallelMode.STAND_ALONE
    search_mode: str = "recursive_programming"
    device_num: int | None = None
    dataset_strategy: DatasetStrategy = DATA_PARALLEL
    mesh: Mesh | None = None
    hardware: str = "cpu"
    gradients_mean: bool = False
    global_rank: int | None = None
    parameter_broadcast: bool = False
    strategy_ckpt_save_file: str = ""
    strategy_ckpt_load_file: str = ""
    enable_parallel_optimizer: bool = False
    parallel_optimizer_config: Mapping[str, Any] | None = None
    comm_fusion: Mapping[str, Any] | None = None
    grad_accumulation_step: int = 1
    pipeline_stages: int = 1
    pipeline_config: Mapping[str, Any] | None = None
    pipeline_result_broadcast: bool = False

    @property
    def full_batch(self) -> bool:
        return self.dataset_strategy == FULL_BATCH


_NOT_HONOURED = {
    "set_context": (
        "device_id", "max_call_depth", "variable_memory_max_size",
        "mempool_block_size", "enable_graph_kernel", "graph_kernel_flags", "enable_reduce_precision",
        "precompile_only", "reserve_class_name_in_scope", "pynative_synchronize", "check_bprop",
        "enable_compile_cache", "compile_cache_path", "runtime_num_threads", "memory_optimize_level",
        "memory_offload", "ascend_config", "gpu_config", "jit_config", "deterministic", "env_config_path",
        "print_file_path", "inter_op_parallel_num", "disable_format_transform", "support_binary",
        "auto_tune_mode", "save_dump_path", "enable_dump", "enable_profiling", "grad_for_scalar",
        "jit_syntax_level",
    ),
    "set_auto_parallel_context": (
        "gradient_fp32_sync", "loss_repeated_mean", "enable_alltoall", "all_reduce_fusion_config",
        "group_ckpt_save_file", "auto_pipeline",
        "dump_local_norm", "auto_parallel_search_mode",
        "sharding_propagation", "communi_parallel_mode", "optimizer_weight_shard_size",
        "optimizer_weight_shard_aggregated_save",
    ),
}  # fmt: skip


def _check_rank(what: str, value: Any) -> int | None:
    if value is not None and value != launched_rank():
        raise ContextError(f"{what} is {value!r}, but this process is rank {launched_rank()}")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "mode": one_of(GRAPH_MODE, PYNATIVE_MODE),
    "device_target": one_of("CPU", "GPU", "Ascend"),
    "save_graphs": check_save_graphs,
    "save_graphs_path": check_path,
    "max_device_memory": check_memory,
    "parallel_mode": one_of(*ParallelMode.MODES),
    "search_mode": check_search,
    "device_num": check_count,
    "dataset_strategy": check_dataset_strategy,
    "mesh": check_mesh,
    "hardware": check_hardware,
    "gradients_mean": one_of(True, False),
    "parameter_broadcast": one_of(True, False),
    "strategy_ckpt_save_file": check_strategy_file,
    "strategy_ckpt_load_file": check_strategy_file,
    "enable_parallel_optimizer": one_of(True, False),
    "parallel_optimizer_config": check_optimizer_config,
    "comm_fusion": check_fusion,
    "grad_accumulation_step": check_whole_number,
    "pipeline_stages": check_whole_number,
    "pipeline_config": check_pipeline_config,
    "pipeline_result_broadcast": one_of(True, False),
    "global_rank": _check_rank,
}


def _checked(call: str, now: Any, changes: Mapping[str, Any]) -> Any:
    """`now` with the changes, each checked."""
    known = [one.name for one in fields(now)]
    for name in changes:
        if name in _NOT_HONOURED[call]:
            raise ContextError(
                f"{call}: MindSpore's {name!r} is not honoured here; leave it out. Fields are {', '.join(known)}"
            )
        if name not in known:
            meant = did_you_mean(name, known)
            raise ContextError(f"{call}: there is no field {name!r}{meant}; fields are {', '.join(known)}")
    return replace(now, **{name: _CHECKS[name](f"{call}: {name}", value) for name, value in changes.items()})


# -- the settings of this process ----------------------------------------------------------------------------


def _first_settings() -> Settings:
    level = os.environ.get("AUTOSHARD_SAVE_GRAPHS", "0")
    given = {
        "save_graphs": int(level) if level.isdecimal() else level,
        "save_graphs_path": os.environ.get("AUTOSHARD_SAVE_GRAPHS_PATH", "."),
    }
    return _checked("set_context", Settings(), given)


def _first_parallel() -> ParallelSettings:
    return _checked(
        "set_auto_parallel_context",
        ParallelSettings(),
        {"hardware": os.environ.get("AUTOSHARD_HARDWARE", "cpu")},
    )


_now: dict[str, Any] = {}


def settings() -> Settings:
    """The settings that `set_context` made."""
    if "settings" not in _now:
        _now["settings"] = _first_settings()
    return _now["settings"]


def parallel_settings() -> ParallelSettings:
    """The settings that `set_auto_parallel_context` made."""
    if "parallel" not in _now:
        _now["parallel"] = _first_parallel()
    return _now["parallel"]


def _devices() -> int:
    """The devices that these settings plan for; 0 if they name none."""
    parallel = parallel_settings()
    return parallel.mesh.devices if parallel.mesh is not None else parallel.device_num or 0


planned_by(_devices)


def set_context(**changes: Any) -> None:
    """Change fields of Settings.

    Raises:
        ContextError: no such field, or a value it cannot have.
    """
    _now["settings"] = _checked("set_context", settings(), changes)
    if changes.get("device_target", "CPU") != "CPU":
        _note_once(
            f"device_target {changes['device_target']!r} is accepted; ranks are processes that compute on the CPU"
        )


def get_context(attr_key: str) -> Any:
    """The value of one field of Settings."""
    return _field("get_context", settings(), attr_key)


def reset_context() -> None:
    """Back to the defaults (and the environment's)."""
    _now.pop("settings", None)


def set_auto_parallel_context(**changes: Any) -> None:
    """Change fields of ParallelSettings; `full_batch` is another spelling of `dataset_strategy`.

    Raises:
        ContextError: no such field, a value it cannot have, or two fields that contradict each other.
    """
    _now["parallel"] = changed_settings("set_auto_parallel_context", parallel_settings(), changes)


def changed_settings(what: str, now: ParallelSettings, changes: Mapping[str, Any]) -> ParallelSettings:
    """The settings with changes, each checked; `what` is said in errors. Raises as `set_auto_parallel_context`."""
    call, name = what, "set_auto_parallel_context"
    if "full_batch" in changes:
        changes = _spell_full_batch(call, dict(changes))
    if "strategy_ckpt_config" in changes:
        changes = _spell_strategy_files(call, dict(changes))
    new = _checked(name, now, changes)
    if new.mesh is not None and new.device_num not in (None, new.mesh.devices):
        raise ContextError(
            f"{call}: device_num is {new.device_num}, but mesh '{new.mesh}' has {new.mesh.devices} devices; "
            "give one of both"
        )
    check_stages(call, new)
    return new


def check_stages(call: str, parallel: ParallelSettings, devices: int | None = None) -> None:
    """That the devices can be divided into so many groups.

    Args:
        devices: how many there are; None: as the settings say, if they do.

    Raises:
        ContextError: they cannot.
    """
    stages, mesh = parallel.pipeline_stages, parallel.mesh
    known = devices or parallel.device_num
    if stages == 1 or parallel.parallel_mode == ParallelMode.STAND_ALONE:
        return
    if parallel.parallel_mode == ParallelMode.DATA_PARALLEL:
        raise ContextError(
            f"{call}: pipeline_stages is {stages}, but in parallel_mode 'data_parallel' there are no stages; take "
            "'semi_auto_parallel' or 'auto_parallel'"
        )
    if mesh is not None and mesh.axes[0][1] != stages:
        raise ContextError(
            f"{call}: pipeline_stages is {stages}, but the first axis of mesh '{mesh}', along which stages lie, has "
            f"size {mesh.axes[0][1]}"
        )
    if known and known % stages:
        raise ContextError(
            f"{call}: pipeline_stages is {stages}, which does not divide the {known} devices into equal groups"
        )


def _spell_full_batch(call: str, changes: dict[str, Any]) -> dict[str, Any]:
    full = one_of(True, False)(f"{call}: full_batch", changes.pop("full_batch"))
    strategy = FULL_BATCH if full else DATA_PARALLEL
    if full and changes.get("dataset_strategy", strategy) != strategy:
        raise ContextError(
            f"{call}: full_batch=True contradicts dataset_strategy={changes['dataset_strategy']!r}; give "
            "dataset_strategy alone"
        )
    return {"dataset_strategy": strategy, **changes}


def _spell_strategy_files(call: str, changes: dict[str, Any]) -> dict[str, Any]:
    known = ("load_file", "save_file", "only_trainable_params")
    given = check_config(*known)(f"{call}: strategy_ckpt_config", changes.pop("strategy_ckpt_config")) or {}
    files = {f"strategy_ckpt_{name}": given[name] for name in known[:2] if given.get(name)}
    return {**files, **changes}


def get_auto_parallel_context(attr_key: str) -> Any:
    """The value of one field of ParallelSettings, or of `full_batch`."""
    if attr_key == "full_batch":
        return parallel_settings().full_batch
    return _field("get_auto_parallel_context", parallel_settings(), attr_key)


def reset_auto_parallel_context() -> None:
    """Back to the defaults (and the environment's)."""
    _now.pop("parallel", None)


def _field(call: str, now: Any, name: str) -> Any:
    known = [one.name for one in fields(now)]
    if name not in known:
        raise ContextError(f"{call}: there is no field {name!r}; fields are {', '.join(known)}")
    return getattr(now, name)


# -- who this process is -------------------------------------------------------------------------------------


def launched_rank() -> int:
    """The rank that a launcher gave this process, without starting MPI; 0 if there is no launcher."""
    own = identity()
    return own.rank if own is not None else 0


_noted: set[str] = set()


def _note_once(text: str) -> None:
    """A line on the first rank's stderr, the first time it is said."""
    if text in _noted or launched_rank() != 0:
        return
    _noted.add(text)
    print(f"autoshard: {text}", file=sys.stderr)
