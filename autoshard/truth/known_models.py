"""Models that published tables name, by the names that they have there."""

from __future__ import annotations

from autoshard.truth.rows import DecoderModel

GPT_VOCABULARY, MPT_VOCABULARY = 51200, 50368


def _llama(hidden: int, layers: int, heads: int, words: int, ffn: int, kv_heads: int, width: int = 0) -> DecoderModel:
    return DecoderModel(
        "llama", hidden, layers, heads, words, ffn=ffn, kv_heads=kv_heads, head_width=width
    )  # fmt: skip


def _deepseek(
    hidden: int, layers: int, heads: int, words: int, experts: int, active: int, inner: int, shared: int
) -> DecoderModel:
    """Of DeepSeek-V2 and what is built like it, by its configuration; dense layers at the front are left out."""
    return DecoderModel(
        "mixture", hidden, layers, heads, words, experts=experts, active=active, expert_inner=inner,
        shared_inner=shared, query_latent=1536, key_latent=512, head_width=128, rotary=64,
    )  # fmt: skip


def _mixture(
    hidden: int, layers: int, heads: int, words: int, kv_heads: int, experts: int, active: int, inner: int
) -> DecoderModel:
    return DecoderModel(
        "mixture", hidden, layers, heads, words, kv_heads=kv_heads, head_width=128, experts=experts, active=active,
        expert_inner=inner,
    )  # fmt: skip


LLAMA = {
    "Llama-3.1-8B": _llama(4096, 32, 32, 128256, 14336, 8),
    "Llama-3.1-70B": _llama(8192, 80, 64, 128256, 28672, 8),
    "Llama-3.1-405B": _llama(16384, 126, 128, 128256, 53248, 8),
}
"""Of torchtitan's tables."""
MPT = {
    name: DecoderModel("mpt", hidden, layers, heads, MPT_VOCABULARY)
    for name, (hidden, layers, heads) in {
        "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16),
        "3b": (2560, 32, 20), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
    }.items()
}  # fmt: skip
"""Of llm-foundry's tables."""
_V2 = _deepseek(5120, 60, 128, 102400, 160, 6, 1536, 2 * 1536)
_V3 = _deepseek(7168, 61, 128, 129280, 256, 8, 2048, 2048)
_KIMI = _deepseek(7168, 61, 64, 163840, 384, 8, 2048, 2048)
_MIXTRAL = _mixture(4096, 32, 32, 32000, 8, 8, 2, 14336)
_QWEN = _mixture(2048, 48, 32, 151936, 4, 128, 8, 768)
_QWEN_LARGE = _mixture(4096, 94, 64, 151936, 4, 128, 8, 1536)
SIMUMAX = {
    "llama2_7b": _llama(4096, 32, 32, 32000, 11008, 32),
    "llama2_13b": _llama(5120, 40, 40, 32000, 13824, 40),
    "llama2_70b": _llama(8192, 80, 64, 32000, 28672, 8),
    "llama3_8b": LLAMA["Llama-3.1-8B"],
    "llama3_70b": LLAMA["Llama-3.1-70B"],
    "llama3_405b": LLAMA["Llama-3.1-405B"],
    "deepseek_32b": _deepseek(2048, 40, 32, 102400, 80, 7, 1536, 1536),
    "deepseekv2": _V2,
    "deepseekv3": _V3,
    "deepseek_r1": _V3,
    "kimi": _KIMI,
    "kimi_1t": _KIMI,
    "kimi_k2": _KIMI,
    "mixtral": _MIXTRAL,
    "mixtral_8x7b": _MIXTRAL,
    "mixtral_8x22b": _mixture(6144, 56, 48, 32768, 8, 8, 2, 16384),
    "qwen": _QWEN,
    "qwen3_30b": _QWEN,
    "qwen3_30b_a3b": _QWEN,
    "qwen3_32b": _llama(5120, 64, 64, 151936, 25600, 8, 128),
    "qwen3_235b": _QWEN_LARGE,
    "qwen3_235b_a22b": _QWEN_LARGE,
}
"""Of SimuMax's cases, by its configurations."""
