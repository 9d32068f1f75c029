"""Every text that people write or other programs print: what is changed in it is read rightly or refused, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.cli.planned import read_options
from autoshard.cli.redistributing import read_change
from autoshard.cli.target import TargetError
from autoshard.core.rule import Rule, bind
from autoshard.core.rule_sdy import parse_sdy_rule, show_sdy
from autoshard.core.tensortype import TensorType
from autoshard.exporters.ir_parse import parse_dump, show_dump
from autoshard.exporters.mindspore import parse_lines
from autoshard.ir.text import parse, show
from autoshard.layout import Layout, Mesh
from autoshard.layout.sdy_text import (
    parse_manual_axes,
    parse_mesh,
    parse_per_value,
    parse_sharding,
    show_mesh,
    show_per_value,
    show_sharding,
)
from autoshard.layout.spec import Spec
from autoshard.layout.tensor_map import TensorMap
from autoshard.search.memory_limit import read_limit
from autoshard.util.errors import AutoshardError
from costmodel import parse_bytes
from tests.readers.guard import survive
from tests.readers.mutations import mutations

COUNT = 300
MESH = Mesh(dp=2, tp=4)


@dataclass(frozen=True)
class Reader:
    """How a text is read, and what is true of all that is read: its own text is read as the same."""

    read: Callable[[str], Any]
    samples: tuple[str, ...]
    show: Callable[[Any], str] | None = None
    errors: tuple[type[Exception], ...] = (AutoshardError,)


def _graph_text() -> str:
    def model(x, w):
        start = np.int32(0), x
        y = ops.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, ops.matmul(state[1], w)), start)[1]
        z = ops.transpose(ops.reshape(ops.softmax(ops.relu(y), axis=-1), (8, 4, 4)), (0, 2, 1))
        return ops.concat((ops.reduce_sum(z, 1), ops.reduce_max(z, 1)), 1)

    return show(ash.trace(model, np.ones((8, 16), np.float32), np.ones((16, 16), np.float32)).graph)


def _dump_text(folder: Path) -> str:
    planned = ash.plan(
        lambda x, w: ops.relu(ops.matmul(x, w)), (np.ones((8, 16), np.float32), np.ones((16, 6), np.float32)), "tp=2"
    )
    return planned.dump(folder, [0])[1].read_text()


def _reparsed_sharding(text: str) -> Any:
    return parse_sharding(text, {"mesh": MESH})


READERS = {
    "mesh": Reader(Mesh.parse, ("dp=2 tp=4", "dp=2,tp=4", "2x4", "8", "a=2 b=2 order=0.2.1.3"), str),
    "layout": Reader(
        lambda text: Layout.parse(text, MESH), ("dp, tp", "dp.tp, -", "dp, - +tp", "tp:(1)2, tp:(2)2 max dp", "()"), str
    ),
    "tensor map": Reader(
        lambda text: (TensorMap.parse(text), TensorMap.parse(text).layout(MESH))[0],
        ("device_matrix [2, 4] tensor_map [1, -1]", "device_matrix [2, 2, 2] tensor_map [(2, 1), 0, -1]"),
        str,
    ),
    "type": Reader(TensorType.parse, ("f32[64, 1024]", "i8[]", "bf16[3]"), str),
    "sharding": Reader(
        _reparsed_sharding,
        ('<@mesh, [{"dp"}, {"tp":(1)2, ?}p1], replicated={"tp":(2)2}>', '<@mesh, [{}, {?}], unreduced=max{"tp"}>'),
        show_sharding,
    ),
    "shardings": Reader(
        lambda text: parse_per_value(text, {"mesh": MESH}),
        ('<[<@mesh, [{"dp"}]>, <@mesh, [{?}, {"tp"}]>]>', '[<mesh<["a"=2]>, [{"a"}]>]'),
        show_per_value,
    ),
    "sdy mesh": Reader(
        parse_mesh, ('<["x"=2, "y"=4]>', '<["x"=2], device_ids=[1, 0]>', "<[], device_ids=[3]>"), show_mesh
    ),
    "manual axes": Reader(parse_manual_axes, ('{"x", "y"}', '#sdy<manual_axes{"x"}>')),
    "spec": Reader(
        lambda text: (Spec.of(text), Spec.of(text).on(MESH, 2))[0],
        ("[{dp}, {tp, ?}]", '[{"dp"}p1, {"tp":(1)2}], replicated={"tp":(2)2}'),
        str,
    ),
    "rule": Reader(
        lambda text: bind(text, [(4, 6, 10), (10, 8)], {"h": 2}),
        ("... m k, k n -> ... m n", "b (h d) [k], k! n~ -> b h d n", "a b k, k n^2 -> a b n by max"),
    ),
    "bound rule": Reader(Rule.parse, ("m k, k n -> m n {m=4, k=6, n=10}", "b (h d) -> b h d {b=2, h=3, d=4}"), str),
    "sdy rule": Reader(
        lambda text: parse_sdy_rule(text)[0],
        ("([i, k], [k, j])->([i, j]) {i=4, j=6, k=8} reduction={k}", "([ij])->([i, j]) {i=2, j=3} permutation={j}"),
        show_sdy,
    ),
    "einsum": Reader(
        lambda text: ash.trace(lambda x, y: ops.einsum(text, x, y), np.ones((2, 3)), np.ones((3, 4))).graph,
        ("ij,jk->ik", "ij,jk->ki"),
    ),
    "shard lines": Reader(
        parse_lines, ("dense1.matmul.shard(((2, 1), (1, 4)))  # MatMul\n\n# comment\nrelu.shard(((2, 4),))\n",)
    ),
    "options": Reader(
        lambda text: read_options(text.split(" ")), ("axes=2 mode=factor time_limit=30.5",), errors=(TargetError,)
    ),
    "change": Reader(
        lambda text: read_change(text, MESH), ("f32[64, 32] dp, - -> -, tp", "f32[64, 32] dp, tp -> -, -")
    ),
    "memory": Reader(read_limit, ("80 GiB", "16000000", ".5 kB")),
    "bytes": Reader(parse_bytes, ("80 GiB", "1.5MB"), errors=(ValueError,)),
}


@pytest.mark.parametrize("name", READERS)
def test_changed_texts(name, tmp_path):
    reader = READERS[name]

    def read(sample: bytes) -> Any:
        return reader.read(sample.decode("utf-8", "replace"))

    def right(found: Any) -> None:
        if reader.show is not None:
            again = reader.read(reader.show(found))
            assert reader.show(again) == reader.show(found)

    each = -(-COUNT // len(reader.samples))
    read_count = refused = 0
    for seed, sample in enumerate(reader.samples):
        right(read(sample.encode()))
        counts = survive(read, mutations(sample, each, seed), tmp_path, right, reader.errors)
        read_count, refused = read_count + counts[0], refused + counts[1]
    assert read_count + refused >= COUNT and refused


def test_changed_graphs(tmp_path):
    text = _graph_text()
    survive(
        lambda sample: parse(sample.decode("utf-8", "replace")),
        mutations(text, COUNT, 1),
        tmp_path,
        lambda graph: None if show(parse(show(graph))) == show(graph) else pytest.fail("another text"),
    )


def test_changed_dumps(tmp_path):
    text = _dump_text(tmp_path)
    assert show_dump(parse_dump(text)) == text
    survive(
        lambda sample: parse_dump(sample.decode("utf-8", "replace")),
        mutations(text, COUNT, 2),
        tmp_path,
        lambda dump: None if show_dump(parse_dump(show_dump(dump))) == show_dump(dump) else pytest.fail("another text"),
    )
