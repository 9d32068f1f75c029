"""MindSpore's forms of plans: strategy checkpoints and shard lines are written and read back; bad ones are refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from autoshard.api import plan
from autoshard.exporters.mindspore import (
    differences,
    from_checkpoint,
    parse_lines,
    save_checkpoint,
    shard_lines,
    to_checkpoint,
)
from autoshard.layout import Mesh
from autoshard.util.errors import LayoutError, ParseError
from tests.search.plans import FFN

X = np.ones((24, 12), np.float32)


def planned(mesh: str = "dp=2 tp=4", search: str = "factor"):
    return plan(FFN(((2, 1), (1, 4)), sizes=(12, 24, 8)), (X,), mesh=mesh, search=search)


@pytest.mark.parametrize("search", ["factor", "megatron", "bfs"])
def test_a_strategy_checkpoint_is_read_back(tmp_path, search):
    made = planned(search=search)
    found = from_checkpoint(save_checkpoint(made.plan, tmp_path / "strategies.json"))
    wanted = {node.label: made.plan.strategy(node).in_strategy for node in made.graph.nodes}
    assert dict(found.operators) == wanted
    layouts = {value.name: made.plan.layouts[value] for value in made.graph.inputs[1:]}
    assert found.layouts(made.plan.mesh) == {name: layouts[name] for name in found.parameters}
    assert found.parameters and not differences(found, made.plan)


def test_the_device_matrix_counts_from_the_right():
    made = planned(search="megatron", mesh="dp=2 tp=4")
    (name, item), *_ = to_checkpoint(made.plan)["parallel_layout_item"].items()
    layout = next(made.plan.layouts[value] for value in made.graph.inputs if value.name == name)
    assert item["dev_matrix"] == [2, 4]
    assert item["tensor_map"] == [{"": -1, "dp": 1, "tp": 0}["".join(ref.name for ref in dim)] for dim in layout.dims]
    assert item["tensor_shape"] == list(next(v for v in made.graph.inputs if v.name == name).type.shape)


def test_shard_lines_are_read_back():
    made = planned()
    text = shard_lines(made.plan)
    assert parse_lines("# a comment\n\n" + text).operators == from_checkpoint(to_checkpoint(made.plan)).operators
    first = text.splitlines()[0]
    assert re.fullmatch(r"\S+\.shard\(\(\(\d+, \d+\), \(\d+, \d+\)\)\)  # MatMul", first), first


def test_lines_of_one_operand_are_tuples():
    found = parse_lines("relu.shard(((2, 4),))\nx.y.shard(((2,), (1,)))")
    assert found.operators == {"relu": ((2, 4),), "x.y": ((2,), (1,))}


def test_differences_are_told():
    made = planned()
    changed = shard_lines(made.plan).replace(".shard(((", ".shard(((3, ", 1) + "other.shard(((1,),))\n"
    first, last = differences(parse_lines(changed), made.plan)
    assert " in the plan, ((3, " in first and last == "other: not in the plan"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "the strategy checkpoint has neither 'parallel_strategy_item' nor 'parallel_layout_item'; it is no "
             "strategy checkpoint"),
        ({"parallel_strategy_item": {"a": {"stage": 0}}},
         "cannot read the strategy checkpoint: a: Object missing required field `parallel_strategy`"),
        ({"parallel_strategy_item": {"a": {"parallel_strategy": [[0, 2]]}}},
         "cannot read the strategy checkpoint: a: Expected `int` >= 1 - at `$.parallel_strategy[0][0]`"),
        ({"parallel_layout_item": {"w": {"dev_matrix": [2], "tensor_map": [-2]}}},
         "cannot read the strategy checkpoint: w: Expected `int` >= -1 - at `$.tensor_map[0]`"),
    ],
)  # fmt: skip
def test_a_bad_checkpoint_is_refused(data, message):
    with pytest.raises(ParseError) as error:
        from_checkpoint(data)
    assert str(error.value) == message


def test_bad_files_and_lines_are_refused(tmp_path):
    with pytest.raises(ParseError, match="cannot read the strategy checkpoint .*: No such file"):
        from_checkpoint(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ParseError, match="cannot read the strategy checkpoint .*bad.json: "):
        from_checkpoint(tmp_path / "bad.json")
    with pytest.raises(ParseError, match=r"line 2: 'matmul' is not of the form name.shard\(\(\(2, 1\), \(1, 4\)\)\)"):
        parse_lines("a.shard(((1,),))\nmatmul")


def test_a_mesh_of_another_size_is_refused():
    found = from_checkpoint(json.loads(json.dumps(to_checkpoint(planned().plan))))
    name = next(iter(found.parameters))
    with pytest.raises(LayoutError, match=rf"parameter {name}: .*arranges 8 devices, mesh 'dp=2' has 2"):
        found.layouts(Mesh(dp=2))
