"""Training steps of models on one GPU, measured, beside what a plan of the same step is predicted to take.

    python -m benchmarks.gpu_truth measure ROWS.json [--device cuda|cpu] [--models llama ...] [--ways eager] [--tiny]
    python -m benchmarks.gpu_truth compare [ROWS.json] [--hardware calibrated|h100|FILE.json]

A model is built once for both: parameters are f32 and cast to bf16 where they are used, attention takes no mask of its
own, Adam updates. "eager" is PyTorch operator by operator, "compiled" the model by `torch.compile`, Adam in one kernel
in both. Measured are seconds of a step (the host waits for the device once in `STEPS`), seconds in which the device is
busy by part (torch's profiler, by the names of kernels), and the peak of memory. `compare` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.full_models import mixed_precision, transformer

STEPS, ROUNDS, PROFILED = 5, 3, 2
PARTS = ATTENTION, PRODUCTS, UPDATE, REST = "attention", "products", "update", "rest"
KERNELS = {
    ATTENTION: ("flash", "fmha", "attention", "sdpa"),
    PRODUCTS: ("gemm", "nvjet", "cutlass", "xmma", "conv", "wgrad", "dgrad", "fprop", "splitk", "cublas", "grouped"),
    UPDATE: ("adam", "multi_tensor"),
}
"""What the names of CUDA's kernels hold, by part, in this order."""
Built = tuple[Any, dict[str, Any]]


def language_model(kind: str, samples: int, length: int, head: str = "ForCausalLM", **sizes: Any) -> Built:
    """A language model of transformers by the words around its Config, on so many sequences."""
    import torch

    net = transformer(kind, head, tie_word_embeddings=False, **sizes)
    words = torch.randint(0, net.config.vocab_size, (samples, length))
    return net, {"input_ids": words, "labels": words}


def image_classifier(kind: str, samples: int, side: int = 224, **sizes: Any) -> Built:
    """A classifier of transformers by the word before its Config, on so many images."""
    import torch

    net = transformer(kind, "ForImageClassification", 1000, **sizes)
    images, labels = torch.randn(samples, 3, side, side).bfloat16(), torch.randint(0, 1000, (samples,))
    return net, {"pixel_values": images, "labels": labels}


def _llama(samples: int, length: int, layers: int, hidden: int = 4096, inner: int = 14336, heads: int = 32) -> Built:
    return language_model(
        "Llama", samples, length, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 4, vocab_size=32000, max_position_embeddings=length,
    )  # fmt: skip


def _gpt2(samples: int, length: int, layers: int, hidden: int, heads: int) -> Built:
    return language_model(
        "GPT2", samples, length, "LMHeadModel", n_embd=hidden, n_head=heads, n_layer=layers, n_positions=length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip


def _bert(samples: int, length: int, layers: int, hidden: int, heads: int) -> Built:
    return language_model(
        "Bert", samples, length, "ForMaskedLM", hidden_size=hidden, num_attention_heads=heads, num_hidden_layers=layers,
        intermediate_size=4 * hidden, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def _t5(samples: int, length: int, layers: int, hidden: int, heads: int) -> Built:
    return language_model(
        "T5", samples, length, "ForConditionalGeneration", d_model=hidden, d_ff=4 * hidden, d_kv=64, num_heads=heads,
        num_layers=layers, num_decoder_layers=layers, dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip


def _mixtral(samples: int, length: int, layers: int, hidden: int, inner: int) -> Built:
    return language_model(
        "Mixtral", samples, length, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=hidden // 128, num_key_value_heads=max(1, hidden // 512), num_local_experts=8,
        vocab_size=32000, max_position_embeddings=length, sliding_window=None,
    )  # fmt: skip


def _vit(samples: int, layers: int, hidden: int, heads: int) -> Built:
    return image_classifier(
        "ViT", samples, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )  # fmt: skip


MODELS: dict[str, Callable[[], Built]] = {
    "llama": lambda: _llama(1, 8192, 4),
    "llama-long": lambda: _llama(1, 32768, 1),
    "llama-narrow": lambda: _llama(8, 2048, 6, 2048, 5632, 16),
    "gpt2": lambda: _gpt2(16, 1024, 8, 1600, 25),
    "bert": lambda: _bert(64, 512, 8, 1024, 16),
    "vit": lambda: _vit(128, 8, 1024, 16),
    "resnet": lambda: image_classifier("ResNet", 256),
    "mixtral": lambda: _mixtral(2, 4096, 2, 2048, 7168),
    "t5": lambda: _t5(16, 512, 6, 1024, 16),
}
TINY: dict[str, Callable[[], Built]] = {
    "llama": lambda: _llama(1, 64, 1, 64, 96, 4),
    "llama-long": lambda: _llama(1, 128, 1, 64, 96, 4),
    "llama-narrow": lambda: _llama(2, 64, 2, 32, 48, 4),
    "gpt2": lambda: _gpt2(2, 64, 1, 64, 4),
    "bert": lambda: _bert(2, 64, 1, 64, 4),
    "vit": lambda: _vit(2, 1, 64, 4),
    "resnet": lambda: image_classifier("ResNet", 2, 64, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1]),
    "mixtral": lambda: _mixtral(1, 64, 1, 512, 96),
    "t5": lambda: _t5(2, 32, 1, 64, 2),
}
"""The same on CPUs, to try the script."""


# -- measured ------------------------------------------------------------------------------------------------


def measured(name: str, build: Callable[[], Built], way: str, device: str) -> dict[str, Any]:
    """One model's step on the device.

    Raises:
        RuntimeError: torch's, such as for want of memory.
    """
    import torch

    torch.manual_seed(0)
    with torch.device(device):
        net, inputs = build()
    net = mixed_precision(net).train()
    optimizer = torch.optim.Adam(net.parameters(), 1e-5, fused=True)
    run = torch.compile(net) if way == "compiled" else net

    def step() -> None:
        optimizer.zero_grad()
        run(**inputs)["loss"].backward()
        optimizer.step()

    begun = time.perf_counter()
    for _ in range(3):
        step()
    _wait(device)
    warm = time.perf_counter() - begun
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = [_timed(step, device) for _ in range(ROUNDS)]
    return {
        "model": name,
        "way": way,
        "warm_seconds": warm,
        "seconds": median(seconds),
        "all_seconds": seconds,
        "peak_bytes": None if device == "cpu" else torch.cuda.max_memory_allocated(),
        "busy": _busy(step, device),
        "gpu": _gpu(device),
        "parameters": sum(one.numel() for one in net.parameters()),
    }


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _timed(step: Callable[[], None], device: str) -> float:
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    _wait(device)
    return (time.perf_counter() - begun) / STEPS


def _busy(step: Callable[[], None], device: str) -> dict[str, Any]:
    """Seconds of a step in which the device computes, by part, kernels counted, and the longest ones by name."""
    import torch

    if device == "cpu":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            step()
        _wait(device)
    by_part: Counter[str] = Counter()
    by_name: Counter[str] = Counter()
    count = 0
    for event in profile.events() or ():
        if event.device_type.name != "CUDA" or event.name.startswith("Memset"):
            continue
        seconds = event.self_device_time_total / 1e6 / PROFILED
        by_part[part_of(event.name)] += seconds
        by_name[event.name[:120]] += seconds
        count += 1
    return {"parts": dict(by_part), "kernels": count / PROFILED, "longest": by_name.most_common(40)}


def part_of(kernel: str) -> str:
    """The part of a step that a kernel of CUDA is of, by its name.

    >>> part_of("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"), part_of("triton_per_fused_native_layer_norm_3")
    ('products', 'rest')
    """
    words = kernel.lower()
    return next((part for part, names in KERNELS.items() if any(one in words for one in names)), REST)


def _gpu(device: str) -> str:
    """What the GPU is, its clock and its power just now."""
    if device == "cpu":
        return "cpu"
    asked = "--query-gpu=name,clocks.sm,power.draw,temperature.gpu"
    done = subprocess.run(["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def measure(given: argparse.Namespace) -> int:
    """All models that are asked for; what has been measured is written after each."""
    import torch

    models, rows, failed = TINY if given.tiny else MODELS, [], 0
    for name in given.models or models:
        for way in given.ways:
            try:
                row = measured(name, models[name], way, given.device)
            except Exception as error:  # the others are measured still
                traceback.print_exc()
                row, failed = {"model": name, "way": way, "failed": f"{type(error).__name__}: {error}"[:500]}, 1
            rows.append(row)
            print(json.dumps({key: value for key, value in row.items() if key != "busy"}), flush=True)
            Path(given.rows).write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
            torch._dynamo.reset()
            if given.device != "cpu":
                torch.cuda.empty_cache()
    return failed


# -- predicted -----------------------------------------------------------------------------------------------


def step_of(build: Callable[[], Built]) -> Any:
    """The same training step as autoshard traces it, without numbers."""
    import torch

    import autoshard as ash
    from autoshard import optim
    from benchmarks.full_models import FullModel, training_graph

    with torch.device("meta"):
        net, inputs = build()
    net = mixed_precision(net).train()
    imported = ash.from_torch(net, (), inputs, loss="loss", optimizer=lambda params: optim.Adam(params, 1e-5))
    return training_graph(FullModel(lambda _: (net, inputs), 1, recompute=False), imported)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    one = what.add_parser("measure")
    one.add_argument("rows")
    one.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    one.add_argument("--models", nargs="*", choices=tuple(MODELS))
    one.add_argument("--ways", nargs="*", choices=("eager", "compiled"), default=("eager", "compiled"))
    one.add_argument("--tiny", action="store_true")
    other = what.add_parser("compare")
    other.add_argument("rows", nargs="?", default=str(Path(__file__).with_name("h100_steps.json")))
    other.add_argument("--hardware", default="calibrated", help="calibrated: as fitted to h100_samples.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    if given.what == "measure":
        return measure(given)
    from benchmarks.gpu_predicted import compare

    return compare(given.rows, given.hardware)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
