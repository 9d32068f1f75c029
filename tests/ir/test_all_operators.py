"""Every operator's sample as a graph: legal, printed and read back to what computes the same, and dumped."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.core.enumerate import enumerate_strategies
from autoshard.exporters.ir_dump import dump_begin, dump_program
from autoshard.exporters.ir_parse import parse_dump, show_dump
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout import Mesh
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from tests.oracle.check import plan_with, single
from tests.oracle.samples import SAMPLES


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_graph_and_dumps_read_back(sample) -> None:
    arrays = sample.arrays(np.random.default_rng(1))
    graph, node = single(sample.op, arrays, sample.attributes)
    verify(graph)
    text = show(graph)
    back = parse(text)
    assert show(back) == text and back.nodes[0].key == node.key
    for got, want in zip(
        back.nodes[0].op.evaluate(arrays, back.nodes[0].attrs),
        sample.op.evaluate(arrays, node.attrs),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)
    plan = plan_with(graph, node, enumerate_strategies(node.rule, Mesh(a=2, b=3))[0])
    program = lower(plan)
    verify_program(program)
    for dump in (dump_begin(plan), dump_program(program, 5, plan)):
        assert show_dump(parse_dump(dump)) == dump
