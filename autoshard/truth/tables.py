"""Tables of known sources as these published them, read as rows: CSV files, known by their header.

| header begins with | source |
|---|---|
| Parameters (billion) or # GPUs | vTrain (MICRO 2024), on many nodes or one |
| source,model,layers | papers of Megatron-LM |
| source,model,gpus | torchtitan |
| Model,SeqLen (T) | llm-foundry |
| case,section | SimuMax |
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from autoshard.truth.rows import (
    DecoderModel,
    Measurement,
    ParallelDegrees,
    Row,
    RowError,
    RowsSource,
    Table,
    checked,
    read_rows,
)
from costmodel.json_door import MOST_BYTES, contents

DATA = Path(__file__).parent / "data"
Cells = Mapping[str, str]
_GPT_VOCABULARY, _MPT_VOCABULARY = 51200, 50368


def shipped() -> tuple[Path, ...]:
    """The tables that come with the package."""
    return tuple(sorted(path for path in DATA.iterdir() if path.suffix in (".csv", ".json")))


def load(path: str | Path) -> Table:
    """The rows of a file: JSON as `rows` says, or CSV as a known source published it.

    Raises:
        RowError: no such file, another header, a cell that cannot be read; the message has the line.
    """
    path = Path(path)
    if path.suffix == ".json":
        return read_rows(path)
    try:
        data = contents(path)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise RowError(f"cannot read the measured steps {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RowError(f"{path} is no table of measured steps: it is no text in UTF-8") from None
    if len(data) > MOST_BYTES:
        raise RowError(f"{path} is no table of measured steps: it has more than {MOST_BYTES} bytes")
    return checked(_read(text, path), str(path))


def _read(text: str, path: Path) -> Table:
    lines = csv.DictReader(io.StringIO(text), strict=True)
    try:
        header = tuple(lines.fieldnames or ())
        source = next((one for start, one in _SOURCES.items() if header[: len(start)] == start), None)
        if source is None:
            known = "; ".join(", ".join(start) for start in _SOURCES)
            raise RowError(f"{path}: no source publishes tables with the columns {', '.join(header)[:200]!r}; known "
                           f"ones begin with: {known}")  # fmt: skip
        of, columns, made = source
        if missing := [name for name in columns if name not in header]:
            raise RowError(f"{path}: the column {missing[0]!r} of {of.name} is missing")
        return Table(of, tuple(_rows(lines, path, made)))
    except csv.Error as error:
        raise RowError(f"{path}, line {lines.line_num}: {error}") from None


def _rows(lines: csv.DictReader, path: Path, made: Callable[[Cells], Row | None]) -> Iterator[Row]:
    for cells in lines:
        if None in cells or None in cells.values():
            raise RowError(f"{path}, line {lines.line_num}: it has another number of cells than the header")
        try:
            row = made(cells)
        except ValueError as error:
            raise RowError(f"{path}, line {lines.line_num}: {error}") from None
        if row is not None:
            yield row


# -- cells


def _whole(cells: Cells, name: str) -> int:
    """A number from 1 up."""
    text = cells[name].strip()
    if not re.fullmatch(r"[0-9]{1,15}", text) or not int(text):
        raise ValueError(f"{name} is {text!r}; it is a whole number from 1 up")
    return int(text)


def _number(cells: Cells, name: str) -> float:
    """A number above 0."""
    text = cells[name].strip().rstrip("%")
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise ValueError(f"{name} is {cells[name]!r}; it is a number above 0")
    return found


def _one_of(cells: Cells, name: str, words: Mapping[str, Any]) -> Any:
    text = cells[name].strip()
    if text not in words:
        raise ValueError(f"{name} is {text!r}; it is one of {', '.join(words)}")
    return words[text]


def _truth(cells: Cells, name: str) -> bool:
    return _one_of(cells, name, {"True": "yes", "False": ""}) == "yes"


# -- sources


def _megatron_plan(axes: ParallelDegrees) -> str:
    return "megatron" if axes.tp > 1 else "data_parallel"


def _vtrain(cells: Cells, recompute: Literal["none", "full"] = "full", inferred: tuple[str, ...] = ()) -> Row:
    sizes = {name: _whole(cells, column) for name, column in _VTRAIN.items()}
    axes = ParallelDegrees(dp=sizes["d"], tp=sizes["t"], pp=sizes["p"])
    if axes.devices != sizes["gpus"]:
        raise ValueError(f"tensor, data and pipeline parallelism are {axes.devices} GPUs, not {sizes['gpus']}")
    model = DecoderModel(
        "gpt", sizes["hidden"], sizes["layers"], sizes["heads"], _GPT_VOCABULARY, dropout=_MEGATRON_DROPOUT
    )
    shape = f"h{model.hidden} l{model.layers} s{sizes['sequence']} b{sizes['batch']}"
    return Row(
        id=f"vtrain {shape} {sizes['gpus']} gpus {axes} m{sizes['micro']}",
        table=f"vtrain {shape} {sizes['gpus']} gpus",
        model=model, sequence=sizes["sequence"], hardware="a100-4x200", axes=axes, plan=_megatron_plan(axes),
        global_batch=sizes["batch"], micro_batch=sizes["micro"],
        measured=Measurement(_number(cells, "iteration time (ms)") / 1e3),
        recompute=recompute, precision="f16", attention="apart", fusion="kernels", inferred=("dropout", *inferred),
    )  # fmt: skip


def _vtrain_one_node(cells: Cells) -> Row:
    """A row on one node, where nothing is made again: of 8 sequences of 1,024 a layer takes 8.8 ms more if it is 2,048
    wide and not 1,024. Products that are made again have 2.5e12 operations more then, 280e12 a second were nothing else
    to grow with the width; in all other steps they reach 0.75 of the 312e12 of an A100."""
    return _vtrain(cells, "none", ("recompute",))


_MEGATRON_DROPOUT = 0.1
"""Of attention weights and of what is added to the residual, Megatron-LM's default."""
_VTRAIN = {
    "gpus": "# GPUs", "batch": "global batch", "micro": "micro batch", "hidden": "hidden size",
    "heads": "attention heads", "layers": "# layers", "sequence": "sequence length", "t": "tensor parallelism",
    "d": "data parallelism", "p": "pipeline parallelism",
}  # fmt: skip


def _megatron(cells: Cells) -> Row:
    model = DecoderModel(
        "gpt", _whole(cells, "hidden"), _whole(cells, "layers"), _whole(cells, "heads"), _whole(cells, "vocabulary"),
        dropout=_MEGATRON_DROPOUT,
    )  # fmt: skip
    axes = ParallelDegrees(dp=_whole(cells, "data"), tp=_whole(cells, "tensor"), pp=_whole(cells, "pipeline"))
    if axes.devices != _whole(cells, "gpus"):
        raise ValueError(f"tensor, data and pipeline parallelism are {axes.devices} GPUs, not {cells['gpus']}")
    recompute = _one_of(cells, "recompute", _MEGATRON_RECOMPUTE)
    sequence, batch, gpus = (_whole(cells, name) for name in ("sequence", "global_batch", "gpus"))
    parallel = "sequence parallel" in cells["recompute"]
    known = cells["seconds"].strip()
    seconds = _number(cells, "seconds") if known else _by_operations(cells, model, sequence, batch, gpus)
    return Row(
        id=f"{cells['source']} {cells['model']} {axes} {'sp' if parallel else recompute}",
        table=f"{cells['source']} {cells['model']}",
        model=model, sequence=sequence, hardware=_one_of(cells, "gpu", _MEGATRON_GPU), axes=axes,
        plan="megatron_sp" if parallel else _megatron_plan(axes),
        chunks=_whole(cells, "interleave") if cells["interleave"].strip() else 1,
        global_batch=batch, micro_batch=_whole(cells, "micro_batch"), measured=Measurement(seconds),
        recompute=recompute, precision="f16", attention="apart", fusion="kernels", inferred=("dropout",),
    )  # fmt: skip


def _by_operations(cells: Cells, model: DecoderModel, sequence: int, batch: int, gpus: int) -> float:
    """Seconds of a step of which operations a second are told: Narayanan et al. 2021, equation 2."""
    hidden, layers = model.hidden, model.layers
    more = 1 + sequence / (6 * hidden) + model.vocabulary / (16 * layers * hidden)
    return 96 * batch * sequence * layers * hidden**2 * more / (gpus * _number(cells, "tflops_per_gpu") * 1e12)


_MEGATRON_GPU = {"A100-80GB": "a100", "A100-40GB": "a100-40gb", "H100-80GB": "h100", "H200-141GB": "h200"}
_MEGATRON_RECOMPUTE = {"full": "full", "none": "none", "sequence parallel and selective": "attention"}


def _torchtitan(cells: Cells) -> Row:
    name = cells["model"]
    if name not in _LLAMA:
        raise ValueError(f"model is {name!r}; it is one of {', '.join(_LLAMA)}")
    parallel = cells["parallel"]
    parts = {word.lower(): int(size) for word, size in re.findall(r"(FSDP|TP|CP|PP) (\d+)", parallel)}
    axes = ParallelDegrees(dp=parts.get("fsdp", 1), tp=parts.get("tp", 1), cp=parts.get("cp", 1), pp=parts.get("pp", 1))
    gpus, batch, sequence = (_whole(cells, one) for one in ("gpus", "local_batch", "sequence"))
    if axes.devices != gpus:
        raise ValueError(f"{parallel!r} is {axes.devices} GPUs, not {gpus}")
    compiled = _one_of(cells, "compile", {"yes": "compiled", "no": "eager"})
    micro = batch // axes.pp if batch % axes.pp == 0 else batch
    chunks = 2 if "interleaved" in parallel.lower() else 1
    turns = " interleaved" * (chunks > 1)
    rate = _number(cells, "tokens_per_second_per_gpu")
    return Row(
        id=f"{cells['source']} {name} {axes} s{sequence} {cells['precision']} {compiled}{turns}",
        table=f"{cells['source']} {name}",
        model=_LLAMA[name], sequence=sequence, hardware=_one_of(cells, "gpu", _TITAN_GPU), axes=axes,
        plan=_titan_plan(axes),
        global_batch=batch * axes.dp, micro_batch=micro,
        measured=Measurement(batch * axes.dp * sequence / (rate * gpus), _number(cells, "memory_gib")),
        recompute=_one_of(cells, "recompute", {"none": "none", "selective": "products", "full": "full"}),
        precision=_one_of(cells, "precision", {"bf16": "bf16", "float8": "f8"}),
        loss="parallel" if axes.tp > 1 else "apart",
        reduced="step" if axes.pp > 1 else "micro batch", fusion="inductor" if compiled == "compiled" else "eager",
        overlap=True,
        # As many micro batches as stages, and two stages for each group where they are interleaved: its defaults.
        chunks=chunks, inferred=("micro_batch", "chunks") if axes.pp > 1 else (),
    )  # fmt: skip


def _titan_plan(axes: ParallelDegrees) -> str:
    """FSDP's; in stages weights are gathered once for all micro batches and gradients reduced once, as it has them."""
    return _plan_of("zero3_keep", axes) if axes.pp > 1 else _plan_of("zero3", axes)


_TITAN_GPU = {"H100-96GB-500W": "h100-500w"}
_LLAMA = {
    "Llama-3.1-8B": DecoderModel("llama", 4096, 32, 32, 128256, ffn=14336, kv_heads=8),
    "Llama-3.1-70B": DecoderModel("llama", 8192, 80, 64, 128256, ffn=28672, kv_heads=8),
    "Llama-3.1-405B": DecoderModel("llama", 16384, 126, 128, 128256, ffn=53248, kv_heads=8),
}


def _llm_foundry(cells: Cells) -> Row:
    name, sequence, gpus = cells["Model"], _whole(cells, "SeqLen (T)"), _whole(cells, "# GPUs")
    if name not in _MPT:
        raise ValueError(f"Model is {name!r}; it is one of {', '.join(_MPT)}")
    hidden, layers, heads = _MPT[name]
    batch = _whole(cells, "GlobalBatchSize")
    micro, times = _whole(cells, "MicroBatchSize"), _whole(cells, "GradAccum")
    if micro * times * gpus != batch:
        raise ValueError(f"{times} times {micro} sequences on {gpus} GPUs are not GlobalBatchSize {batch}")
    again = _truth(cells, "Activation Checkpointing")
    precision = _one_of(cells, "Precision", {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp8": "f8", "fp8": "f8"})
    gpu = _one_of(cells, "GPU", {"h100_80gb": "h100", "a100_80gb": "a100", "a100_40gb": "a100-40gb"})
    words = f"{name} s{sequence} {gpus} {cells['GPU']}"
    return Row(
        id=f"llm-foundry {words} m{micro} x{times} {cells['Precision']}",
        table=f"llm-foundry {words}",
        model=DecoderModel("mpt", hidden, layers, heads, _MPT_VOCABULARY), sequence=sequence, hardware=gpu,
        axes=ParallelDegrees(dp=gpus), plan=_one_of(cells, "Sharding Strategy", _FSDP), global_batch=batch,
        micro_batch=micro,
        # The rate of the whole job is rounded to whole sequences; that of a GPU has four digits.
        measured=Measurement(batch * sequence / (_number(cells, "Throughput (T/s/GPU)") * gpus)),
        recompute="full" if again else "none", precision=precision, reduced="micro batch", overlap=True,
        attention="older", inferred=("attention",),
    )  # fmt: skip


_FSDP = {"FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero3_keep"}
_MPT = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
}  # fmt: skip


def _simumax(cells: Cells) -> Row | None:
    if cells["status"] != "ok":
        return None
    case = cells["case"]
    found = dict(re.findall(r"(?:^|_)(tp|pp|dp|cp|ep|l|mbc|seq)(\d+)(?=_|$)", case))
    name = next((one for one in _SIMUMAX if case.startswith(one)), None)
    if name is None or not {"tp", "pp", "l", "mbc"} <= set(found):
        raise ValueError(f"case is {case!r}; it begins with one of {', '.join(_SIMUMAX)} and names l, tp, pp and mbc")
    given = {one: int(found[one]) for one in ("tp", "pp", "dp", "cp", "ep") if one in found}
    axes = ParallelDegrees(**given)
    model = _SIMUMAX[name]
    return Row(
        id=f"simumax {case}", table=f"simumax {name} l{found['l']}",
        model=DecoderModel(**{**_fields(model), "layers": int(found["l"])}), sequence=int(found.get("seq", 4096)),
        hardware="b200", axes=axes, plan=_plan_of("zero3_keep", axes),
        global_batch=axes.dp * int(found["mbc"]), micro_batch=1,
        measured=Measurement(_number(cells, "real ms") / 1e3, _number(cells, "real alloc GiB")),
        fusion="xla", inferred=("micro_batch", "plan", "fusion"),
    )  # fmt: skip


def _plan_of(zero: str, axes: ParallelDegrees) -> str:
    """Parts of parameters and states over all devices that hold the same weights: those that split data, share
    sequences, or have experts of their own. FSDP is zero3; zero3_keep is Megatron-core's distributed optimizer, f32
    parameters and states in parts and 16-bit parameters whole."""
    sizes = {"dp": axes.dp // axes.ep, "ep": axes.ep, "cp": axes.cp}
    alike = ".".join(name for name, size in sizes.items() if size > 1)
    keys = "context_parallel_keep" if zero == "zero3_keep" else "context_parallel"
    others = {"megatron_sp(tp)": axes.tp, "expert_parallel(ep)": axes.ep, f"{keys}(cp)": axes.cp}
    parts = [f"{zero}({alike})"] * bool(alike) + [name for name, size in others.items() if size > 1]
    if len(parts) > 1:
        return " + ".join(parts)
    return "megatron_sp" if axes.tp > 1 else zero


def _fields(model: DecoderModel) -> dict:
    return {name: getattr(model, name) for name in model.__struct_fields__}


def _deepseek(hidden: int, heads: int, words: int, experts: int, active: int, inner: int, shared: int) -> DecoderModel:
    """Of DeepSeek-V2 and what is built like it, by its configuration; dense layers at the front are left out."""
    return DecoderModel(
        "mixture", hidden, 1, heads, words, experts=experts, active=active, expert_inner=inner, shared_inner=shared,
        query_latent=1536, key_latent=512, head_width=128, rotary=64,
    )  # fmt: skip


_SIMUMAX = {
    "llama3_8b": _LLAMA["Llama-3.1-8B"], "llama3_70b": _LLAMA["Llama-3.1-70B"],
    "llama3_405b": _LLAMA["Llama-3.1-405B"],
    "deepseekv2": _deepseek(5120, 128, 102400, 160, 6, 1536, 2 * 1536),
    "deepseekv3": _deepseek(7168, 128, 129280, 256, 8, 2048, 2048),
    "kimi": _deepseek(7168, 64, 163840, 384, 8, 2048, 2048),
    "mixtral": DecoderModel("mixture", 4096, 1, 32, 32000, kv_heads=8, experts=8, active=2, expert_inner=14336),
    "qwen3_32b": DecoderModel("llama", 5120, 1, 64, 151936, ffn=25600, kv_heads=8, head_width=128),
    "qwen": DecoderModel(
        "mixture", 2048, 1, 32, 151936, kv_heads=4, head_width=128, experts=128, active=8, expert_inner=768
    ),
}  # fmt: skip

_MIXED = "mixed precision with f32 parameters and Adam"
_SOURCES: Mapping[tuple[str, ...], tuple[RowsSource, tuple[str, ...], Callable[[Cells], Row | None]]] = {
    ("Parameters (billion)", "# GPUs"): (
        RowsSource("vtrain", "Bang et al. 2024, vTrain (MICRO), data/ of VIA-Research/vTrain: A100-80GB, 8 a node, "
               "4 x HDR200, Megatron-DeepSpeed", "MIT", "whole layers are made again; " + _MIXED),
        (*_VTRAIN.values(), "iteration time (ms)"), _vtrain,
    ),
    ("# GPUs",): (
        RowsSource("vtrain on one node", "the same, on 1 to 8 GPUs of one node", "MIT",
               "exactly linear in micro batches: made from fewer measurements than rows; nothing is made again"),
        (*_VTRAIN.values(), "iteration time (ms)"), _vtrain_one_node,
    ),
    ("source", "model", "layers"): (
        RowsSource("megatron", "Narayanan et al. 2021 (SC21), table 1; Korthikanti et al. 2022 (2205.05198), table 5",
               notes=_MIXED),
        ("hidden", "heads", "vocabulary", "sequence", "gpus", "gpu", "tensor", "pipeline", "interleave", "data",
         "global_batch", "micro_batch", "recompute", "tflops_per_gpu", "seconds"), _megatron,
    ),
    ("source", "model", "gpus"): (
        RowsSource("torchtitan", "pytorch/torchtitan, benchmarks of 2024-12, H100 of 96 GB at 500 W", "BSD-3-Clause",
               "every second product is made again (selective); FlashAttention"),
        ("gpu", "parallel", "local_batch", "sequence", "recompute", "precision", "compile",
         "tokens_per_second_per_gpu", "memory_gib"), _torchtitan,
    ),
    ("Model", "SeqLen (T)"): (
        RowsSource("llm-foundry", "mosaicml/llm-foundry, scripts/train/benchmarking", "Apache-2.0",
               "FSDP, FlashAttention, eager; gradients are reduced after each micro batch"),
        ("# GPUs", "GPU", "MicroBatchSize", "GradAccum", "GlobalBatchSize", "Throughput (T/s/GPU)", "Precision",
         "Sharding Strategy", "Activation Checkpointing"), _llm_foundry,
    ),
    ("case", "section"): (
        RowsSource("simumax", "MooreThreads/SimuMax, B200 summary 1.2", "Apache-2.0",
               "milliseconds and allocated GiB that were measured, not simulated"),
        ("real ms", "real alloc GiB", "status"), _simumax,
    ),
}  # fmt: skip
