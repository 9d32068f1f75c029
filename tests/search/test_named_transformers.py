"""Megatron's plans on models as people write them: heads fewer than ranks, latent spaces, experts, other residuals."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache

import numpy as np
import pytest

from autoshard import nn
from autoshard.api import plan
from autoshard.ir.graph import PARAMETER
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search.named.structure import Structure
from autoshard.trace.evaluate import evaluate

pytestmark = pytest.mark.torch
BATCH, SEQUENCE, CLASSES = 4, 12, 40
IDS = np.random.default_rng(0).integers(0, CLASSES, (BATCH, SEQUENCE))
SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": CLASSES}
DECODER = {**SIZES, "intermediate_size": 48, "use_cache": False, "head_dim": 8}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}

MODELS = {
    "llama, 2 of 4 heads": ("Llama", {**DECODER, "num_key_value_heads": 2}),
    "llama, 1 of 4 heads": ("Llama", {**DECODER, "num_key_value_heads": 1}),
    "gemma3": ("Gemma3", {**DECODER, "num_key_value_heads": 2}),
    "qwen3 moe": ("Qwen3Moe", {**DECODER, **MOE, "num_key_value_heads": 2, "num_experts": 4}),
    "gpt-oss": ("GptOss", {**DECODER, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek": (
        "DeepseekV3",
        {**SIZES, **MOE, **LATENT, "intermediate_size": 48, "use_cache": False, "num_key_value_heads": 4,
         "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0},
    ),
    "opt": (
        "OPT",
        {**SIZES, "ffn_dim": 48, "max_position_embeddings": 16, "word_embed_proj_dim": 32, "use_cache": False},
    ),
    "gpt-neox": ("GPTNeoX", {**SIZES, "intermediate_size": 48, "max_position_embeddings": 16, "use_cache": False}),
    "gpt2": ("GPT2", {"n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": CLASSES, "use_cache": False}),
    "bloom": ("Bloom", {"n_layer": 1, "hidden_size": 32, "n_head": 4, "vocab_size": CLASSES, "use_cache": False}),
}  # fmt: skip


@cache
def imported(name: str, training: bool):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from autoshard import from_torch

    kind, sizes = MODELS[name]
    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    config = {"Gemma3": "Gemma3TextConfig"}.get(kind, f"{kind}Config")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, f"{kind}{head}")(getattr(transformers, config)(**sizes))
        ids = torch.tensor(IDS)
        # Not Adam: it would scale gradients that are noise to the size of all others.
        how = {"loss": "loss", "optimizer": lambda params: nn.SGD(params, 0.1)} if training else {}
        return from_torch(model.train(training), kwargs={"input_ids": ids, "labels": ids}, **how)


def split_weights(planned) -> dict[str, str]:
    graph = planned.graph
    return {
        value.name.removeprefix("model.").removesuffix(".weight"): str(planned.plan.layouts[value])
        for value in graph.inputs
        if graph.role_of[value] == PARAMETER and planned.plan.layouts[value].used
    }


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gpt-neox", "llama, 1 of 4 heads")])
def test_megatron_with_split_sequences_runs_as_the_whole(name):
    planned = plan(imported(name, True), mesh="dp=2 tp=4", search="megatron_sp")
    verify_program(planned.program)
    feeds = planned.traced.inputs(IDS, IDS)
    outputs = Executor(planned.program, LocalComm(8))(*feeds)
    for ours, theirs in zip(outputs, evaluate(planned.graph, feeds), strict=True):
        # Gradients of keys' biases are noise around zero.
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)


def test_heads_fewer_than_ranks_lie_on_several():
    planned = plan(imported("llama, 2 of 4 heads", training=True), mesh="dp=2 tp=4", search="megatron")
    found = split_weights(planned)
    assert found["layers.0.self_attn.q_proj"] == "tp, -" and found["layers.0.self_attn.o_proj"] == "-, tp"
    assert found["layers.0.self_attn.k_proj"] == found["layers.0.self_attn.v_proj"] == "tp:(1)2, -"
    assert found["layers.0.mlp.up_proj"] == "tp, -" and found["layers.0.mlp.down_proj"] == "-, tp"
    forward = set(Structure(planned.graph).forward)
    layer = [one for one in planned.program.collectives if one.serves in forward and "layers" in one.serves.label]
    assert Counter((one.step.kind, str(one.step.groups)) for one in layer) == {("all_reduce", "tp"): 2}
    one_head = split_weights(plan(imported("llama, 1 of 4 heads", False), mesh="dp=2 tp=4", search="megatron"))
    assert "layers.0.self_attn.k_proj" not in one_head and one_head["layers.0.self_attn.q_proj"] == "tp, -"


def test_products_of_flattened_tokens_keep_to_the_tensor_axis():
    """GPT-2's products have batch and sequence in one dim: tokens are split along the batch then, not over data."""
    planned = plan(imported("gpt2", training=False), mesh="dp=2 tp=2", search="megatron_sp", passes=False)
    forward = [one for one in planned.program.collectives if one.of.elements == IDS.size * 32]
    kinds = Counter((one.step.kind, str(one.step.groups)) for one in forward)
    assert kinds == {("reduce_scatter", "tp"): 3, ("all_gather", "tp"): 3}


def test_latent_spaces_and_routers_stay_whole():
    found = split_weights(plan(imported("deepseek", training=False), mesh="dp=2 tp=4", search="megatron"))
    attention = {name.rpartition(".")[2]: text for name, text in found.items() if "self_attn" in name}
    assert attention == {"q_b_proj": "tp, -", "kv_b_proj": "tp, -", "o_proj": "-, tp"}
    experts = {name.rpartition("mlp.")[2]: text for name, text in found.items() if "mlp" in name}
    assert "gate" not in experts
    assert experts["shared_experts.up_proj"] == "tp, -" and experts["shared_experts.down_proj"] == "-, tp"


def test_heads_merged_with_the_batch_keep_their_pair():
    """Bloom reshapes to [batch * heads, ...], which no tensor axis splits: the products stay a pair."""
    found = split_weights(plan(imported("bloom", training=False), mesh="dp=2 tp=4", search="megatron"))
    assert found["transformer.h.0.self_attention.query_key_value"] == "tp, -"
    assert found["transformer.h.0.self_attention.dense"] == "-, tp"
    assert found["transformer.h.0.mlp.dense_4h_to_h"] == "-, tp"
