"""Each pass on the patterns that it is for: the program that it leaves, word for word."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoshard.api import plan
from autoshard.cost.instructions import Costs, Setting
from autoshard.cost.timeline import timeline
from autoshard.layout import Layout
from autoshard.optimize import PASSES, optimize
from autoshard.optimize.chains import chains
from autoshard.optimize.combine import combine
from autoshard.optimize.overlap import overlap
from autoshard.optimize.relayout import move
from autoshard.optimize.relayout_strategies import with_result
from autoshard.optimize.share import share
from autoshard.partition.program import Bundle, Compute, Program, Start, Wait
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import CONFIGURED
from autoshard.util.errors import GraphError, PlanError
from costmodel import preset
from tests.partition.passing import passed, program_of, text
from tests.search.plans import FFN, array, checked

X = {"x": ((8, 12), "f32", "tp, -")}
PRODUCT = {"x": ((8, 12), "f32", "-, tp"), "w": ((12, 20), "f32", "tp, -")}
PARTIAL = ("y", "MatMul", ["x", "w"], {}, ["-, tp", "tp, -"])


def lines(program: Program) -> list[str]:
    return text(program).splitlines()


def test_equal_operators_and_steps_are_shared():
    steps = [
        ("a", "Exp", ["x"], {}, ["-, -"]),
        ("b", "Exp", ["x"], {}, ["-, -"]),
        ("c", "Add", ["a", "b"], {}, ["-, -", "-, -"]),
    ]
    made = passed(share, program_of("tp=4", X, steps, {"c": "-, -"}))
    assert lines(made) == [
        "x.1 f32[8, 12] [-, -] = all_gather over=tp dim=0 x",
        "a f32[8, 12] [-, -] = Exp x.1",
        "c f32[8, 12] [-, -] = Add a, a",
        "return c",
    ]


def test_zeros_of_other_sign_are_not_shared():
    steps = [
        ("a", "ScalarMul", ["x"], {"factor": 0.0}, ["tp, -"]),
        ("b", "ScalarMul", ["x"], {"factor": -0.0}, ["tp, -"]),
    ]
    program = program_of("tp=4", X, steps, {"a": "tp, -", "b": "tp, -"})
    assert passed(share, program) is program


def test_steps_that_lead_back_are_undone():
    """After the gather has moved behind Tanh, the slice of its result is what there was before; both Tanh are one."""
    steps = [("a", "Tanh", ["x"], {}, ["-, -"]), ("b", "Tanh", ["x"], {}, ["tp, -"])]
    program = program_of("tp=4", X, steps, {"a": "tp, -", "b": "tp, -"})
    made = passed(lambda one, setting: optimize(one, setting.costs.hardware)[0], program)
    assert lines(made) == ["a.moved f32[2, 12] [tp, -] = Tanh x", "return a.moved, a.moved"]


def test_reduce_scatter_is_made_past_a_transpose():
    steps = [PARTIAL, ("t", "Transpose", ["y"], {"perm": (1, 0)}, ["-, -"])]
    made = passed(move, program_of("tp=4", PRODUCT, steps, {"t": "tp, -"}))
    assert lines(made) == [
        "y f32[8, 20] [-, - +tp] = MatMul x, w",
        "t.moved f32[20, 8] [-, - +tp] = Transpose y",
        "t.1 f32[5, 8] [tp, -] = reduce_scatter over=tp dim=0 op=sum t.moved",
        "return t.1",
    ]


def test_steps_on_steps_become_one():
    """An all_reduce of which only slices are read is a reduce_scatter."""
    program = program_of("tp=4", PRODUCT, [PARTIAL], {"y": "-, tp"})
    partial, scatter = program.instructions
    whole = replace(scatter, step=_all_reduce(scatter))
    kept = replace(scatter.result, name="whole", layout=whole.step.after)
    reduced = replace(whole, result=kept)
    piece = replace(scatter, step=_slice(scatter, whole.step.after), operand=kept)
    program = replace(program, instructions=(partial, reduced, piece))
    verify_program(program)
    assert lines(passed(chains, program)) == [
        "y f32[8, 20] [-, - +tp] = MatMul x, w",
        "y.1 f32[8, 5] [-, tp] = reduce_scatter over=tp dim=1 op=sum y",
        "return y.1",
    ]


def _all_reduce(scatter):
    return replace(scatter.step, kind="all_reduce", after=scatter.step.before.final(), dim=None)


def _slice(scatter, before):
    return replace(scatter.step, kind="slice", before=before)


def test_two_partial_values_are_added_before_one_sum():
    inputs = {**PRODUCT, "v": ((12, 20), "f32", "tp, -")}
    steps = [
        PARTIAL,
        ("z", "MatMul", ["x", "v"], {}, ["-, tp", "tp, -"]),
        ("s", "Add", ["y", "z"], {}, ["-, -", "-, -"]),
    ]
    assert lines(passed(move, program_of("tp=4", inputs, steps, {"s": "-, -"}))) == [
        "y f32[8, 20] [-, - +tp] = MatMul x, w",
        "z f32[8, 20] [-, - +tp] = MatMul x, v",
        "s.moved f32[8, 20] [-, - +tp] = Add y, z",
        "s f32[8, 20] [-, -] = all_reduce over=tp op=sum s.moved",
        "return s",
    ]


def test_terms_end_after_a_reduction_and_a_cut():
    inputs = {"x": ((6, 12), "f32", "-, a"), "w": ((12, 20), "f32", "a, -")}
    steps = [
        ("y", "MatMul", ["x", "w"], {}, ["-, a", "a, -"]),
        ("r", "ReduceSum", ["y"], {"axis": 0, "keep_dims": False}, ["-, -"]),
    ]
    assert lines(passed(move, program_of("a=2 b=5", inputs, steps, {"r": "b"}))) == [
        "y f32[6, 20] [-, - +a] = MatMul x, w",
        "r.moved f32[20] [- +a] = ReduceSum y",
        "r.1.moved f32[4] [b +a] = slice over=b dim=0 r.moved",
        "r.1 f32[4] [b] = all_reduce over=a op=sum r.1.moved",
        "return r.1",
    ]


@pytest.mark.parametrize(
    ("step", "end", "expected"),
    [
        (
            ("r", "ReduceSum", ["x"], {"axis": 1, "keep_dims": False}, ["-, -"]),
            "-",
            ["r.moved f32[2] [tp] = ReduceSum x", "r f32[8] [-] = all_gather over=tp dim=0 r.moved", "return r"],
        ),
        (
            ("r", "Slice", ["x"], {"start": (0, 2), "limit": (8, 5), "strides": (1, 1)}, ["-, -"]),
            "-, -",
            [
                "r.moved f32[2, 3] [tp, -] = Slice x",
                "r f32[8, 3] [-, -] = all_gather over=tp dim=0 r.moved",
                "return r",
            ],
        ),
        (
            ("r", "Cast", ["x"], {"dtype": "bf16"}, ["-, -"]),
            "-, -",
            [
                "r.moved bf16[2, 12] [tp, -] = Cast x",
                "r bf16[8, 12] [-, -] = all_gather over=tp dim=0 r.moved",
                "return r",
            ],
        ),
        (
            ("r", "Tanh", ["x"], {}, ["-, -"]),
            "-, tp",
            [
                "r.moved f32[2, 12] [tp, -] = Tanh x",
                "r.1 f32[8, 3] [-, tp] = all_to_all over=tp dim=1 to_dim=0 r.moved",
                "return r.1",
            ],
        ),
    ],
    ids=["reduction", "slice", "narrower type", "another dim"],
)
def test_gathers_come_after_what_makes_a_value_smaller(step, end, expected):
    assert lines(passed(move, program_of("tp=4", X, [step], {"r": end}))) == expected


@pytest.mark.parametrize(
    ("of", "step", "kept"),
    [
        (((512, 1024), "bf16"), ("y", "Cast", ["x"], {"dtype": "f32"}, ["tp, -"]), "bf16[512, 1024]"),
        (((512, 1), "f32"), ("y", "BroadcastTo", ["x"], {"shape": (512, 700)}, ["tp, -"]), "f32[512, 1]"),
    ],
    ids=["upcast", "broadcast"],
)
def test_gathers_come_before_what_makes_a_value_larger(of, step, kept):
    steps = [step, ("z", "Tanh", ["y"], {}, ["-, -"])]
    made = passed(move, program_of("tp=4", {"x": (*of, "tp, -")}, steps, {"z": "-, -"}), "h100")
    assert lines(made)[0] == f"x.moved {kept} [-, -] = all_gather over=tp dim=0 x"
    assert [one.step.kind for one in made.collectives] == ["all_gather"]


def test_sums_stay_in_their_type():
    """Neither is a sum in f32 made in bf16 afterwards, nor one in bf16 made in f32 before: only gathers pass casts."""
    steps = [PARTIAL, ("c", "Cast", ["y"], {"dtype": "bf16"}, ["-, -"])]
    program = program_of("tp=4", PRODUCT, steps, {"c": "-, -"})
    assert passed(move, program) is program


@pytest.mark.parametrize(("of", "sums"), [("f32", 1), ("bf16", 2)])
def test_terms_are_not_rounded(of, sums):
    """Where an addition of two narrow terms would round on each rank, both are summed before."""
    inputs = {"x": ((8, 12), of, "-, tp"), "w": ((12, 20), of, "tp, -")}
    steps = [PARTIAL, ("z", "Neg", ["y"], {}, ["-, - +tp"]), ("s", "Add", ["y", "z"], {}, ["-, -", "-, -"])]
    made = passed(move, program_of("tp=4", inputs, steps, {"s": "-, -"}))
    assert len(made.collectives) == sums


def test_what_somebody_asked_for_is_left():
    steps = [("r", "ReduceSum", ["x"], {"axis": 1, "keep_dims": False}, ["-, -"])]
    program = program_of("tp=4", X, steps, {"r": "-"})
    nodes = frozenset((program.instructions[-1].node,))
    assert move(program, Setting(Costs(preset("cpu").for_ranks(4)), fixed=nodes)) is program
    planned = plan(FFN(((2, 1), (1, 4)), ((8, 1), (1, 1)), sizes=(24, 16, 32)), (array(16, 24),), devices=8)
    asked = [node for node, one in planned.plan.decisions.items() if one.cause.kind == CONFIGURED]
    layouts = {
        one.node: tuple(r.layout for r in one.operands) for one in planned.program.instructions if _is(one, asked)
    }
    assert layouts == {node: planned.plan.strategy(node).operand_layouts for node in asked}


def _is(one, nodes) -> bool:
    return getattr(one, "node", None) in nodes and one.op is one.node.op


def test_small_collectives_are_done_together():
    inputs = {**X, "y": ((20,), "f32", "tp")}
    steps = [("a", "Exp", ["x"], {}, ["-, -"]), ("b", "Exp", ["y"], {}, ["-"])]
    program = program_of("tp=4", inputs, steps, {"a": "-, -", "b": "-"})
    assert passed(combine, program) is program, "only parameters and gradients share a buffer"
    assert lines(passed(combine, updating(program))) == [
        "x.1 f32[8, 12] [-, -], y.1 f32[20] [-] = 2 x all_gather over=tp dim=0 x, y",
        "a f32[8, 12] [-, -] = Exp x.1",
        "b f32[20] [-] = Exp y.1",
        "return a, b",
    ]


def updating(program: Program) -> Program:
    """The same as a step whose inputs are parameters, and whose outputs replace further ones that lie as they do."""
    inputs = (*program.inputs, *(replace(one, name=f"{one.name}.old") for one in program.outputs))
    updates = {i: len(program.inputs) + i for i in range(len(program.outputs))}
    return replace(program, inputs=inputs, roles=("parameter",) * len(inputs), updates=updates)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "all_gather"])
def test_bundles_of_all_kinds(kind):
    """Blocks of other shapes, cut and joined along other dims, in one buffer."""
    ends = {
        "all_reduce": ("-, -", "-, -"),
        "reduce_scatter": ("-, tp", "tp, -"),
        "all_to_all": ("-, tp", "tp, -"),
        "all_gather": ("-, -", "-, -"),
    }[kind]
    inputs = {
        **PRODUCT,
        "v": ((12, 16), "f32", "tp, -"),
        "a": ((8, 20), "f32", "tp, -"),
        "b": ((4, 16), "f32", "-, tp"),
    }
    if kind in ("all_reduce", "reduce_scatter"):
        steps = [PARTIAL, ("z", "MatMul", ["x", "v"], {}, ["-, tp", "tp, -"])]
    else:
        steps = [("y", "Tanh", ["a"], {}, ["tp, -"]), ("z", "Tanh", ["b"], {}, ["-, tp"])]
    program = program_of("tp=4", inputs, steps, dict(zip(("y", "z"), ends, strict=True)))
    made = passed(combine, updating(program))
    (bundle,) = (one for one in made.instructions if isinstance(one, Bundle))
    assert [one.step.kind for one in bundle.parts] == [kind, kind]
    both = passed(overlap, made)
    assert both is made, "nothing is computed meanwhile"


def test_large_collectives_are_not_copied_together():
    shape = (1 << 12, 1 << 12)
    inputs = {"x": (shape, "f32", "tp, -"), "y": (shape, "f32", "tp, -")}
    steps = [("a", "Exp", ["x"], {}, ["-, -"]), ("b", "Exp", ["y"], {}, ["-, -"])]
    program = program_of("tp=4", inputs, steps, {"a": "-, -", "b": "-, -"})
    assert combine(program, Setting(Costs(preset("cpu").for_ranks(4)))) is program


def test_common_buffers_are_as_small_as_the_room_that_is_left():
    """With less room for them there are more and smaller ones, not none, in long programs, too; several may be held at
    a time."""
    count, turns = 60, 20
    inputs = {f"x{i}": ((64, 12 + i), "f32", "tp, -") for i in range(count)}
    steps = []
    for i in range(count):
        chain = [f"x{i}", *(f"x{i}.{turn}" for turn in range(turns))]
        steps += [(made, "Exp", [of], {}, ["tp, -"]) for of, made in itertools.pairwise(chain)]
    last = [f"x{i}.{turns - 1}" for i in range(count)]
    program = updating(program_of("tp=4", inputs, steps, dict.fromkeys(last, "-, -")))
    costs, left = Costs(preset("h100").for_ranks(4)), []
    base = costs.peak(program)
    for room in (0, *(1000 * 2**i for i in range(4, 13))):
        made, _ = optimize(program, costs.hardware, ("combine",), more_memory=1.0, bucket=room)
        assert costs.peak(made) <= base + room
        left.append(costs.moved(made.instructions)[1])
    assert left[0] == count and left[-1] == 1
    assert all(more >= less for more, less in itertools.pairwise(left)), left


def test_a_collective_runs_beside_what_does_not_need_it():
    inputs = {**X, "y": ((20,), "f32", "tp")}
    steps = [("b", "Exp", ["y"], {}, ["tp"]), ("a", "Exp", ["x"], {}, ["-, -"])]
    program = program_of("tp=4", inputs, steps, {"a": "-, -", "b": "tp"})
    made = passed(overlap, program)
    assert lines(made) == [
        "start all_gather over=tp dim=0 x",
        "b f32[5] [tp] = Exp y",
        "x.1 f32[8, 12] [-, -] = wait all_gather over=tp dim=0 x",
        "a f32[8, 12] [-, -] = Exp x.1",
        "return a, b",
    ]
    costs = Costs(preset("cpu").for_ranks(4))
    alone, beside = timeline(program, costs), timeline(made, costs)
    assert alone.hidden_seconds == 0 and beside.hidden_seconds > 0
    assert beside.seconds == pytest.approx(alone.seconds - beside.hidden_seconds)
    assert timeline(made, costs, overlap=False).seconds == pytest.approx(alone.seconds)


def test_casts_go_with_the_collective():
    """A parameter is cast where its gather is started."""
    steps = [
        ("z", "Exp", ["v"], {}, ["tp"]),
        ("c", "Cast", ["p"], {"dtype": "bf16"}, ["tp, -"]),
        ("d", "Tanh", ["c"], {}, ["-, -"]),
    ]
    inputs = {"v": ((20,), "f32", "tp"), "p": ((20, 12), "f32", "tp, -")}
    program = program_of("tp=4", inputs, steps, {"z": "tp", "d": "-, -"})
    assert lines(passed(overlap, program)) == [
        "c bf16[5, 12] [tp, -] = Cast p",
        "start all_gather over=tp dim=0 c",
        "z f32[5] [tp] = Exp v",
        "c.1 bf16[20, 12] [-, -] = wait all_gather over=tp dim=0 c",
        "d bf16[20, 12] [-, -] = Tanh c.1",
        "return z, d",
    ]


def test_what_was_asked_for_is_not_shared():
    steps = [("a", "Exp", ["x"], {}, ["tp, -"]), ("b", "Exp", ["x"], {}, ["tp, -"])]
    program = program_of("tp=4", X, steps, {"a": "tp, -", "b": "tp, -"})
    nodes = {one.node for one in program.instructions if isinstance(one, Compute)}
    setting = Setting(Costs(preset("cpu").for_ranks(4)))
    assert share(program, replace(setting, fixed=nodes)) is program
    assert len(share(program, setting).instructions) == 1


def test_laws_of_starts_waits_and_bundles():
    inputs = {**X, "y": ((20,), "f32", "tp")}
    steps = [("b", "Exp", ["y"], {}, ["tp"]), ("a", "Exp", ["x"], {}, ["-, -"])]
    program = program_of("tp=4", inputs, steps, {"a": "-, -", "b": "tp"})
    first, gather, last = program.instructions
    begun = Start(gather)
    for instructions, said in (
        ((first, begun, last), "nothing waits for it"),
        ((first, Wait(begun), last), "runs nowhere before it"),
        ((first, begun, begun, Wait(begun), last), "started twice"),
        ((first, Bundle((gather,)), last), "at least two"),
    ):
        with pytest.raises(GraphError, match=said):
            verify_program(replace(program, instructions=instructions))


def test_passes_have_names():
    program = program_of("tp=4", X, [("a", "Exp", ["x"], {}, ["-, -"])], {"a": "-, -"})
    with pytest.raises(PlanError, match="no pass 'tidy'; passes are 'share'"):
        optimize(program, preset("cpu").for_ranks(4), ("tidy",))
    with pytest.raises(PlanError, match="no pass 'tidy'"):
        plan(FFN(), (array(64, 64),), devices=4, passes=["tidy"])


def test_plans_run_the_passes_unless_told_not_to():
    planned = checked(FFN(((1, 4), (4, 2)), sizes=(12, 24, 10)), (array(24, 12),))
    assert [one.name for one in planned.savings] == [name for name in PASSES if name != "overlap"]
    assert planned.savings[-1].after.nbytes <= planned.savings[0].before.nbytes
    plain = checked(FFN(((1, 4), (4, 2)), sizes=(12, 24, 10)), (array(24, 12),), passes=False)
    assert plain.savings == ()


def test_terms_of_a_result_come_from_a_split_sum_or_from_terms():
    """A product of whole blocks has no terms to leave, so none are asked of it."""
    program = program_of(
        "8",
        {"a": ((6, 24), "f64", "-, d"), "b": ((24, 6), "f64", "d, -")},
        [("c", "MatMul", ("a", "b"), {}, ("-, d", "d, -"))],
        {"c": "-, -"},
    )
    (product,) = (one for one in program.instructions if isinstance(one, Compute))
    mesh = product.results[0].layout.mesh
    assert with_result(product, Layout.parse("-, - +d", mesh)) is not None
    assert with_result(product, Layout.parse("-, d:(4)2 +d:(1)4", mesh)) is None
