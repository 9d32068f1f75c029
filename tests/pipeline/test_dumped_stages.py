"""IR dumps of plans in stages: a golden text, what is sent is what is received, and as much as runs have measured."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.exporters.ir_parse import Dump, DumpNode, parse_dump, show_dump
from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.exports.dump import dump_rank
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.exporters import golden
from tests.transform.test_micro_statistics import Normed
from tests.transform.test_micro_statistics import step_of as normed_step

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype(np.float32), RNG.normal(size=(12, 4)).astype(np.float32)
WIDTHS = {"Float64": 8, "Float32": 4, "Float16": 2}


def mlp_step():
    net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 8), nn.Tanh(), nn.Dense(8, 4))

    def loss(x, y):
        made = net(x)
        return ops.reduce_mean(ops.square(made - y)), made

    return train_step(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9), X, Y)


CASES = {
    "1f1b": lambda: plan_pipeline(mlp_step(), mesh="pp=2,dp=2", micro_batches=3, search="data_parallel"),
    "zbv": lambda: plan_pipeline(mlp_step(), mesh="pp=2,dp=2", micro_batches=2, schedule="zbv"),
    "uneven": lambda: plan_pipeline(
        mlp_step(), pipeline="dp=3/dp=2,tp=2/dp=2", micro_batches=2, schedule="zb_h1", search="data_parallel"
    ),
    "chunks": lambda: plan_pipeline(mlp_step(), mesh="pp=2,dp=3", micro_batches=4, schedule="looped_bfs", chunks=2),
    "statistics": lambda: plan_pipeline(
        normed_step(Normed(True)), mesh="pp=2,dp=2", micro_batches=3, statistics="micro_batch", search="data_parallel"
    ),
}


def dumps_of(planned) -> list[Dump]:
    return [parse_dump(dump_rank(planned, rank)) for rank in range(planned.devices)]


def messages(dumps: list[Dump], op: str, other: str) -> dict[tuple, list[tuple]]:
    """By channel (from, to, tag) what is sent, or received, in order."""
    found = defaultdict(list)
    for rank, dump in enumerate(dumps):
        for node in dump.nodes:
            if node.op == op:
                pair = (rank, node.attr(other)) if op == "Send" else (node.attr(other), rank)
                what = node.attr("micro"), node.attr("shape"), node.attr("dtype"), node.attr("group")
                found[*pair, node.attr("sr_tag")].append(what)
    return found


def nbytes(node: DumpNode) -> int:
    return math.prod(node.attr("shape").items) * WIDTHS[node.attr("dtype")]


@pytest.mark.parametrize("case", CASES)
def test_what_is_sent_is_received_and_measured(case):
    planned = CASES[case]()
    dumps = dumps_of(planned)
    sent, received = messages(dumps, "Send", "dest_rank"), messages(dumps, "Receive", "src_rank")
    assert sent and sent == received, "the same messages in the same order"
    data = planned.traced.inputs(*((X, Y) if case != "statistics" else (X.astype(np.float64), Y.astype(np.float64))))
    planned.session.run(data)
    counted = [
        sum(nbytes(node) for rank in group.ranks for node in dumps[rank].nodes if node.op == "Send")
        for group in planned.groups
    ]
    assert counted == list(planned.session.last.sent)


@pytest.mark.parametrize("case", CASES)
def test_calls_are_those_of_the_schedule_and_texts_parse_back(case):
    planned = CASES[case]()
    for rank in range(planned.devices):
        text = dump_rank(planned, rank)
        dump = parse_dump(text)
        assert show_dump(dump) == text == dump_rank(planned, rank)
        number = next(i for i, group in enumerate(planned.groups) if rank in group.ranks)
        calls = [node for node in dump.nodes if node.op == "Call" and node.attr("kind") == "F"]
        order = [(one.stage, one.micro) for one in planned.schedule.orders[number] if one.kind == "F"]
        assert [(node.attr("stage"), node.attr("micro")) for node in calls] == order
        titles = {one.title: one for one in dump.subgraphs}
        for node in (node for node in dump.nodes if node.op == "Call"):
            (title,) = node.attr("bodies").items
            assert [one.type for one in titles[title].parameters] == list(node.operand_types)
            assert titles[title].body[-1].types == node.result_types


def test_a_golden_text():
    dump = parse_dump(dump_rank(CASES["1f1b"](), 3))
    bare = [
        replace(one, body=tuple(replace(n, source=None) if isinstance(n, DumpNode) else n for n in one.body))
        for one in (dump, *dump.subgraphs)
    ]
    golden.check("stages_rank3.ir", show_dump(replace(bare[0], subgraphs=tuple(bare[1:]))))


def test_files_of_a_rank_and_ranks_that_are_not_there(tmp_path):
    planned = CASES["chunks"]()
    files = planned.dump(tmp_path, ranks=[4])
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "rank_4/step_parallel_begin_0000.ir",
        "rank_4/step_parallel_begin_0001.ir",
        "rank_4/step_parallel_end_0002.ir",
        "rank_4/03_validate_0003.ir",
    ]
    assert [re.search("@(\\S+)", file.read_text())[1] for file in files[:2]] == ["loss.stage1", "loss.stage3"]
    with pytest.raises(PlanError, match=r"has no rank 6 to dump; its ranks are 0\.\.5"):
        planned.dump(tmp_path, ranks=[6])
