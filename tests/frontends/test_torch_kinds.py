"""Models of many kinds: each is imported for training, and a step changes everything as a step of torch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from tests.frontends.torch_kinds import KINDS
from tests.frontends.torch_steps import check_step

pytestmark = pytest.mark.torch

SIZES = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 36, "vocab_size": 40}
GROUPED = {"num_key_value_heads": 2}
NARROW = {"head_dim": 6, "sliding_window": 3}
# Language models of the package transformers, with what their configurations need besides sizes.
LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "Phi3": ("ForCausalLM", {**GROUPED, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    "Mistral": ("ForCausalLM", {**GROUPED, "sliding_window": 3}),
    "Gemma2": ("ForCausalLM", {**GROUPED, **NARROW}),
    "Qwen3": ("ForCausalLM", {**GROUPED, "head_dim": 6}),
    "GPTNeoX": ("ForCausalLM", {}),
    "Falcon": ("ForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "StableLm": ("ForCausalLM", GROUPED),
    "GptOss": ("ForCausalLM", {**GROUPED, **NARROW, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "Mamba": ("ForCausalLM", {"state_size": 4}),
    "Bert": ("ForMaskedLM", {}),
    "Albert": ("ForMaskedLM", {"embedding_size": 12}),
    "DebertaV2": ("ForMaskedLM", {}),
    "Electra": ("ForMaskedLM", {"embedding_size": 12}),
}
QUICK = ("Phi3", "Mamba")
IMAGE = {**SIZES, "image_size": 32, "patch_size": 8}
VISION: dict[str, dict[str, Any]] = {
    "ViT": IMAGE,
    "Swin": {
        "image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4,
        "drop_path_rate": 0.0,
    },
    "ConvNext": {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "Beit": {**IMAGE, "drop_path_rate": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_models_by_hand_learn_as_in_torch(name: str) -> None:
    kind, inputs = KINDS[name]
    torch.manual_seed(1)
    check_step(kind(), inputs(), steps=2)


def test_one_of_them_learns_split() -> None:
    kind, inputs = KINDS["vector quantization"]
    torch.manual_seed(1)
    check_step(kind(), inputs(), "adamw", steps=2, mesh="dp=2 tp=2")


def _configured(kind: str, task: str, sizes: dict[str, Any]) -> torch.nn.Module:
    """A model that draws no random numbers."""
    config = getattr(transformers, f"{kind}Config")(**sizes)
    config.use_cache = False
    for setting in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "hidden_dropout"):
        if getattr(config, setting, None):
            setattr(config, setting, 0.0)
    return getattr(transformers, f"{kind}{task}")(config).train()


@pytest.mark.parametrize(
    "kind", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in LANGUAGE]
)
def test_language_models_learn_as_in_torch(kind: str) -> None:
    task, more = LANGUAGE[kind]
    torch.manual_seed(1)
    ids = torch.randint(3, 39, (2, 6))
    check_step(_configured(kind, task, {**SIZES, **more}), {"input_ids": ids, "labels": ids})


@pytest.mark.slow
@pytest.mark.parametrize("kind", VISION)
def test_models_of_images_learn_as_in_torch(kind: str) -> None:
    torch.manual_seed(1)
    module = _configured(kind, "ForImageClassification", {**VISION[kind], "num_labels": 5})
    check_step(module, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 3])})


@pytest.mark.slow
def test_a_model_that_float32_is_too_coarse_for_learns_as_in_torch() -> None:
    """Norms over two images' single pixels: torch's own float32 step is 5e-3 off its float64 step."""
    torch.manual_seed(1)
    sizes = {"image_size": 32, "depth_multiplier": 0.35, "num_labels": 5, "classifier_dropout_prob": 0.0}
    module = _configured("MobileNetV2", "ForImageClassification", sizes).double()
    check_step(module, {"pixel_values": torch.randn(2, 3, 32, 32).double(), "labels": torch.tensor([1, 3])})
