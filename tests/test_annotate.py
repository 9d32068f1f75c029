"""Annotations by patterns of names: what they ask is planned; patterns and placements that do not fit are refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.annotate import Ask, annotate, load_annotations
from autoshard.api import plan
from autoshard.layout import Layout, Mesh
from autoshard.trace.function import trace
from autoshard.util.errors import MeshError, ParseError, ShardingError, UnknownNameError

X = np.ones((24, 12), np.float32)
MESH = Mesh(dp=2, tp=4)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Dense(12, 16), nn.Dense(16, 12)

    def construct(self, x):
        return self.down_proj(ops.relu(self.up_proj(x)))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([Block(), Block()])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def traced():
    return trace(Net(), X)


def names() -> list[str]:
    return [value.name for value in traced().graph.inputs]


def layouts(patterns, search="factor"):
    found = plan(annotate(traced(), patterns, MESH), mesh=MESH, search=search)
    return {value.name: str(found.plan.layouts[value]) for value in found.graph.inputs}


@pytest.mark.parametrize("search", ["factor", "sharding_propagation"])
@pytest.mark.parametrize(
    "given",
    [
        ("-", "tp"),
        (None, ("tp",)),
        "[{}, {tp}]",
        ["R", "S(1)"],
        ["R", "Shard(-1)"],
        (1, 4),
        Layout.parse("-, tp", MESH),
    ],
    ids=str,
)
def test_a_pattern_asks_of_all_that_it_matches(given, search):
    asks = {"x": ("dp", "-"), "layers.*.up_proj": given}
    found = layouts(asks if given != (1, 4) else {"x": ("dp", "-"), "layers.*.up_proj": ("-", "tp")}, search)
    assert [of for name, of in found.items() if name.endswith("up_proj.weight")] == ["-, tp"] * 2
    assert found["x"] == "dp, -"


def test_parts_are_laid_over_the_mesh():
    asked = annotate(traced(), {"**.up_proj": (2, 4)}, MESH).asked
    assert {str(spec) for spec in asked.values.values()} == {str(annotated("dp", "tp"))} and len(asked.values) == 2


def annotated(*dims):
    from autoshard.layout.spec import Spec

    return Spec.of(Layout(MESH, [(MESH.axis(name),) for name in dims]))


def test_operators_take_strategies():
    model = traced()
    label = next(node.label for node in model.graph.nodes if node.op.name == "MatMul")
    matching = [label, label.replace("0", "1", 1)]
    asked = annotate(model, {label.replace("0", "*", 1): ((2, 1), (4, 1))})
    found = plan(asked, mesh=MESH, search="sharding_propagation")
    strategies = [found.plan.strategy(node).in_strategy for node in found.graph.nodes if node.label in matching]
    assert strategies == [((2, 1), (4, 1))] * 2


def test_later_patterns_replace_and_priorities_are_kept():
    asked = annotate(traced(), {"**.weight": ("dp", None), "layers.1.*.weight": Ask(("tp", "?"), 2)}, MESH).asked
    assert [str(spec) for spec in asked.values.values()] == ['[{"dp"}, {}]'] * 2 + ['[{"tp"}p2, {?}p2]'] * 2


def test_a_file_holds_annotations(tmp_path):
    path = tmp_path / "asks.json"
    asks = {"x": ["dp", None], "**.up_proj": {"given": ["-", ["tp"]], "priority": 1}}
    path.write_text(json.dumps({"format": "autoshard annotations 1", "annotations": asks}))
    assert load_annotations(path) == {"x": ("dp", None), "**.up_proj": Ask(("-", ("tp",)), 1)}
    assert layouts(load_annotations(path))["layers.1.up_proj.weight"] == "-, tp"
    path.write_text("{}")
    with pytest.raises(ParseError, match="cannot read the file of annotations .*missing required field `format`"):
        load_annotations(path)
    with pytest.raises(ParseError, match="cannot read the file of annotations .*No such file"):
        load_annotations(tmp_path / "none.json")


UP = "layers.0.up_proj.weight (f32[16, 12])"


@pytest.mark.parametrize(
    ("patterns", "kind", "message"),
    [
        ({"layers.*.up_prj": ("-", "tp")}, UnknownNameError,
         "pattern 'layers.*.up_prj' matches no input or parameter; the nearest names are layers."),
        ({"layers.*": ("-", "tp")}, UnknownNameError, "pattern 'layers.*' matches no input or parameter; the nearest"),
        ({"up": ((2, 1),)}, UnknownNameError, "pattern 'up' matches no operator; the nearest names are"),
        ({"**.up_proj": ("tp",)}, ShardingError, f"{UP} is asked to lie as [{{\"tp\"}}], which is for 1 dims, but"),
        ({"**.up_proj": ("mp", None)}, ShardingError, "axis 'mp' is not in the mesh, which is 'dp=2 tp=4'"),
        ({"**.up_proj": ("tp", "tp")}, ShardingError, "tp"),
        ({3: ("tp", None)}, ShardingError, "annotate: 3 is no pattern of names; write text"),
        ({"**.up_proj": ["S(2)", "R"]}, ShardingError, f"{UP} cannot be placed as S(2) along 'dp': it has 2 dims"),
        ({"**.up_proj": ["S(0)"]}, ShardingError, "1 placements ['S(0)'] for the 2 axes of mesh 'dp=2 tp=4'"),
        ({"**.up_proj": (2, 1, 1)}, ShardingError, f"{UP} has 2 dims, which the parts (2, 1, 1) do not fit"),
        ({"**.up_proj": (3, 1)}, ShardingError, f"{UP} cannot be split into (3, 1): "),
        ({"**.matmul": ((2,), (1, 1))}, ShardingError, "operands of [2, 2] dims, which ((2,), (1, 1)) does not fit"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(patterns, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        annotate(traced(), patterns, MESH)


def test_placements_need_a_mesh():
    with pytest.raises(MeshError, match="says something for each mesh axis or device; give the mesh"):
        annotate(traced(), {"x": ["S(0)", "R"]})
    with pytest.raises(ShardingError, match="annotate takes something traced or imported, not int"):
        annotate(3, {"x": (None, None)})
