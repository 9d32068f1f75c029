"""What is remembered is bounded: interned layouts go, memos forget, and no function keeps all it was ever asked."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest

from autoshard import ops, plan
from autoshard.cost.evaluate import evaluate_plan, prices_for
from autoshard.layout import Layout, Mesh
from autoshard.search.greedy.choose import chooser
from autoshard.util import memo
from autoshard.util.memo import Interned, Memo
from tests.search.plans import array

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 1 << 16
FINITE = {
    "_version": "one per launcher that is installed",
    "_identify": "one per launcher that is installed",
    "_carrier": "sizes of numbers",
    "_datatype": "types of numbers",
    "_operation": "reductions of types of numbers",
    "primitive_class": "operators that are registered",
    "lying": "inside of one call",
    "words": "inside of one call",
    "_of_numpy": "types of numbers",
    "_kernels": "one per engine and device",
    "_kinds": "types of results of operators",
    "_resolved": "element types of numpy's functions",
    "_op": "reductions of torch",
    "ufunc": "numpy's ufuncs",
    "function": "functions of numpy's that operators call",
    "_types": "one",
    "torch_dtype": "types of numbers",
    "numpy_dtype": "types of numbers",
    "fitting": "what operators declare, by numbers of operands",
    "marker": "operators that modules of ours put into torch's graphs",
}
"""Functions that remember everything, and why that is not much."""


def test_interned_values_live_as_long_as_they_are_used(monkeypatch):
    monkeypatch.setattr(memo, "RECENT", 8)

    class Thing:
        pass

    known: Interned[Thing] = Interned()
    kept = known.keep("kept", Thing())
    for number in range(100):
        known.keep(number, Thing())
    gc.collect()
    assert known.get("kept") is kept is known.keep("kept", Thing())
    assert len(known) == 9 and known.get(99) is not None and known.get(0) is None


def test_a_memo_forgets_the_older_half():
    found: Memo[int, int] = Memo(10)
    for number in range(1000):
        found[number] = -number
        assert len(found) <= 10 and found[number] == -number
    found[998] = 7
    assert found[998] == 7 and found.get(3) is None


def test_layouts_that_nobody_uses_are_forgotten():
    mesh, gone = Mesh((f"x{i}", 2) for i in range(8)), 0
    gc.collect()
    before = len(Layout._interned)
    for number in range(memo.RECENT + 2000):
        dims = [[axis for k, axis in enumerate(mesh.all_axes) if number >> 2 * k & 3 == dim] for dim in range(3)]
        gone += len(Layout(mesh, dims).dims) == 3
    gc.collect()
    assert gone == memo.RECENT + 2000 and len(Layout._interned) <= before + memo.RECENT


def test_plans_of_many_programs_remember_a_bounded_number_of_answers(monkeypatch):
    seconds: dict[int, list[float]] = {}
    for most in (memo.MOST, 50):
        monkeypatch.setattr(memo, "MOST", most)
        for function in (chooser, prices_for):
            function.cache_clear()
        for width in (64, 72, 80, 88):
            planned = plan(_attention, [array(16, width, 64)] * 3, "a=2 b=2 c=2", hardware="h100")
            seconds.setdefault(width, []).append(evaluate_plan(planned.plan, planned.hardware).seconds)
        memos = [one for one in gc.get_objects() if isinstance(one, Memo)]
        assert memos and all(len(one) <= one.most for one in memos)
    assert all(one == pytest.approx(other) for one, other in seconds.values())


def _attention(q, k, v):
    return ops.batch_matmul(ops.softmax(ops.batch_matmul(q, k, transpose_b=True)), v)


@pytest.mark.parametrize("folder", ["autoshard", "costmodel"])
def test_functions_remember_a_bounded_number_of_answers(folder):
    found = [one for path in sorted((ROOT / folder).rglob("*.py")) for one in memos(path)]
    assert len(found) > (1 if folder == "costmodel" else 50)
    for path, name, most in found:
        assert (most is None and name in FINITE) or (most is not None and most <= LARGEST), (
            f"{path}: {name} keeps {most}"
        )


def memos(path: Path):
    """(file, function, how many answers it keeps) for each that remembers what it is asked."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "cache" in text else ():
        asked = isinstance(node, ast.FunctionDef) and any((node.args.args, node.args.kwonlyargs, node.args.vararg))
        for one in node.decorator_list if isinstance(node, ast.FunctionDef) and asked else ():
            name = ast.unparse(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2]
            if name == "cache":
                yield path.name, node.name, None
            elif name == "lru_cache":
                sizes = [word.value for word in one.keywords] if isinstance(one, ast.Call) else []
                yield path.name, node.name, _number(sizes[0]) if sizes else 128


def _number(size: ast.expr) -> int | None:
    """What an expression says; names stand for small numbers, which their files have."""
    if any(isinstance(part, ast.Name) for part in ast.walk(size)):
        return 128
    if isinstance(size, ast.BinOp):
        assert isinstance(size.op, ast.LShift), "another expression than 1 << n"
        return ast.literal_eval(size.left) << ast.literal_eval(size.right)
    return ast.literal_eval(size)
