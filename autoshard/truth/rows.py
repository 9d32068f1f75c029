"""Rows: training steps that somebody measured, in one form whatever their source; read from files and checked.

A file of rows is JSON: `{"format": "autoshard truth", "version": 1, "source": {...}, "rows": [...]}`, with the fields
of `RowsSource` and `Row`. Tables of known sources are read as they were published, as CSV (`tables.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from autoshard.util.errors import AutoshardError
from costmodel import preset
from costmodel.json_door import JsonError, Natural, Positive, Record, between, described, read, schema

FORMAT, VERSION = "autoshard truth", 1
Share = Annotated[float, between(0, 1)]
Seconds = Annotated[float, described("seconds of a whole step, all micro batches and the update")]


class RowError(AutoshardError):
    """A table of measured steps that cannot be read, or a row that contradicts itself."""


class DecoderModel(Record, frozen=True):
    """A decoder: which kind, and its sizes.

    "gpt" has layer norms, GELU, learned positions, biases and a tied embedding; "mpt" is the same without biases;
    "llama" has RMS norms, SiLU with a gate, rotary positions and an embedding of its own for the logits; "mixture" is
    that with experts in each layer, and with latent attention where it has latents.
    """

    builder: Literal["gpt", "mpt", "llama", "mixture"]
    hidden: Positive = 1
    layers: Positive = 1
    heads: Positive = 1
    vocabulary: Positive = 1
    ffn: Positive | None = None
    """Width of the feed-forward part; 4 times hidden where it is not said."""
    kv_heads: Positive | None = None
    dropout: Share = 0.0
    experts: Natural = 0
    active: Annotated[Positive, described("experts that a token goes to")] = 1
    expert_inner: Annotated[Natural, described("width of an expert")] = 0
    shared_inner: Annotated[Natural, described("width of the expert that all tokens go to")] = 0
    query_latent: Annotated[Natural, described("width of what queries are made of, in latent attention")] = 0
    key_latent: Annotated[Natural, described("width of what keys and values are made of")] = 0
    head_width: Annotated[
        Natural, described("of a head, in latent attention without its rotated part; hidden / heads")
    ] = 0
    rotary: Annotated[Natural, described("width of the rotated part of queries and keys")] = 0

    @property
    def inner(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def is_llama(self) -> bool:
        """Whether norms, positions and logits are those of "llama"."""
        return self.builder in ("llama", "mixture")


class ParallelDegrees(Record, frozen=True):
    """Devices by what they split: data, tensor, sequence (context), experts, stages of a pipeline."""

    dp: Positive = 1
    tp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    pp: Positive = 1

    @property
    def devices(self) -> int:
        """Experts lie along the devices that split data."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def of_stage(self) -> ParallelDegrees:
        """Those of one stage."""
        return ParallelDegrees(self.dp, self.tp, self.cp, self.ep)

    @property
    def mesh(self) -> str:
        """The mesh of a plan, tensor parallelism innermost; axes of one device are left out. Of the devices that split
        data those that split experts, too, are an axis of their own."""
        named = {"dp": self.dp // self.ep, "ep": self.ep, "cp": self.cp, "tp": self.tp}
        return " ".join(f"{name}={size}" for name, size in named.items() if size > 1) or "dp=1"

    def __str__(self) -> str:
        named = {name: getattr(self, name) for name in ("pp", "dp", "ep", "cp", "tp")}
        return " ".join(f"{name}={size}" for name, size in named.items() if size > 1) or "dp=1"


class Measurement(Record, frozen=True):
    """What was measured, in seconds of a step; memory where the source tells it."""

    seconds: Seconds
    peak_gib: float | None = None


class Row(Record, frozen=True):
    """One measured training step. Batches are counted in sequences; a micro batch is that of one data-parallel rank."""

    id: str
    table: Annotated[str, described("rows that differ in their plans alone share a table, and are ranked in it")]
    model: DecoderModel
    sequence: Positive
    hardware: Annotated[str, described("a preset of costmodel")]
    axes: ParallelDegrees
    plan: Annotated[str, described("a named plan, such as zero3; of stages that of each of them")]
    global_batch: Positive
    micro_batch: Positive
    measured: Measurement
    recompute: Annotated[
        Literal["none", "attention", "products", "full"],
        described("what is made again for the backward pass: attention, every second product, or whole layers"),
    ] = "none"
    precision: Literal["f16", "bf16", "f8"] = "bf16"
    attention: Annotated[
        Literal["apart", "older", "fused"],
        described("several kernels, the first fused ones (FlashAttention, early 2023), or FlashAttention-2 and later"),
    ] = "fused"
    loss: Annotated[
        Literal["fused", "apart", "parallel"],
        described(
            "one kernel of logits; the logarithms of a softmax in f32 and one of each row taken from them; or one "
            "kernel of columns of logits, whose gradient takes one more of their size (PyTorch's loss_parallel)"
        ),
    ] = "fused"
    reduced: Annotated[
        Literal["step", "micro batch"], described("when gradients are reduced: once a step, or after each micro batch")
    ] = "step"
    fusion: Annotated[
        Literal["none", "eager", "kernels", "xla", "inductor"],
        described("which operators are one kernel: none, none and views are free, hand-written ones, compiled ones"),
    ] = "eager"
    chunks: Annotated[
        Positive, described("stages that each group of devices runs, with pp: 1, or more in turn (interleaved)")
    ] = 1
    overlap: Annotated[bool, described("whether collectives run beside operators that do not need them")] = False
    inferred: Annotated[tuple[str, ...], described("fields that the source does not tell")] = ()

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.axes.dp)


class RowsSource(Record, frozen=True):
    """Where rows are from: a name, what to cite, and what is known of all of them."""

    name: str
    cite: str
    licence: str = ""
    notes: str = ""


class TableFile(Record, frozen=True):
    """The whole file."""

    format: Literal["autoshard truth"]
    version: Literal[1]
    source: RowsSource
    rows: tuple[Row, ...]


class Table(Record, frozen=True):
    """A source and its rows."""

    source: RowsSource
    rows: tuple[Row, ...]


def read_rows(path: str | Path) -> Table:
    """The rows of a JSON file.

    Raises:
        RowError: no such file, something else in it, or a row that contradicts itself.
    """
    try:
        found = read(path, TableFile)
    except OSError as error:
        raise RowError(f"cannot read the measured steps {path}: {error.strerror or error}") from None
    except JsonError as error:
        raise RowError(f"{path} is no file of measured steps: {error}") from None
    return checked(Table(found.source, found.rows), str(path))


def rows_schema() -> dict:
    """The JSON schema of a file of rows."""
    return schema(TableFile, "training steps that were measured")


def checked(table: Table, where: str) -> Table:
    """The table, if no row contradicts itself and no two have one name.

    Raises:
        RowError: the first that does, by its name.
    """
    seen: set[str] = set()
    for row in table.rows:
        wrong = "its name stands there twice" if row.id in seen else _contradiction(row)
        if wrong:
            raise RowError(f"{where}, row {row.id!r}: {wrong}")
        seen.add(row.id)
    return table


def _contradiction(row: Row) -> str:
    """What is wrong with a row; empty if nothing is."""
    model, each = row.model, row.micro_batch * row.axes.dp
    if row.global_batch % each:
        return (
            f"a global batch of {row.global_batch} is no multiple of {row.micro_batch} sequences on each of "
            f"{row.axes.dp} data-parallel ranks ({each})"
        )
    if why := _experts_contradiction(model) or _too_large(row):
        return why
    if model.hidden % model.heads and not model.head_width:
        return f"{model.heads} heads do not divide a hidden size of {model.hidden}"
    if model.kv_heads and model.heads % model.kv_heads:
        return f"{model.kv_heads} heads of keys and values do not divide {model.heads} heads"
    least, most = SECONDS
    if not least <= row.measured.seconds <= most:
        measured = f"{row.measured.seconds:.6g} seconds were measured"
        return f"{measured}; a step takes {least:g} to {most:g} (are these milliseconds?)"
    peak = row.measured.peak_gib
    if peak is not None and not 0 < peak <= PEAK_GIB:
        return f"a peak of {peak} GiB was measured; it is above 0 and at most {PEAK_GIB}"
    return _too_fast(row)


def _experts_contradiction(model: DecoderModel) -> str:
    """What is wrong with the experts or latents of a model; empty if nothing."""
    if model.experts and model.builder != "mixture":
        return f"a model {model.builder!r} with {model.experts} experts: it is mixtures that have these"
    if model.experts and (model.active > model.experts or not model.expert_inner):
        return f"tokens go to {model.active} of {model.experts} experts of width {model.expert_inner}"
    latent = {one: getattr(model, one) for one in ("query_latent", "key_latent", "rotary")}
    if any(latent.values()) and not (model.head_width and all(latent.values())):
        return f"of latent attention all is told or nothing, not {latent} and head_width {model.head_width}"
    return ""


def _too_large(row: Row) -> str:
    """What of a row is larger than anybody trains; empty if nothing. Tables of positions are made, of others types."""
    model, samples = row.model, row.micro_batch * row.axes.dp
    if row.sequence > MOST_TOKENS:
        return f"sequences of {row.sequence} tokens; they have at most {MOST_TOKENS}"
    if row.axes.devices > MOST_DEVICES:
        return f"{row.axes} are {row.axes.devices} devices; there are at most {MOST_DEVICES}"
    inner = max(model.inner, model.shared_inner, model.vocabulary)
    weight = model.hidden * max(inner, model.experts * max(1, model.expert_inner))
    values = samples * row.sequence * max(model.hidden, inner, max(1, model.active) * model.expert_inner)
    scores = samples * model.heads * row.sequence**2
    for words, count in (("a weight", weight), ("a value of a micro batch", values), ("its scores", scores)):
        if count > MOST_ELEMENTS:
            return f"{words} would have {count} elements; {MOST_ELEMENTS} are the most"
    return ""


def _too_fast(row: Row) -> str:
    """What is wrong with a step that takes less than its products do at the peak of all devices; empty if nothing."""
    model = row.model
    try:
        device = preset(row.hardware).device
    except ValueError:
        return ""  # a name that stands for a file is known where rows are predicted
    products = model.layers * 2 * model.hidden * (model.hidden + model.inner)  # less than any builder has
    operations = 6 * row.global_batch * row.sequence * products
    least = operations / (row.axes.devices * max(rate for _, rate in device.peak_flops))
    if row.measured.seconds < least and model.builder != "mixture":
        return (
            f"{row.measured.seconds:.6g} seconds were measured; its products alone take {least:.3g} at the peak of "
            f"{row.axes.devices} {row.hardware} (another unit?)"
        )
    return ""


SECONDS = 1e-4, 3600.0
"""Seconds between which a step of training lies: what is outside is a mistake of units."""
PEAK_GIB = 1024.0
"""GiB that no device has yet."""
MOST_TOKENS = 2**20
MOST_DEVICES = 2**20
MOST_ELEMENTS = 2**53
"""Of one tensor over all devices: sums of their bytes fit into 64 bits."""
