"""Models of many kinds, for `plan_quality.py`: training steps without numbers, nothing annotated.

`ZOO` has what makes each as something that `autoshard.plan` takes, by name. Models of transformers are two layers of
their architecture on the meta device; the samples of this project have their own sizes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

BATCH, LENGTH, WORDS = 64, 128, 4096
WIDTH, HEADS, WIDE = 256, 8, 1024

_SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
_TEXT = {**_SIZES, "vocab_size": WORDS, "intermediate_size": WIDE, "pad_token_id": 0}
_LLAMA = {**_TEXT, "use_cache": False, "num_key_value_heads": 4, "head_dim": WIDTH // HEADS}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 384}
_VISION = {**_SIZES, "intermediate_size": WIDE, "image_size": 64, "patch_size": 8, "num_labels": 16}
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA),
    "mistral": ("Mistral", {**_LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2", _LLAMA),
    "qwen3": ("Qwen3", _LLAMA),
    "gemma": ("Gemma", _LLAMA),
    "gemma2": ("Gemma2", {**_LLAMA, "sliding_window": 64}),
    "gemma3": ("Gemma3", {**_LLAMA, "sliding_window": 64}),
    "phi": ("Phi", {**_LLAMA, "num_key_value_heads": HEADS}),
    "phi3": ("Phi3", _LLAMA),
    "stablelm": ("StableLm", _LLAMA),
    "olmo2": ("Olmo2", _LLAMA),
    "cohere": ("Cohere", _LLAMA),
    "starcoder2": ("Starcoder2", _LLAMA),
    "granite": ("Granite", _LLAMA),
    "smollm3": ("SmolLM3", _LLAMA),
    "opt": ("OPT", {**_TEXT, "ffn_dim": WIDE, "word_embed_proj_dim": WIDTH, "use_cache": False, "dropout": 0.0}),
    "gpt2": ("GPT2", {"n_layer": 2, "n_embd": WIDTH, "n_head": HEADS, "vocab_size": WORDS, "use_cache": False}),
    "gpt-neox": ("GPTNeoX", {**_TEXT, "use_cache": False}),
    "gptj": ("GPTJ", {"n_layer": 2, "n_embd": WIDTH, "n_head": HEADS, "vocab_size": WORDS, "rotary_dim": 16,
                      "use_cache": False}),
    "bloom": ("Bloom", {"n_layer": 2, "hidden_size": WIDTH, "n_head": HEADS, "vocab_size": WORDS, "use_cache": False}),
    "falcon": ("Falcon", {**_TEXT, "use_cache": False, "new_decoder_architecture": True, "num_kv_heads": 4}),
    "codegen": ("CodeGen", {"n_layer": 2, "n_embd": WIDTH, "n_head": HEADS, "vocab_size": WORDS, "rotary_dim": 16,
                            "use_cache": False}),
    "mamba": ("Mamba", {"hidden_size": WIDTH, "num_hidden_layers": 1, "vocab_size": WORDS, "use_cache": False,
                        "state_size": 8}),
    "mixtral": ("Mixtral", {**_LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", {**_LLAMA, **_MOE, "num_experts": 16}),
    "gpt-oss": ("GptOss", {**_LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "olmoe": ("Olmoe", {**_LLAMA, "num_experts": 8, "num_experts_per_tok": 2}),
    "deepseek-v3": ("DeepseekV3", {
        **_TEXT, **_MOE, "use_cache": False, "num_key_value_heads": HEADS, "q_lora_rank": 64, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 16, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1,
    }),
}  # fmt: skip
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _TEXT),
    "roberta": ("Roberta", {**_TEXT, "max_position_embeddings": LENGTH + 2}),
    "electra": ("Electra", {**_TEXT, "embedding_size": 128}),
    "albert": ("Albert", {**_TEXT, "embedding_size": 128}),
    "mpnet": ("MPNet", _TEXT),
    "distilbert": ("DistilBert", {"vocab_size": WORDS, "dim": WIDTH, "hidden_dim": WIDE, "n_layers": 2,
                                  "n_heads": HEADS}),
    "modernbert": ("ModernBert", {**_TEXT, "global_attn_every_n_layers": 1, "reference_compile": False}),
    "fnet": ("FNet", {**_TEXT, "use_tpu_fourier_optimizations": False}),
}  # fmt: skip
VISION: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", _VISION),
    "deit": ("DeiT", _VISION),
    "beit": ("Beit", _VISION),
    "dinov2": ("Dinov2", {**_VISION, "mlp_ratio": 4}),
    "swin": ("Swin", {"image_size": 64, "patch_size": 4, "embed_dim": 64, "depths": [1, 1], "num_heads": [4, 8],
                      "window_size": 4, "num_labels": 16}),
    "convnext": ("ConvNext", {"image_size": 64, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1],
                              "num_labels": 16}),
    "resnet": ("ResNet", {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [1, 1], "num_labels": 16}),
    "regnet": ("RegNet", {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [1, 1], "groups_width": 16,
                          "num_labels": 16}),
    "mobilenet-v2": ("MobileNetV2", {"image_size": 64, "depth_multiplier": 0.25, "num_labels": 16}),
    "poolformer": ("PoolFormer", {"hidden_sizes": [32, 64, 64, 128], "depths": [1, 1, 1, 1], "num_labels": 16}),
}  # fmt: skip


def _ids(*shape: int) -> Any:
    import torch

    return torch.zeros(shape, dtype=torch.long)


def _step(module: Any, inputs: dict[str, Any], loss: str = "loss") -> Any:
    """A training step of a torch module with Adam."""
    import autoshard as ash
    from autoshard import optim

    for part in module.modules():
        for name in ("p", "drop_prob"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return ash.from_torch(module.train(), (), inputs, loss=loss, optimizer=lambda params: optim.Adam(params, 1e-3))


def _configured(kind: str, head: str, sizes: dict[str, Any]) -> Any:
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    config_of = getattr(transformers, f"{kind}TextConfig", None) if kind == "Gemma3" else None
    config = (config_of or getattr(transformers, f"{kind}Config"))(**sizes)
    for name in vars(config):
        if "dropout" in name or name in ("attn_pdrop", "resid_pdrop", "embd_pdrop", *_DROPOUT):
            setattr(config, name, 0.0 if isinstance(getattr(config, name), float) else getattr(config, name))
    return getattr(transformers, f"{kind}{head}")(config)


def _decoder(kind: str, sizes: dict[str, Any]) -> Any:
    import torch

    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    with torch.device("meta"):
        words = _ids(BATCH, LENGTH)
        return _step(_configured(kind, head, sizes), {"input_ids": words, "labels": words})


def _encoder(kind: str, sizes: dict[str, Any]) -> Any:
    import torch

    with torch.device("meta"):
        words = _ids(BATCH, LENGTH)
        return _step(_configured(kind, "ForMaskedLM", sizes), {"input_ids": words, "labels": words})


def _image_model(kind: str, sizes: dict[str, Any]) -> Any:
    import torch

    with torch.device("meta"):
        inputs = {"pixel_values": torch.zeros(BATCH, 3, 64, 64), "labels": _ids(BATCH)}
        return _step(_configured(kind, "ForImageClassification", sizes), inputs)


def _translator(kind: str, sizes: dict[str, Any]) -> Any:
    import torch

    with torch.device("meta"):
        words = _ids(BATCH, LENGTH // 2)
        inputs = {"input_ids": words, "decoder_input_ids": words, "labels": words}
        return _step(_configured(kind, "ForConditionalGeneration", sizes), inputs)


def _whisper() -> Any:
    import torch

    sizes = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
             "decoder_attention_heads": HEADS, "encoder_ffn_dim": WIDE, "decoder_ffn_dim": WIDE, "vocab_size": WORDS,
             "max_source_positions": 64, "max_target_positions": 64, "use_cache": False, "pad_token_id": 0,
             "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None,
             "begin_suppress_tokens": None}  # fmt: skip
    with torch.device("meta"):
        inputs = {"input_features": torch.zeros(BATCH, 80, 128), "labels": _ids(BATCH, 64)}
        return _step(_configured("Whisper", "ForConditionalGeneration", sizes), inputs)


def _spectrogram() -> Any:
    import torch

    sizes = {**_SIZES, "intermediate_size": WIDE, "num_mel_bins": 32, "max_length": 128, "num_labels": 16}
    with torch.device("meta"):
        inputs = {"input_values": torch.zeros(BATCH, 128, 32), "labels": _ids(BATCH)}
        return _step(_configured("AST", "ForAudioClassification", {**sizes, "problem_type": None}), inputs)


def _own(name: str) -> Any:
    import torch

    from benchmarks import torch_kinds

    with torch.device("meta"):
        return _step(*torch_kinds.KINDS[name]())


def _sample(folder: str, name: str) -> Any:
    """A model of the samples."""
    path = Path(__file__).parents[1] / "sample_code" / folder
    sys.path.insert(0, str(path))  # samples import what lies beside them
    try:
        spec = importlib.util.spec_from_file_location(f"sample_{folder}", path / "samples.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)()
    finally:
        sys.path.remove(str(path))


def _tied() -> Any:
    """A small language model by hand: one table of words for what goes in and what comes out."""
    from autoshard import nn, ops
    from autoshard.core.tensortype import TensorType
    from autoshard.transform.train import train_step

    class Tied(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.block = nn.TransformerBlock(WIDTH, HEADS, WIDE, causal=True)
            self.loss = nn.TokenLoss()

        def construct(self, ids, labels):
            hidden = self.block(self.embed(ids))
            return self.loss(ops.matmul(hidden, ops.transpose(self.embed.embedding_table, (1, 0))), labels)

    network, tokens = Tied(), TensorType.of((BATCH, LENGTH), "i32")
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), tokens, tokens)


def _products() -> Any:
    """Products of products in half precision: which of four inputs to split is all that there is to decide."""
    from autoshard import ops, trace
    from autoshard.core.tensortype import TensorType

    def half(x: Any) -> Any:
        return ops.cast(x, dtype="f16")

    def product(x: Any, y: Any, z: Any, w: Any) -> Any:
        return ops.matmul(half(ops.matmul(z, w)), half(ops.matmul(x, y)))

    types = [TensorType.of(shape, "f32") for shape in ((320, 80), (80, 160), (80, 160), (160, 320))]
    return trace(product, *types)


def _block() -> Any:
    from benchmarks.planning_by_axes import traced_block

    return traced_block("training")


ZOO: dict[str, Callable[[], Any]] = {
    **{name: partial(_decoder, *of) for name, of in DECODERS.items()},
    **{name: partial(_encoder, *of) for name, of in ENCODERS.items()},
    **{name: partial(_image_model, *of) for name, of in VISION.items()},
    "t5": partial(_translator, "T5", {
        "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 32, "d_ff": WIDE, "num_layers": 2, "num_heads": HEADS,
        "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 0,
    }),
    "bart": partial(_translator, "Bart", {
        "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "use_cache": False,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": WIDE,
        "decoder_ffn_dim": WIDE, "pad_token_id": 0,
    }),
    "whisper": _whisper,
    "spectrogram transformer": _spectrogram,
    **{name: partial(_own, name) for name in (
        "recommender", "diffusion unet", "graph network", "recurrent", "experts by einsum", "capacity buckets",
        "two towers", "radiance field",
    )},
    **{f"{name} (torch sample)": partial(_sample, "07_torch_models", name) for name in (
        "gpt2_training", "mixtral_training", "mixtral_batched", "t5",
    )},
    **{f"{name} (jax sample)": partial(_sample, "08_jax_models", name) for name in (
        "lm_training", "vit_training", "cnn_training", "gpt_training", "moe_training",
    )},
    "transformer block": _block,
    "tied words": _tied,
    "products": _products,
}  # fmt: skip
