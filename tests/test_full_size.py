"""Models of full size, here small: what their graphs keep and make again, and how plans are judged."""

from __future__ import annotations

import pytest
import torch

import autoshard as ash
from autoshard import optim
from autoshard.ir.graph import DATA
from benchmarks.full_models import MODELS, FullModel, language_model, training_graph
from benchmarks.full_size import arithmetic, judged
from costmodel import preset

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 56,
}  # fmt: skip


@pytest.fixture(scope="module")
def step():
    model = FullModel(language_model("Llama", length=16, **SIZES), 1)
    module, inputs = model.build(6)
    assert all(one.device.type == "meta" and one.dtype == torch.float32 for one in module.parameters())
    imported = ash.from_torch(module, (), inputs, loss="loss", optimizer=lambda params: optim.Adam(params, 1e-3))
    return training_graph(model, imported)


def test_layers_are_made_again_but_for_what_enters_them(step):
    again = {node.label.removesuffix(".again") for node in step.graph.nodes if node.label.endswith(".again")}
    assert any(label.endswith("q_proj.matmul") for label in again)
    assert any(label.endswith("q_proj.parametrizations.weight.0.cast") for label in again)
    assert not any(label.endswith(("layers.0.add", "layers.1.add_1", "lm_head.matmul")) for label in again)


def test_products_are_in_bf16_and_states_in_f32(step):
    products = [node for node in step.graph.nodes if node.op.name == "MatMul"]
    assert products and all(node.result_types[0].dtype.name == "bf16" for node in products)
    held = [value for value in step.graph.inputs if step.graph.role_of[value] != DATA and value.type.rank]
    assert all(value.type.dtype.name == "f32" for value in held)


def test_arithmetic_counts_parameters_three_times(step):
    parameters = sum(one.type.elements for one in step.graph.inputs if step.graph.role_of[one] == "parameter")
    found = arithmetic(step.graph, 4, "h100")
    assert found["bytes_in_parts"] == pytest.approx(12 * parameters / 4, rel=0.01)
    assert 0 < found["product_seconds"] * 4 * preset("h100").device.peak("bf16") < 1e12


@pytest.mark.parametrize(("hand", "met"), [((2.0, 50), True), ((0.5, 50), False), ((0.5, 500), True)])
def test_a_plan_is_held_against_hand_plans_that_fit(hand, met):
    plans = [{"seconds": 1.0, "bytes": 90}, {"seconds": hand[0], "bytes": hand[1]}, {"refused": "it does not fit"}]
    row = {"plans": plans, "limit": 100, "cpu": 61.0}
    assert judged(row) == {"fits": True, "fastest": met, "in time": False}


def test_full_sizes_are_those_of_the_models():
    assert list(MODELS) == ["llama-3-8b", "llama-3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "vit-h"]
    module, inputs = MODELS["vit-h"].build(4)
    assert sum(one.numel() for one in module.parameters()) == pytest.approx(632e6, rel=0.01)
    assert inputs["pixel_values"].shape == (4, 3, 224, 224)
