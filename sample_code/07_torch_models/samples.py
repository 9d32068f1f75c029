"""PyTorch models, small, built from `transformers` configs without a download: plan and run each by its name.

    autoshard run samples.py:llama -n 8 --mesh dp=2,tp=4 --check

Each function returns a module and its arguments by name. Those that end in `_training` return a step of training, and
those that end in `_annotated` ask of some tensors how they lie on mesh axes called dp and tp.
"""

from __future__ import annotations

import logging

import torch
import transformers

import autoshard as ash
from autoshard import nn

logging.getLogger("transformers").setLevel(logging.ERROR)
BATCH, LENGTH, WORDS = 8, 16, 64
SIZES = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 4, "use_cache": False}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _words(length: int = LENGTH) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(3, WORDS, (BATCH, length))


def _image(size: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(BATCH, 3, size, size)


def _evaluated(module: torch.nn.Module, **kwargs: torch.Tensor) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    return module.eval(), kwargs


def _gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False, **ENDS
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> torch.nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **ENDS))


def _mixtral(experts: str = "grouped_mm") -> torch.nn.Module:
    config = transformers.MixtralConfig(**LLAMA, **ENDS, num_local_experts=4, num_experts_per_tok=2)
    config._experts_implementation = experts
    return transformers.MixtralForCausalLM(config)


def _resnet() -> torch.nn.Module:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32], depths=[1, 2, 1], num_labels=4)
    return transformers.ResNetForImageClassification(config)


def gpt2():
    return _evaluated(_gpt2(), input_ids=_words())


def llama():
    return _evaluated(_llama(), input_ids=_words())


def qwen2():
    module = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA, **ENDS))
    return _evaluated(module, input_ids=_words())


def bert():
    config = transformers.BertConfig(**SIZES, intermediate_size=48, max_position_embeddings=32, pad_token_id=0)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[: BATCH // 2, LENGTH - 5 :] = 0
    return _evaluated(transformers.BertForMaskedLM(config), input_ids=_words(), attention_mask=mask)


def vit():
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**sizes, intermediate_size=48, image_size=16, patch_size=4, num_labels=4)
    return _evaluated(transformers.ViTForImageClassification(config), pixel_values=_image(16))


def resnet():
    return _evaluated(_resnet(), pixel_values=_image(32))


def mixtral():
    """Experts as grouped matrix products: tokens are sorted by expert, and experts can be split over ranks."""
    return _evaluated(_mixtral(), input_ids=_words())


def mixtral_batched():
    """Experts by looking up the weights of each token's experts."""
    return _evaluated(_mixtral("batched_mm"), input_ids=_words())


def t5():
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    module = transformers.T5ForConditionalGeneration(config)
    return _evaluated(module, input_ids=_words(), decoder_input_ids=_words(12))


# -- steps of training


def _without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    """The module in training mode, so that a step equals torch's, whose random numbers are its own."""
    for part in module.modules():
        for name in ("p", "attn_dropout", "attention_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module.train()


def _trained(module: torch.nn.Module, **kwargs: torch.Tensor):
    """Loss, gradient and update by Momentum, as autoshard's own graph."""
    return ash.from_torch(
        _without_dropout(module),
        kwargs=kwargs,
        loss="output.loss",
        optimizer=lambda params: nn.Momentum(params, 0.1, 0.9),
    )


def gpt2_training():
    return _trained(_gpt2(), input_ids=_words(), labels=_words())


def llama_training():
    return _trained(_llama(), input_ids=_words(), labels=_words())


def mixtral_training():
    return _trained(_mixtral(), input_ids=_words(), labels=_words())


def resnet_training():
    torch.manual_seed(2)
    return _trained(_resnet(), pixel_values=_image(32), labels=torch.randint(0, 4, (BATCH,)))


# -- annotated: the batch over dp; over tp columns of what enters a block and rows of what leaves it (Megatron-LM), and
#    with them heads; experts; channels

WORDS_OVER_DP = {"input_ids": ("dp", None)}
COLUMNS, ROWS, COLUMN_BIAS = ("tp", None), (None, "tp"), ("tp",)
ATTENTION = {
    "**.q_proj": COLUMNS,
    "**.k_proj": COLUMNS,
    "**.v_proj": COLUMNS,
    "**.o_proj": ROWS,
}
DECODER = {**WORDS_OVER_DP, **ATTENTION, "model.embed_tokens": COLUMNS, "lm_head": COLUMNS}
GATED = {"**.mlp.gate_proj": COLUMNS, "**.mlp.up_proj": COLUMNS, "**.mlp.down_proj": ROWS}
BIASES = {"**.q_proj.bias": COLUMN_BIAS, "**.k_proj.bias": COLUMN_BIAS, "**.v_proj.bias": COLUMN_BIAS}
EXPERTS = {"**.experts.gate_up_proj": ("tp", None, None), "**.experts.down_proj": ("tp", None, None)}
# GPT-2 keeps its matrices as [in, out], and queries, keys and values in one: its parts are not those of the heads.
GPT2 = {
    **WORDS_OVER_DP,
    "transformer.wte": COLUMNS,
    "**.attn.c_proj": ("tp", None),
    "**.mlp.c_fc": (None, "tp"),
    "**.mlp.c_fc.bias": COLUMN_BIAS,
    "**.mlp.c_proj": ("tp", None),
}
BERT = {
    **WORDS_OVER_DP,
    "attention_mask": ("dp", None),
    "bert.embeddings.word_embeddings": COLUMNS,
    "**.attention.self.*.weight": COLUMNS,
    "**.attention.self.*.bias": COLUMN_BIAS,
    "**.attention.output.dense": ROWS,
    "**.intermediate.dense": COLUMNS,
    "**.intermediate.dense.bias": COLUMN_BIAS,
    "bert.encoder.layer.*.output.dense": ROWS,
}
VIT = {
    "pixel_values": ("dp", None, None, None),
    **ATTENTION,
    **BIASES,
    "**.mlp.fc1": COLUMNS,
    "**.mlp.fc1.bias": COLUMN_BIAS,
    "**.mlp.fc2": ROWS,
}
RESNET = {
    "pixel_values": ("dp", None, None, None),
    **{f"resnet.encoder.stages.{stage}.**.layer.0.convolution": ("tp", None, None, None) for stage in (1, 2)},
    **{f"resnet.encoder.stages.{stage}.**.layer.2.convolution": (None, "tp", None, None) for stage in (1, 2)},
}
T5 = {
    **WORDS_OVER_DP,
    "decoder_input_ids": ("dp", None),
    "shared": COLUMNS,
    "**Attention.q": COLUMNS,
    "**Attention.k": COLUMNS,
    "**Attention.v": COLUMNS,
    "**Attention.o": ROWS,
    "**.wi": COLUMNS,
    "**.wo": ROWS,
}


def _asked(found: tuple[torch.nn.Module, dict[str, torch.Tensor]], asks: dict[str, tuple]):
    module, kwargs = found
    return ash.annotate(ash.from_torch(module, kwargs=kwargs), asks)


def gpt2_annotated():
    return _asked(gpt2(), GPT2)


def llama_annotated():
    return _asked(llama(), {**DECODER, **GATED})


def qwen2_annotated():
    return _asked(qwen2(), {**DECODER, **GATED, **BIASES})


def bert_annotated():
    return _asked(bert(), BERT)


def vit_annotated():
    return _asked(vit(), VIT)


def resnet_annotated():
    return _asked(resnet(), RESNET)


def mixtral_annotated():
    return _asked(mixtral(), {**DECODER, **EXPERTS})


def t5_annotated():
    return _asked(t5(), T5)


def gpt2_training_annotated():
    return ash.annotate(gpt2_training(), {**GPT2, "labels": ("dp", None)})


def llama_training_annotated():
    return ash.annotate(llama_training(), {**DECODER, **GATED, "labels": ("dp", None)})


def mixtral_training_annotated():
    return ash.annotate(mixtral_training(), {**DECODER, **EXPERTS, "labels": ("dp", None)})


def resnet_training_annotated():
    return ash.annotate(resnet_training(), RESNET)
