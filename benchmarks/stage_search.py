"""Pipelines of models of full size, found by `--pipeline auto`, beside what others published, at the same prices.

    python -m benchmarks.stage_search              # Llama-3-405B on 1,024 H100, GPT-3 175B on 512 A100
    python -m benchmarks.stage_search --rows autoshard/truth/data/megatron_tables.csv    # the models of a table
    python -m benchmarks.stage_search alpa-1 alpa-16                                     # what Alpa found

Printed are the pipeline found, processor seconds in all (tracing included), how far it is from the fastest choice at
most, and what the choices of Megatron-LM and Alpa, and plans without stages, take.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import process_time
from typing import Literal

from costmodel import Hardware, Link, Topology, format_seconds, preset

GIB = 2**30


@dataclass(frozen=True)
class FullStep:
    """A decoder and what one step of it is trained on: `layers`, on `devices` of a preset, so many sequences."""

    builder: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    devices: int
    hardware: str
    precision: Literal["f16", "bf16", "f8"] = "bf16"
    ffn: int | None = None
    kv_heads: int | None = None

    @property
    def on(self) -> Hardware:
        """What it runs on."""
        return (p3_16xlarge() if self.hardware == V100 else preset(self.hardware)).for_ranks(self.devices)

    @property
    def limit(self) -> int:
        """Bytes of a device."""
        return (16 if self.hardware == V100 else 80) * GIB


V100 = "v100 p3.16xlarge"


def p3_16xlarge() -> Hardware:
    """Amazon's nodes of eight V100 with 16 GB, on which Alpa was measured: NVIDIA's datasheet (tensor cores 125 TF/s,
    900 GB/s, NVLink 150 GB/s one way), 25 Gb/s for a node; shares of the peaks as on an A100."""
    base = preset("a100")
    peaks = (("f64", 7.8e12), ("f32", 15.7e12), ("f16", 125e12), ("bf16", 125e12), ("i32", 15.7e12))
    device = replace(base.device, name="V100", peak_flops=peaks, memory_bandwidth=900e9, memory_bytes=16 * GIB)
    source = "planning: the share of NVLink 3 that all-reduces reach on an A100"
    near = replace(base.topology.levels[0][1], name="NVLink 2", bandwidth=115e9, source=source)
    return replace(
        base, name=V100, device=device, topology=Topology(((8, near), (None, Link("25 Gb/s", 2e-5, 25e9 / 8 / 8))))
    )


STEPS = {
    "llama405b": FullStep("llama", 16384, 126, 128, 128256, 8192, 2048, 1024, "h100", "bf16", 53248, 8),
    "gpt3": FullStep("gpt", 12288, 96, 96, 51200, 2048, 1536, 512, "a100-4x200", "f16"),
    **{
        f"alpa-{devices}": FullStep("gpt", hidden, layers, heads, 51200, 1024, 1024, devices, V100, "f16")
        for devices, hidden, layers, heads in (
            (1, 1024, 24, 16), (2, 1536, 24, 16), (4, 2048, 24, 32), (16, 4096, 32, 32), (32, 5120, 48, 40),
            (64, 8192, 48, 64),
        )
    },
}  # fmt: skip

# Those of Alpa are what its search found (benchmark/alpa/suite_auto_gpt.py, perf_test_suite); that for 8 devices has
# stages of other sizes and is left out.
# Plan of the tensor axis, groups, data, tensor, rows of a micro batch, chunks, recomputation. Those of Korthikanti et
# al. (2205.05198) and The Llama 3 herd of models (2407.21783) with fewer replicas than theirs; the others are nobody's.
CHOICES = {
    "gpt3": {
        "Korthikanti 2022, table 5: t8 p8 v3": ("megatron", 8, 8, 8, 1, 3, "full"),
        "the same, sequence parallel": ("megatron_sp", 8, 8, 8, 1, 3, "full"),
        "the same, nothing made again": ("megatron_sp", 8, 8, 8, 1, 3, "none"),
        "t8 p8": ("megatron", 8, 8, 8, 1, 1, "full"),
        "t8 p16": ("megatron", 16, 4, 8, 1, 1, "full"),
        "t4 p32, micro batches of 2": ("megatron", 32, 4, 4, 2, 1, "full"),
        "stages of one node: t8": ("megatron", 64, 1, 8, 1, 1, "full"),
        "stages of one node: d2 t4": ("megatron", 64, 2, 4, 1, 1, "full"),
    },
    "llama405b": {
        "The Llama 3 herd of models, table 4: t8 p16": ("megatron_sp", 16, 8, 8, 1, 1, "full"),
        "the same, chunks of one layer's size: v7": ("megatron_sp", 16, 8, 8, 1, 7, "full"),
        "t8 p8": ("megatron_sp", 8, 16, 8, 1, 1, "full"),
        "stages of one node: t8": ("megatron", 128, 1, 8, 1, 1, "full"),
    },
    "alpa-1": {"Alpa: 512 micro batches": ("megatron", 1, 1, 1, 2, 1, "full")},
    "alpa-2": {"Alpa: p2, 128 micro batches": ("megatron", 2, 1, 1, 8, 1, "full")},
    "alpa-4": {"Alpa: p2 d2, 128 micro batches": ("megatron", 2, 2, 1, 4, 1, "full")},
    "alpa-16": {"Alpa: p2 d2 t4, 64 micro batches": ("megatron", 2, 2, 4, 8, 1, "full")},
    "alpa-32": {"Alpa: p4 d2 t4, 128 micro batches": ("megatron", 4, 2, 4, 4, 1, "full")},
    "alpa-64": {"Alpa: p16 t4, 1,024 micro batches": ("megatron", 16, 1, 4, 1, 1, "full")},
}


def main() -> None:
    """Search, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STEPS)}; by default all")
    parser.add_argument("--rows", metavar="FILE", help="a table of measured steps: each model, and the row's choice")
    given = parser.parse_args()
    if given.rows is None:
        for name in given.names or ("llama405b", "gpt3"):
            searched(name, STEPS[name], CHOICES[name])
        return
    for (name, step), published in of_table(given.rows).items():
        if not given.names or any(one in name for one in given.names):
            searched(name, step, published)


def of_table(path: str) -> dict[tuple[str, FullStep], dict[str, tuple]]:
    """The steps of a table of measured rows (`autoshard truth`), with the choices of the rows."""
    from autoshard.truth.tables import load

    found: dict[tuple[str, FullStep], dict[str, tuple]] = {}
    for row in load(path).rows:
        model, axes = row.model, row.axes
        step = FullStep(
            model.builder, model.hidden, model.layers, model.heads, model.vocabulary, row.sequence, row.global_batch,
            axes.devices, row.hardware, row.precision, model.ffn, model.kv_heads,
        )  # fmt: skip
        plan = row.plan if "megatron" in row.plan else "megatron"
        again = "full" if row.recompute == "full" else "none"
        choice = plan, axes.pp, axes.dp, axes.tp, row.micro_batch, row.chunks, again
        found.setdefault((row.table, step), {})[f"published: {axes} mb{row.micro_batch} v{row.chunks} {again}"] = choice
    return found


def searched(name: str, step: FullStep, published: dict[str, tuple]) -> None:
    """Print what is found for a step, and the published choices."""
    from autoshard.pipeline.found_stages import layered_search
    from autoshard.pipeline.joint.search import StageRequest
    from autoshard.transform.layers import RepeatedLayers
    from autoshard.util.errors import MemoryLimitError

    begun = process_time()
    traced = training_step(step).traced
    layers = RepeatedLayers.of(traced.graph)
    assert layers is not None, "a decoder has equal layers"
    search = layered_search(traced, layers, StageRequest(traced.graph, step.devices, step.on, limit=step.limit))
    print(f"{name}: {len(traced.graph.nodes)} operators on {step.devices} devices of {step.hardware}")
    try:
        best, told = search.run()
    except MemoryLimitError as error:
        print(f"  refused: {error}", flush=True)
        return
    print(f"  found   {best}")
    print(f"  search  {told}; gap {100 * told.gap:.2f} %; {process_time() - begun:.1f} processor seconds", flush=True)
    for what, seconds, fits in others(search, step, published):
        note = "" if fits else ", more memory than there is"
        over = "" if seconds is None else f", {100 * (seconds / best.seconds - 1):+.1f} %"
        shown = "refused" if seconds is None else format_seconds(seconds)
        print(f"  {what:55} {shown}{over}{note}", flush=True)


def others(search, step: FullStep, published: dict[str, tuple]) -> Iterator[tuple[str, float | None, bool]]:
    """Seconds of published choices, and of plans without stages; whether they fit."""
    from autoshard.pipeline.joint.layered import DATA_PLANS
    from autoshard.pipeline.joint.layered_step import LayeredChoice, plan_name

    rows = dict(published)
    for tensor in (1, 8):
        for again in ("none", "full"):
            data = step.devices // tensor
            if step.devices % tensor:
                continue
            rows[f"one stage, d{data} t{tensor}, made again: {again}"] = (
                "megatron_sp", 1, data, tensor, 1, 1, again,
            )  # fmt: skip
    for label, (tensor_plan, groups, data, tensor, each, chunks, again) in rows.items():
        if search.batch % (data * each):
            continue
        prices = []
        for data_plan in DATA_PLANS:
            schedule = "interleaved_1f1b" if chunks > 1 else "1f1b"
            plan = plan_name(data_plan, tensor_plan, data, tensor)
            count = search.batch // (data * each)
            choice = LayeredChoice(groups, data, tensor, each, count, plan, again, schedule, chunks)
            if (price := search.price(choice)) is not None:
                prices.append((max(price.nbytes) > step.limit, price.seconds))
        over, seconds = min(prices, default=(True, None))
        yield label, seconds, not over


def training_step(step: FullStep):
    """The decoder's training step, parameters of f32 computed with in 16 bits, Adam; no numbers are made."""
    from autoshard.truth.models import step_of
    from autoshard.truth.rows import DecoderModel, Measurement, ParallelDegrees, Row

    sizes = {name: getattr(step, name) for name in ("builder", "hidden", "layers", "heads", "vocabulary", "ffn")}
    model = DecoderModel(**sizes, kv_heads=step.kv_heads)
    row = Row(
        id="", table="", model=model, sequence=step.sequence, hardware=step.hardware, axes=ParallelDegrees(),
        plan="", global_batch=step.batch, micro_batch=1, measured=Measurement(1.0), precision=step.precision,
    )  # fmt: skip
    return step_of(row, step.layers, step.batch)


if __name__ == "__main__":
    main()
