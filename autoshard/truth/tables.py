"""Tables of known sources as these published them, read as rows: CSV files, known by their columns, in any order.

| columns, among others | source |
|---|---|
| # GPUs, tensor parallelism, iteration time (ms) | vTrain (MICRO 2024), on many nodes or one |
| source, model, hidden, tensor, pipeline | papers of Megatron-LM |
| source, model, parallel, local_batch | torchtitan |
| Model, SeqLen (T), MicroBatchSize | llm-foundry |
| case, real ms | SimuMax |
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autoshard.truth.cells import Cells, gpu, number, one_of, one_told, text, truth, whole
from autoshard.truth.known_models import GPT_VOCABULARY, LLAMA, MPT, SIMUMAX
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
from costmodel.json_door import MOST_BYTES, contents, with_fields

DATA = Path(__file__).parent / "data"


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


@dataclass(frozen=True)
class KnownTable:
    """A kind of table: its source, the columns that it must have, those that it may leave out, and what makes a row."""

    source: RowsSource
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    row: Callable[[Cells], Row | None]

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read."""
        return self.needed + self.optional


def _read(content: str, path: Path) -> Table:
    first = content.partition("\n")[0]
    lines = csv.reader(io.StringIO(content), strict=True, delimiter=max(",;\t", key=first.count))
    try:
        header = tuple(" ".join(name.split()) for name in next(lines, ()))
        known = _known_table(header, path)
        spelt = {name.lower(): name for name in known.columns}
        names = [spelt.get(name.lower(), name) for name in header]
        if twice := [name for name in known.columns if names.count(name) > 1]:
            raise RowError(f"{path}: the column {twice[0]!r} of {known.source.name} stands there twice")
        return Table(known.source, tuple(_rows(lines, names, path, known)))
    except csv.Error as error:
        raise RowError(f"{path}, line {lines.line_num}: {error}") from None


def _known_table(header: Sequence[str], path: Path) -> KnownTable:
    """The kind of table whose columns these are: all that it needs, and the most of any such kind."""
    found = {name.lower() for name in header}

    def there(columns: Sequence[str]) -> int:
        return sum(name.lower() in found for name in columns)

    whole_ones = [one for one in _TABLES if there(one.needed) == len(one.needed)]
    if whole_ones:
        return max(whole_ones, key=lambda one: there(one.columns))
    nearest = max(_TABLES, key=lambda one: there(one.needed) / len(one.needed))
    if 2 * there(nearest.needed) < len(nearest.needed):
        known = "; ".join(f"{one.source.name}: {', '.join(one.needed[:4])}, ..." for one in _TABLES)
        raise RowError(f"{path}: no source publishes tables with the columns {', '.join(header)[:200]!r}; known ones "
                       f"have those of {known}")  # fmt: skip
    missing = ", ".join(repr(name) for name in nearest.needed if name.lower() not in found)
    raise RowError(f"{path}: of the columns of {nearest.source.name} {missing} is missing; the file has "
                   f"{', '.join(header)[:200]}")  # fmt: skip


def _rows(lines: Iterator[list[str]], names: Sequence[str], path: Path, known: KnownTable) -> Iterator[Row]:
    seen: set[str] = set()
    for number_of_line, values in _numbered(lines):
        while len(values) > len(names) and not values[-1].strip():
            values.pop()
        if len(values) != len(names):
            raise RowError(f"{path}, line {number_of_line}: it has another number of cells than the header: "
                           f"{len(values)}, not {len(names)}")  # fmt: skip
        try:
            row = known.row(dict(zip(names, values, strict=True)))
        except ValueError as error:
            raise RowError(f"{path}, line {number_of_line}: {error}") from None
        if row is None:
            continue
        if row.id in seen:  # measured twice, or with settings that no column tells
            row = with_fields(row, id=f"{row.id} (line {number_of_line})")
        seen.add(row.id)
        yield row


def _numbered(lines: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Lines in which something stands, each with its number."""
    for values in lines:
        if any(value.strip() for value in values):
            yield lines.line_num, values  # type: ignore[attr-defined]


# -- sources


def _megatron_plan(axes: ParallelDegrees) -> str:
    return "megatron" if axes.tp > 1 else "data_parallel"


def _checked_devices(cells: Cells, axes: ParallelDegrees, column: str) -> None:
    """Raise ValueError if a column of devices has another number than what they split."""
    if text(cells, column) and whole(cells, column) != axes.devices:
        told = f"not {text(cells, column)}, as {column!r} says"
        raise ValueError(f"tensor, data and pipeline parallelism are {axes.devices} GPUs, {told}")


def _vtrain(cells: Cells, recompute: Literal["none", "full"] = "full", inferred: tuple[str, ...] = ()) -> Row:
    sizes = {name: whole(cells, column) for name, column in _VTRAIN.items()}
    axes = ParallelDegrees(dp=sizes["d"], tp=sizes["t"], pp=sizes["p"])
    _checked_devices(cells, axes, _GPUS)
    model = DecoderModel(
        "gpt", sizes["hidden"], sizes["layers"], sizes["heads"], GPT_VOCABULARY, dropout=_MEGATRON_DROPOUT
    )
    shape = f"h{model.hidden} l{model.layers} s{sizes['sequence']} b{sizes['batch']}"
    return Row(
        id=f"vtrain {shape} {axes.devices} gpus {axes} m{sizes['micro']}",
        table=f"vtrain {shape} {axes.devices} gpus",
        model=model, sequence=sizes["sequence"], hardware="a100-4x200", axes=axes, plan=_megatron_plan(axes),
        global_batch=sizes["batch"], micro_batch=sizes["micro"],
        measured=Measurement(number(cells, "iteration time (ms)") / 1e3),
        recompute=recompute, precision="f16", attention="apart", fusion="kernels", inferred=("dropout", *inferred),
    )  # fmt: skip


def _vtrain_one_node(cells: Cells) -> Row:
    """A row on one node, where nothing is made again: of 8 sequences of 1,024 a layer takes 8.8 ms more if it is 2,048
    wide and not 1,024. Products that are made again have 2.5e12 operations more then, 280e12 a second were nothing else
    to grow with the width; in all other steps they reach 0.75 of the 312e12 of an A100. On more than one node whole
    layers are, whether or not the table has a column of parameters."""
    if whole(cells, "tensor parallelism") * whole(cells, "data parallelism") * whole(cells, "pipeline parallelism") > 8:
        return _vtrain(cells)
    return _vtrain(cells, "none", ("recompute",))


_MEGATRON_DROPOUT = 0.1
"""Of attention weights and of what is added to the residual, Megatron-LM's default."""
_GPUS = "# GPUs"
_VTRAIN = {
    "batch": "global batch", "micro": "micro batch", "hidden": "hidden size", "heads": "attention heads",
    "layers": "# layers", "sequence": "sequence length", "t": "tensor parallelism", "d": "data parallelism",
    "p": "pipeline parallelism",
}  # fmt: skip


def _megatron(cells: Cells) -> Row:
    words = whole(cells, "vocabulary") if text(cells, "vocabulary") else GPT_VOCABULARY
    hidden, layers, heads = (whole(cells, name) for name in ("hidden", "layers", "heads"))
    model = DecoderModel("gpt", hidden, layers, heads, words, dropout=_MEGATRON_DROPOUT)
    axes = ParallelDegrees(dp=whole(cells, "data"), tp=whole(cells, "tensor"), pp=whole(cells, "pipeline"))
    _checked_devices(cells, axes, "gpus")
    recompute, plan = one_of(cells, "recompute", _MEGATRON_RECOMPUTE)
    sequence, batch = whole(cells, "sequence"), whole(cells, "global_batch")
    told = one_told(cells, ("seconds", "tflops_per_gpu"))
    seconds = number(cells, told) if told == "seconds" else _by_operations(cells, model, sequence, batch, axes.devices)
    named = f"{text(cells, 'source')} {text(cells, 'model')}"
    return Row(
        id=f"{named} {axes} {'sp' if plan else recompute}", table=named,
        model=model, sequence=sequence, hardware=gpu(cells, "gpu"), axes=axes, plan=plan or _megatron_plan(axes),
        chunks=whole(cells, "interleave") if text(cells, "interleave") else 1,
        global_batch=batch, micro_batch=whole(cells, "micro_batch"), measured=Measurement(seconds),
        recompute=recompute, precision="f16", attention="apart", fusion="kernels",
        inferred=("dropout", *(() if text(cells, "vocabulary") else ("vocabulary",))),
    )  # fmt: skip


def _by_operations(cells: Cells, model: DecoderModel, sequence: int, batch: int, gpus: int) -> float:
    """Seconds of a step of which operations a second are told: Narayanan et al. 2021, equation 2."""
    hidden, layers = model.hidden, model.layers
    more = 1 + sequence / (6 * hidden) + model.vocabulary / (16 * layers * hidden)
    return 96 * batch * sequence * layers * hidden**2 * more / (gpus * number(cells, "tflops_per_gpu") * 1e12)


_Recompute = Literal["none", "attention", "full"]
_MEGATRON_RECOMPUTE: Mapping[str, tuple[_Recompute, str]] = {
    "none": ("none", ""), "selective": ("attention", ""), "full": ("full", ""),
    "sequence parallel": ("none", "megatron_sp"), "sequence parallel and selective": ("attention", "megatron_sp"),
    "sequence parallel and full": ("full", "megatron_sp"),
}  # fmt: skip
"""What is made again, and the plan where it is another one."""


def _torchtitan(cells: Cells) -> Row:
    model = one_of(cells, "model", LLAMA)
    parallel, name = text(cells, "parallel"), text(cells, "model")
    axes, chunks, words = _titan_axes(parallel)
    batch, sequence = whole(cells, "local_batch"), whole(cells, "sequence")
    if axes.devices != whole(cells, "gpus"):
        raise ValueError(f"parallel {parallel!r} is {axes.devices} GPUs, not {text(cells, 'gpus')}")
    compiled = one_of(cells, "compile", {"yes": "compiled", "no": "eager", "True": "compiled", "False": "eager"})
    micro = batch // axes.pp if batch % axes.pp == 0 else batch
    rate, peak = number(cells, "tokens_per_second_per_gpu"), text(cells, "memory_gib")
    again: Mapping[str, Literal["none", "products", "full"]] = {"none": "none", "selective": "products", "full": "full"}
    kinds: Mapping[str, Literal["bf16", "f8"]] = {"bf16": "bf16", "float8": "f8", "fp8": "f8"}
    return Row(
        id=f"{text(cells, 'source')} {name} {axes} s{sequence} {text(cells, 'precision')} {compiled}{words}",
        table=f"{text(cells, 'source')} {name}",
        model=model, sequence=sequence, hardware=gpu(cells, "gpu"), axes=axes,
        plan=_titan_plan(axes),
        global_batch=batch * axes.dp, micro_batch=micro,
        measured=Measurement(
            batch * axes.dp * sequence / (rate * axes.devices), number(cells, "memory_gib") if peak else None
        ),
        recompute=one_of(cells, "recompute", again), precision=one_of(cells, "precision", kinds),
        loss="parallel" if axes.tp > 1 else "apart",
        reduced="step" if axes.pp > 1 else "micro batch", fusion="inductor" if compiled == "compiled" else "eager",
        overlap=True,
        # As many micro batches as stages, and two stages for each group where they are interleaved: its defaults.
        chunks=chunks, inferred=("micro_batch", "chunks") if axes.pp > 1 else (),
    )  # fmt: skip


def _titan_axes(parallel: str) -> tuple[ParallelDegrees, int, str]:
    """What splits what, stages of each group, and what a row's name has of it: of "FSDP 8 TP 8 PP 8 Interleaved 1F1B".

    Raises:
        ValueError: a word that is none of these, or one of them twice.
    """
    parts: dict[str, int] = {}
    for word, size in _TITAN_PART.findall(parallel):
        axis = "dp" if word.lower() == "fsdp" else word.lower()
        if axis in parts or not int(size):
            raise ValueError(f"parallel is {parallel!r}: {word} stands there twice, or over no devices")
        parts[axis] = int(size)
    others = [word for word in re.split(r"[\s,+/;-]+", _TITAN_PART.sub(" ", parallel).lower()) if word]
    if unknown := [word for word in others if word not in _TITAN_WORDS]:
        raise ValueError(f"parallel is {parallel!r}: {unknown[0]!r} is not known; it is such as "
                         "'FSDP 8 TP 8 PP 8 Interleaved 1F1B', with TP async, and with CP")  # fmt: skip
    turns, ahead = any("interleaved" in word for word in others), "async" in parallel.lower()
    return ParallelDegrees(**parts), 2 if turns else 1, " interleaved" * turns + " async" * ahead


_TITAN_PART = re.compile(r"\b(?:async[ -]?)?(FSDP|TP|CP|PP)[ =]*([0-9]{1,9})\b", re.IGNORECASE)
_TITAN_WORDS = ("async", "asynctp", "tp", "1f1b", "interleaved", "interleaved1f1b")


def _titan_plan(axes: ParallelDegrees) -> str:
    """FSDP's; in stages weights are gathered once for all micro batches and gradients reduced once, as it has them."""
    return _plan_of("zero3_keep", axes) if axes.pp > 1 else _plan_of("zero3", axes)


def _llm_foundry(cells: Cells) -> Row:
    model = one_of(cells, "Model", {**MPT, **{f"mpt-{name}": model for name, model in MPT.items()}})
    name, sequence, gpus = text(cells, "Model"), whole(cells, "SeqLen (T)"), whole(cells, _GPUS)
    micro = whole(cells, "MicroBatchSize")
    told = one_told(cells, ("GlobalBatchSize", "GradAccum"))
    batch = whole(cells, told) if told == "GlobalBatchSize" else micro * whole(cells, told) * gpus
    times = whole(cells, "GradAccum") if text(cells, "GradAccum") else batch // (micro * gpus)
    if micro * times * gpus != batch:
        raise ValueError(f"{times} times {micro} sequences on {gpus} GPUs are not GlobalBatchSize {batch}")
    if text(cells, "Activation CPUOffload") and truth(cells, "Activation CPUOffload"):
        raise ValueError("Activation CPUOffload is True; it is False: no plan moves activations to the host")
    again = truth(cells, "Activation Checkpointing")
    kinds: Mapping[str, Literal["bf16", "f8"]] = {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp8": "f8", "fp8": "f8"}
    precision, hardware = one_of(cells, "Precision", kinds), gpu(cells, "GPU")
    words = f"{name} s{sequence} {gpus} {text(cells, 'GPU')}"
    return Row(
        id=f"llm-foundry {words} m{micro} x{times} {text(cells, 'Precision')}",
        table=f"llm-foundry {words}",
        model=model, sequence=sequence, hardware=hardware,
        axes=ParallelDegrees(dp=gpus), plan=one_of(cells, "Sharding Strategy", _FSDP), global_batch=batch,
        micro_batch=micro, measured=Measurement(batch * sequence / _tokens_a_second(cells, gpus, sequence)),
        recompute="full" if again else "none", precision=precision, reduced="micro batch", overlap=True,
        attention="older", inferred=("attention",),
    )  # fmt: skip


_RATES = "Throughput (T/s/GPU)", "Throughput (T/s)", "Throughput (S/s)"


def _tokens_a_second(cells: Cells, gpus: int, sequence: int) -> float:
    """Of all GPUs: the rate of the whole job is rounded to whole sequences; that of a GPU has four digits."""
    told = one_told(cells, _RATES)
    return number(cells, told) * {_RATES[0]: gpus, _RATES[1]: 1, _RATES[2]: sequence}[told]


_FSDP = {"FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero3_keep"}


def _simumax(cells: Cells) -> Row | None:
    if text(cells, "status") not in ("ok", ""):
        return None
    case = text(cells, "case")
    model, found, words = _simumax_case(case)
    axes = ParallelDegrees(**{one: found[one] for one in ("tp", "pp", "dp", "cp", "ep") if one in found})
    layers, micro, peak = found.get("l", model.layers), found.get("mbs", 1), text(cells, "real alloc GiB")
    return Row(
        id=f"simumax {case}", table=f"simumax {' '.join(words[:1])} l{layers}",
        model=with_fields(model, layers=layers), sequence=found.get("seq", 4096),
        hardware=gpu(cells, "gpu") if text(cells, "gpu") else "b200", axes=axes, plan=_plan_of("zero3_keep", axes),
        chunks=found.get("vpp", 1), global_batch=axes.dp * micro * found["mbc"], micro_batch=micro,
        measured=Measurement(number(cells, "real ms") / 1e3, number(cells, "real alloc GiB") if peak else None),
        recompute="full" if _FULL in words else "none", precision="f8" if "fp8" in words else "bf16",
        loss="fused" if "cef" in words else "apart",
        fusion="xla", inferred=(*(() if "mbs" in found else ("micro_batch",)), "plan", "fusion"),
    )  # fmt: skip


def _simumax_case(case: str) -> tuple[DecoderModel, dict[str, int], list[str]]:
    """The model, the sizes and the words of a case, the name of its model first: of "llama3_70b_l12_tp8_pp1_mbc4_cef".

    Raises:
        ValueError: another model, a size that is missing, or a word that is not known.
    """
    words = case.lower().replace("full_recompute", _FULL).split("_")
    sizes = {word: match for word in words if (match := _SIMUMAX_SIZE.fullmatch(word))}
    found = {match[1]: int(match[2]) for match in sizes.values()}
    others = [word for word in words if word not in sizes]
    length = next((n for n in range(len(others), 0, -1) if "_".join(others[:n]) in SIMUMAX), 0)
    if not length or not {"tp", "pp", "mbc"} <= set(found) or not all(found.values()):
        raise ValueError(f"case is {case!r}; it begins with one of {', '.join(SIMUMAX)} and names tp, pp and mbc")
    name, rest = "_".join(others[:length]), others[length:]
    if unknown := [word for word in rest if word not in ("cef", "bf16", "fp8", _FULL)]:
        raise ValueError(
            f"case is {case!r}: behind {name} {unknown[0]!r} is not known; there are l, tp, pp, dp, cp, "
            f"ep, vpp, mbc, mbs, seq with a number, cef, bf16, fp8, full_recompute"
        )
    return SIMUMAX[name], found, [name, *rest]


_SIMUMAX_SIZE = re.compile(r"(tp|pp|dp|cp|ep|vpp|l|mbc|mbs|seq)([0-9]{1,9})")
_FULL = "fullrecompute"


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


_MIXED = "mixed precision with f32 parameters and Adam"
_TABLES = (
    KnownTable(
        RowsSource("vtrain", "Bang et al. 2024, vTrain (MICRO), data/ of VIA-Research/vTrain: A100-80GB, 8 a node, "
               "4 x HDR200, Megatron-DeepSpeed", "MIT", "whole layers are made again; " + _MIXED),
        ("Parameters (billion)", *_VTRAIN.values(), "iteration time (ms)"), (_GPUS,), _vtrain,
    ),
    KnownTable(
        RowsSource("vtrain on one node", "the same, on 1 to 8 GPUs of one node", "MIT",
               "exactly linear in micro batches: made from fewer measurements than rows; nothing is made again"),
        (*_VTRAIN.values(), "iteration time (ms)"), (_GPUS,), _vtrain_one_node,
    ),
    KnownTable(
        RowsSource("megatron", "Narayanan et al. 2021 (SC21), table 1; Korthikanti et al. 2022 (2205.05198), table 5",
               notes=_MIXED),
        ("source", "model", "layers", "hidden", "heads", "sequence", "gpu", "tensor", "pipeline", "data",
         "global_batch", "micro_batch", "recompute"),
        ("gpus", "vocabulary", "interleave", "tflops_per_gpu", "seconds"), _megatron,
    ),
    KnownTable(
        RowsSource("torchtitan", "pytorch/torchtitan, benchmarks of 2024-12, H100 of 96 GB at 500 W", "BSD-3-Clause",
               "every second product is made again (selective); FlashAttention"),
        ("source", "model", "gpus", "gpu", "parallel", "local_batch", "sequence", "recompute", "precision", "compile",
         "tokens_per_second_per_gpu"), ("memory_gib",), _torchtitan,
    ),
    KnownTable(
        RowsSource("llm-foundry", "mosaicml/llm-foundry, scripts/train/benchmarking", "Apache-2.0",
               "FSDP, FlashAttention, eager; gradients are reduced after each micro batch"),
        ("Model", "SeqLen (T)", _GPUS, "GPU", "MicroBatchSize", "Precision", "Sharding Strategy",
         "Activation Checkpointing"),
        ("GradAccum", "GlobalBatchSize", "Activation CPUOffload", *_RATES), _llm_foundry,
    ),
    KnownTable(
        RowsSource("simumax", "MooreThreads/SimuMax, B200 summary 1.2", "Apache-2.0",
               "milliseconds and allocated GiB that were measured, not simulated"),
        ("case", "real ms"), ("real alloc GiB", "status", "gpu"), _simumax,
    ),
)  # fmt: skip
