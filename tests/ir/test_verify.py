"""The laws of graphs: each broken one is found and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import DATA, PARAMETER, STATE, Builder, Graph, Node, Source, Value
from autoshard.ir.verify import verify
from autoshard.ops.registry import lookup
from autoshard.util.errors import GraphError

HERE = Source("train.py", 33, "y = matmul(x, w)")


def good() -> Graph:
    builder = Builder("net")
    x = builder.input(TensorType.of((4, 6)), "x")
    w = builder.input(TensorType.of((6, 10)), "w", PARAMETER)
    count = builder.input(TensorType.of((), "i32"), "count", STATE)
    matmul = lookup("MatMul")
    y = builder.add(matmul, [x, w], matmul.check_attributes({}), "dense.matmul", HERE).results[0]
    z = builder.add(lookup("ReLU"), [y], {}, "relu").results[0]
    new = builder.add(lookup("Neg"), [w], {}, "neg").results[0]
    return builder.build([z, new, count], {1: 1, 2: 2})


def changed(graph: Graph, node: int, **fields: object) -> Graph:
    """The graph with one node made anew from other parts."""
    old = graph.nodes[node]
    parts = {"op": old.op, "operands": old.operands, "attrs": old.attrs, "results": old.results}
    made = Node(**{**parts, "name": old.name, "source": old.source, **fields})  # type: ignore[arg-type]
    return replace(graph, nodes=(*graph.nodes[:node], made, *graph.nodes[node + 1 :]))


def test_a_good_graph_passes() -> None:
    verify(good())


def test_a_good_graph_after_another_passes() -> None:
    builder = Builder.after(good(), "more")
    builder.add(lookup("ReLU"), [builder.inputs[0]], {})
    verify(builder.build(good().outputs[:0]))


def value(*shape: int, name: str = "stray") -> Value:
    return Value(TensorType.of(shape), name)


GOOD = good()
X, W, COUNT = GOOD.inputs
Y, Z, NEW = (node.results[0] for node in GOOD.nodes)
BROKEN = {
    "role": (replace(GOOD, roles=(DATA, "weight", STATE)), "input 'w' of graph 'net' has role 'weight'"),
    "number of roles": (replace(GOOD, roles=(DATA,)), "has 3 inputs but 1 roles"),
    "input twice": (replace(GOOD, inputs=(X, X, COUNT)), "an input defines 'x'"),
    "value made twice": (
        changed(GOOD, 1, results=(Y,)),
        r"relu \(ReLU\) defines 'dense.matmul', which dense.matmul",
    ),
    "input made again": (
        changed(GOOD, 1, results=(X,)),
        "defines 'x', which graph 'net': an input defines already",
    ),
    "use before definition": (
        replace(GOOD, nodes=GOOD.nodes[::-1]),
        r"relu \(ReLU\): operand 0, '.*matmul', is not defined before it",
    ),
    "stray operand": (
        changed(GOOD, 0, operands=(X, value(6, 10))),
        r"dense.matmul \(MatMul\) at train.py:33: operand 1, 'stray', is not defined",
    ),
    "name twice": (
        changed(GOOD, 2, results=(value(6, 10, name="w"),)),
        r"two values named 'w'.*made by neg \(Neg\)",
    ),
    "arity": (changed(GOOD, 0, operands=(X,)), r"at train.py:33: MatMul takes 2 operands \(x, w\), not 1"),
    "shapes": (changed(GOOD, 0, operands=(X, X)), r"dense.matmul \(MatMul\) at train.py:33: MatMul"),
    "attribute missing": (
        changed(GOOD, 0, attrs={}),
        r"has the attributes \(\); the operator has \(transpose_a,",
    ),
    "attribute unknown": (changed(GOOD, 1, attrs={"axis": 1}), r"has the attributes \(axis\)"),
    "result type": (
        changed(GOOD, 2, results=(value(10, 6),)),
        r"results of type \(f32\[10, 6\]\), but from operands \(f32\[6, 10\]\) the operator makes \(f32\[6,",
    ),
    "number of results": (changed(GOOD, 1, results=(Z, value(4, 10))), r"makes \(f32\[4, 10\]\)"),
    "no results": (changed(GOOD, 2, results=()), r"neg \(Neg\) has results of type \(\)"),
    "stray output": (
        replace(GOOD, outputs=(value(4, 6),)),
        "output 0 of graph 'net', 'stray', is no value of",
    ),
    "update of nothing": (replace(GOOD, updates={1: 3}), "there are 3 outputs and 3 inputs"),
    "update by nothing": (replace(GOOD, updates={-1: 1}), "there are 3 outputs and 3 inputs"),
    "update of another type": (replace(GOOD, updates={0: 1}), "the types must be equal"),
    "update of data": (replace(GOOD, outputs=(X,), updates={0: 0}), "'x' is data"),
    "update twice": (replace(GOOD, outputs=(NEW, W), updates={0: 1, 1: 1}), "output 0 replaces 'w' already"),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_named(law: str) -> None:
    graph, message = BROKEN[law]
    with pytest.raises(GraphError, match=message):
        verify(graph)
