"""Plans with split experts on models of transformers: tokens go to their experts and back, and all equals torch."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

import autoshard as ash
from autoshard.ir.graph import PARAMETER
from autoshard.partition.verify import verify_program
from autoshard.util.errors import PlanError, ShapeError

pytestmark = pytest.mark.torch
BATCH, SEQUENCE, CLASSES = 8, 6, 40
SIZES = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 4, "vocab_size": CLASSES, "use_cache": False}
GROUPED = {**SIZES, "intermediate_size": 20, "num_key_value_heads": 2, "head_dim": 6}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 6, "v_head_dim": 6}
CHOICES = {"num_experts_per_tok": 2}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {**GROUPED, **CHOICES, "num_local_experts": 4}),
    "qwen3-moe": ("Qwen3Moe", {**GROUPED, **CHOICES, "num_experts": 8, "moe_intermediate_size": 20}),
    "gpt-oss": ("GptOss", {**GROUPED, **CHOICES, "num_local_experts": 8}),
    "deepseek-v3": ("DeepseekV3", {
        **SIZES, **LATENT, **CHOICES, "intermediate_size": 20, "num_key_value_heads": 4, "n_routed_experts": 8,
        "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20, "first_k_dense_replace": 0,
    }),
}  # fmt: skip
PLANS = {
    "mixtral": ("expert_parallel", "ep=8", "ep:(2)4, -, -"),
    "qwen3-moe": ("fsdp_ep", "dp=2 ep=4", "ep.dp, -, -"),
    "gpt-oss": ("expert_parallel(ep) + megatron(tp)", "ep=4 tp=2", "ep, -, tp"),
    "deepseek-v3": ("zero1_ep", "dp=2 ep=4", "ep, -, -"),
}


@cache
def built(name: str) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes)).train()


def words() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    ids = torch.tensor(np.random.default_rng(0).integers(0, CLASSES, (BATCH, SEQUENCE)))
    return {"input_ids": ids, "labels": ids}


def planned_step(name: str) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
    """A training step by the model's plan, whose experts are split, its inputs, and what torch makes of them."""
    from tests.frontends.torch_steps import OPTIMIZERS, torch_step

    net, (search, mesh, layout) = built(name), PLANS[name]
    wanted = torch_step(net, words())
    model = ash.from_torch(net, kwargs=words(), loss="loss", optimizer=OPTIMIZERS["sgd"][0], capacity_factor=inf)
    planned = ash.plan(model, mesh=mesh, search=search)
    verify_program(planned.program)
    lying = {value.name: str(planned.plan.layouts[value]) for value in planned.graph.inputs
             if planned.graph.role_of[value] == PARAMETER}  # fmt: skip
    assert lying["model.layers.0.mlp.experts.gate_up_proj"] == layout
    sent = Counter(
        one.step.kind for one in planned.program.collectives if one.of.rank == 4 and one.of.shape[0] == BATCH
    )
    assert sent.pop("all_to_all") == 4, "to the experts and back, forward and backward"
    assert set(sent) <= {"all_reduce"} and sum(sent.values()) <= ("tp" in mesh), "of rows of weights"
    state = {key: np.asarray(wanted[key]) for key in ("loss", *model.state())}
    return planned, [np.asarray(one) for one in model.example_arrays], state


def assert_step_equals_torch(planned: Any, inputs: list[np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """On virtual ranks or on those of MPI."""
    np.testing.assert_allclose(planned.run(*inputs), wanted.pop("loss"), rtol=1e-4)
    held = {one.name: np.asarray(one.data) for one in planned.traced.parameters.values()}
    assert wanted and wanted.keys() <= held.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(held[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_with_split_experts_equals_torch(name: str) -> None:
    assert_step_equals_torch(*planned_step(name))


def test_experts_without_numbers_have_room_for_equal_shares() -> None:
    torch = pytest.importorskip("torch")
    kind, sizes = MODELS["qwen3-moe"]
    import transformers

    with torch.device("meta"):
        net = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
        ids = torch.zeros((BATCH, SEQUENCE), dtype=torch.long)
    model = ash.from_torch(net, kwargs={"input_ids": ids})
    rows = [node.results[0].type.shape for node in model.traced.graph.nodes if node.op.name == "DispatchTokens"]
    assert rows == [(8, 12, 24)], "a quarter of 48 tokens"
    with pytest.raises(ShapeError, match="capacity_factor is 0.5; it is 1.0"):
        ash.from_torch(net, kwargs={"input_ids": ids}, capacity_factor=0.5)


def test_sorted_tokens_are_refused_with_the_way_out() -> None:
    model = ash.from_torch(built("qwen3-moe"), kwargs=words(), loss="loss")
    with pytest.raises(PlanError, match="if the model is imported with capacity_factor=inf"):
        ash.plan(model, mesh="ep=8", search="expert_parallel")
