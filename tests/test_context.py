"""Settings: what they accept, what they refuse and in which words, and where their defaults come from."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard as ash
from autoshard import communication
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.context import ENVIRONMENT, parallel_settings, settings
from autoshard.util.errors import ContextError, MemoryLimitError


def test_defaults():
    assert (settings().mode, settings().save_graphs, settings().save_graphs_path) == (ash.GRAPH_MODE, 0, ".")
    assert parallel_settings().parallel_mode == "stand_alone"
    assert parallel_settings().search_mode == "recursive_programming"
    assert ash.get_auto_parallel_context("dataset_strategy") == "data_parallel"
    assert ash.get_auto_parallel_context("full_batch") is False


def test_set_and_get_and_reset(tmp_path):
    ash.set_context(mode=ash.PYNATIVE_MODE, save_graphs=True, save_graphs_path=tmp_path)
    assert ash.get_context("mode") == ash.PYNATIVE_MODE
    assert ash.get_context("save_graphs") == 2
    assert ash.get_context("save_graphs_path") == str(tmp_path)
    ash.reset_context()
    assert ash.get_context("save_graphs") == 0

    ash.set_auto_parallel_context(parallel_mode="semi_auto_parallel", mesh="dp=2 tp=3", hardware="h100")
    ash.set_auto_parallel_context(full_batch=True)
    now = parallel_settings()
    assert (now.parallel_mode, now.mesh, now.hardware) == ("semi_auto_parallel", Mesh(dp=2, tp=3), "h100")
    assert now.full_batch
    assert communication.get_group_size() == 6
    ash.reset_auto_parallel_context()
    assert communication.get_group_size() == 1


SEMI = {"parallel_mode": "semi_auto_parallel"}


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"device_nums": 8},
            "no field 'device_nums'; did you mean 'device_num'.*; fields are parallel_mode, search",
        ),
        ({"auto_pipeline": True}, "MindSpore's 'auto_pipeline' is not honoured"),
        ({"pipeline_stages": 3, "device_num": 4, **SEMI}, "pipeline_stages is 3, which does not divide the 4 devices"),
        ({"pipeline_config": {"pipeline_interleave": 1}}, "pipeline_interleave is 1; it can be True, False"),
        (
            {"parallel_mode": "hybrid_parallel"},
            "'hybrid_parallel'; did you mean .*; it can be 'stand_alone'",
        ),
        (
            {"parallel_mode": "semi_auto"},
            "'semi_auto'; did you mean 'semi_auto_parallel'.*; it can be",
        ),
        (
            {"search_mode": "annealing"},
            "search_mode is 'annealing'; it can be 'auto', 'batch'",
        ),
        ({"device_num": 0}, "device_num is 0; it must be a whole number of at least 1"),
        ({"device_num": True}, "device_num is True"),
        ({"grad_accumulation_step": 0}, "grad_accumulation_step is 0; it must be a whole number of at least 1"),
        ({"mesh": "dp=2 dp=4"}, "mesh is 'dp=2 dp=4'"),
        ({"mesh": 8}, "mesh is 8; it must be a Mesh or its text"),
        ({"mesh": "dp=2 tp=4", "device_num": 6}, "device_num is 6, but mesh 'dp=2 tp=4' has 8 devices"),
        ({"full_batch": 1}, "full_batch is 1; it can be True, False"),
        ({"full_batch": True, "dataset_strategy": "data_parallel"}, "full_batch=True contradicts"),
        ({"dataset_strategy": "half"}, "dataset_strategy is 'half'; it can be 'full_batch', 'data_parallel'"),
        ({"dataset_strategy": ((2, 0),)}, "has 0 parts in \\(2, 0\\)"),
        ({"gradients_mean": 1}, "gradients_mean is 1; it can be True, False"),
        ({"strategy_ckpt_load_file": 3}, "it must be the path of a file of strategies"),
        ({"strategy_ckpt_config": {"file": "a"}}, "it is a dict with load_file, save_file, only_trainable_params"),
        ({"parallel_optimizer_config": {"parallel_optimizer_threshold": -1}}, "is KB, at least 0"),
        ({"parallel_optimizer_config": {"gradient_accumulation_shard": True}}, "are not offered"),
        ({"comm_fusion": {"allreduce": {"mode": "size", "config": 32}}}, "only {'mode': 'auto', 'config': None} is"),
        ({"global_rank": 3}, "global_rank is 3, but this process is rank 0"),
        ({"hardware": "abacus"}, "hardware is 'abacus'"),
    ],
)
def test_parallel_refusals(changes, words):
    before = parallel_settings()
    with pytest.raises(ContextError, match=words):
        ash.set_auto_parallel_context(**changes)
    assert parallel_settings() is before


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"mode": 2}, "mode is 2; it can be 0, 1"),
        ({"device_id": 3}, "MindSpore's 'device_id' is not honoured"),
        ({"save_graph": 2}, "no field 'save_graph'"),
        ({"save_graphs": 4}, "save_graphs is 4; it can be 0, 1, 2, 3"),
        ({"save_graphs_path": 4}, "must be the path of a folder"),
        ({"device_target": "TPU"}, "device_target is 'TPU'"),
    ],
)
def test_refusals(changes, words):
    with pytest.raises(ContextError, match=words):
        ash.set_context(**changes)


def test_unknown_field_asked():
    with pytest.raises(ContextError, match="get_context: there is no field 'speed'"):
        ash.get_context("speed")
    with pytest.raises(ContextError, match="get_auto_parallel_context: there is no field 'mode'"):
        ash.get_auto_parallel_context("mode")


def test_device_target_is_noted_once(capsys):
    from autoshard import context

    context._noted.clear()
    ash.set_context(device_target="Ascend")
    ash.set_context(device_target="Ascend")
    assert capsys.readouterr().err.count("device_target 'Ascend' is accepted") == 1


def test_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("AUTOSHARD_SAVE_GRAPHS", "3")
    monkeypatch.setenv("AUTOSHARD_SAVE_GRAPHS_PATH", "elsewhere")
    monkeypatch.setenv("AUTOSHARD_HARDWARE", "h100")
    ash.reset_context()
    ash.reset_auto_parallel_context()
    assert (settings().save_graphs, settings().save_graphs_path) == (3, "elsewhere")
    assert parallel_settings().hardware == "h100"
    monkeypatch.setenv("AUTOSHARD_SAVE_GRAPHS", "many")
    ash.reset_context()
    with pytest.raises(ContextError, match="save_graphs is 'many'"):
        settings()


def test_every_variable_that_is_read_is_described():
    import re
    from pathlib import Path

    sources = Path(ash.__file__).parent.rglob("*.py")
    read = {name for source in sources for name in re.findall(r"AUTOSHARD_[A-Z_]+", source.read_text())}
    assert read == set(ENVIRONMENT)


def test_rank_and_size_of_one_process():
    communication.init()
    ash.set_auto_parallel_context(device_num=10, global_rank=0)
    assert (communication.get_rank(), communication.get_group_size()) == (0, 10)
    communication.release()


def test_a_limit_of_device_memory_is_kept():
    assert ash.get_context("max_device_memory") is None
    ash.set_context(max_device_memory="30GB")
    assert ash.get_context("max_device_memory") == 30 * 10**9
    network, x = ash.nn.Dense(12, 8), np.ones((4, 12), np.float32)
    assert ash.Model(network).predict(x).shape == (4, 8)
    ash.set_context(max_device_memory="1 KiB")
    with pytest.raises(MemoryLimitError, match=r"over the memory limit of 1 KiB \(1024 B\)"):
        ash.Model(network).predict(x)
    with pytest.raises(ContextError, match="max_device_memory: cannot read 'plenty' as a size"):
        ash.set_context(max_device_memory="plenty")
