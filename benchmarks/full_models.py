"""Models of full size on torch's meta device, which holds no numbers: what `benchmarks/full_size.py` plans.

Parameters are f32 and cast to bf16 for a step, as in mixed precision; Adam has two f32 states. Attention takes no mask
of its own, as with the fused kernels that models of this size are trained with. What a layer computes is made again for
the backward pass, from what enters it ("full" recomputation; Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 5), casts of weights as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_IN_LAYER = re.compile(r"(^|\.)layers?\.\d+\.(?P<rest>.+)$")


@dataclass(frozen=True)
class FullModel:
    """A model and what one step of it is trained on.

    Attributes:
        build: the torch module and its arguments by name, for so many samples.
        samples: samples per device.
        recompute: whether layers are made again for the backward pass.
        experts: whether it is a mixture of experts.
    """

    build: Callable[[int], tuple[Any, dict[str, Any]]]
    samples: float
    recompute: bool = True
    experts: bool = False


def mixed_precision(net: Any) -> Any:
    """The module with each parameter cast to bf16 where it is used; batch norms keep theirs, as under autocast."""
    import torch
    from torch.nn.utils.parametrize import register_parametrization

    class ToLow(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight.to(torch.bfloat16)

    for module in list(net.modules()):
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            continue
        for name, _ in list(module.named_parameters(recurse=False)):
            register_parametrization(module, name, ToLow(), unsafe=True)
    return net


def without_masks(config: Any) -> Any:
    """The configuration, with attention that is causal by itself and gets no mask."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("unmasked", sdpa_attention_forward)
    AttentionMaskInterface.register("unmasked", lambda *args, **kwargs: None)
    config._attn_implementation = "unmasked"
    return config


def transformer(kind: str, head: str = "ForCausalLM", classes: int | None = None, **sizes: Any) -> Any:
    """A model of transformers by the words around its Config, attention without masks, on torch's present device."""
    import transformers

    config = without_masks(getattr(transformers, f"{kind}Config")(**sizes))
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if classes is not None:
        config.num_labels = classes
    return getattr(transformers, f"{kind}{head}")(config)


def language_model(kind: str, length: int = 4096, **sizes: Any) -> Callable[[int], tuple[Any, dict[str, Any]]]:
    """Builds a causal language model of transformers by the word before its Config, on sequences of `length` words."""

    def build(samples: int) -> tuple[Any, dict[str, Any]]:
        import torch

        with torch.device("meta"):
            net = transformer(kind, **sizes)
            words = torch.zeros((samples, length), dtype=torch.long)
        return mixed_precision(net), {"input_ids": words, "labels": words}

    return build


def _vit_huge(samples: int) -> tuple[Any, dict[str, Any]]:
    import torch

    with torch.device("meta"):
        net = transformer(
            "ViT", "ForImageClassification", 1000, hidden_size=1280, num_hidden_layers=32, num_attention_heads=16,
            intermediate_size=5120, patch_size=14, image_size=224,
        )  # fmt: skip
        images = torch.zeros((samples, 3, 224, 224), dtype=torch.bfloat16)
        labels = torch.zeros((samples,), dtype=torch.long)
    return mixed_precision(net), {"pixel_values": images, "labels": labels}


_LLAMA = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
_QWEN3 = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "vocab_size": 151936, "norm_topk_prob": True,
}  # fmt: skip
MODELS = {
    "llama-3-8b": FullModel(
        language_model(
            "Llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, **_LLAMA
        ),
        1,
    ),
    "llama-3-70b": FullModel(
        language_model(
            "Llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, **_LLAMA
        ),
        1,
    ),
    "mixtral-8x7b": FullModel(language_model("Mixtral"), 1, experts=True),
    "qwen3-30b-a3b": FullModel(language_model("Qwen3Moe", **_QWEN3), 1, experts=True),
    "deepseek-v3": FullModel(language_model("DeepseekV3"), 1, experts=True),
    "vit-h": FullModel(_vit_huge, 32, recompute=False),
}


def training_graph(model: FullModel, imported: Any) -> Any:
    """Forward, gradient and update of an imported model (with its optimizer) as one traced step."""
    from autoshard.frontends.torch.model import picked
    from autoshard.transform.attention import joined_attention
    from autoshard.transform.train import train_step

    wanted = made_again if model.recompute else None
    types = imported.input_types
    return train_step(_named(lambda *x: picked(imported(*x), "loss"), types), imported.optimizer, *types.values(),
                      name=imported.name, recompute=wanted, rewrite=joined_attention)  # fmt: skip


def _named(function: Callable, names: Any) -> Callable:
    """The function, its arguments called so."""
    import inspect

    kind = inspect.Parameter.POSITIONAL_ONLY
    function.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return function


def made_again(node: Any) -> bool:
    """Whether the backward pass makes a node's results again: what lies inside a layer, but for the sums that lead from
    layer to layer; and casts of parameters."""
    found = _IN_LAYER.search(node.label)
    if found is None:
        return node.op.name == "Cast" and ".parametrizations." in node.label
    return "." in found["rest"] or not found["rest"].startswith("add")
