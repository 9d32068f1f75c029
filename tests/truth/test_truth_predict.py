"""Predictions of measured steps: folded layers and micro batches come to what whole programs cost; scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard import nn
from autoshard.api import plan
from autoshard.partition.verify import verify_program
from autoshard.truth import predict
from autoshard.truth.models import LossApart, step_of
from autoshard.truth.predict import Prediction, Predictor, _step_of
from autoshard.truth.rates import adding_seconds, rates_of
from autoshard.truth.rows import DecoderModel, Measurement, ParallelDegrees, Row
from autoshard.truth.score import fit_told, rankings, refusals, score
from autoshard.truth.stages import EACH, HOST, OUTSIDE, SUMS, UPDATES, RowRates, SlotWork, dealt_out, load
from autoshard.truth.tables import load as load_rows
from autoshard.truth.tables import shipped
from costmodel import preset
from costmodel.host import HOSTS, HostTimes

GPT = DecoderModel("gpt", 64, 4, 4, 96, dropout=0.1)
LLAMA = DecoderModel("llama", 64, 4, 4, 96, ffn=160, kv_heads=2)


def row(name: str, model: DecoderModel, plan: str, axes: ParallelDegrees, **more) -> Row:
    batch, length = more.pop("global_batch", 2 * axes.dp), more.pop("sequence", 24)
    return Row(name, "table", model, length, "a100", axes, plan, batch, 2, Measurement(1.0), **more)


def parts_of(measures, one: Row) -> dict[str, float]:
    """Seconds by part of all that was measured, as often as a step does it."""
    rarely = 1 if one.reduced == "step" else one.micro_batches
    found = {SUMS: (one.micro_batches - 1) * measures.adding[rarely > 1], HOST: 0.0, OUTSIDE: 0.0}
    for slot, each in measures.dealt.items():
        times = one.micro_batches if slot.when == EACH else 1 if slot.when == UPDATES else rarely
        for name, seconds in each.ledger.items():
            found[name] = found.get(name, 0.0) + times * seconds
    return found


WHOLE = {
    "data parallel, full recomputation": row("a", GPT, "data_parallel", ParallelDegrees(dp=4), recompute="full",
                                             attention="apart"),
    "tensor parallel, attention again": row("b", GPT, "megatron_sp", ParallelDegrees(tp=2), recompute="attention",
                                            attention="apart"),
    "every second product again": row("c", LLAMA, "zero3", ParallelDegrees(dp=2), recompute="products"),
    "loss apart": row("e", LLAMA, "zero3", ParallelDegrees(dp=2), recompute="products", loss="apart"),
    "both axes": row("d", LLAMA, "megatron", ParallelDegrees(dp=2, tp=2)),
}  # fmt: skip


def test_a_loss_apart_is_the_loss_and_holds_two_more_of_its_logits():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((2, 5, 7)).astype("f4"), rng.integers(0, 7, (2, 5)).astype("i4")
    apart, fused = (float(cell(logits, labels)) for cell in (LossApart(), nn.TokenLoss()))
    assert apart == pytest.approx(fused, rel=1e-6)
    model = DecoderModel("llama", 64, 4, 4, 4096, ffn=160, kv_heads=2)
    rows = [row("a", model, "zero3", ParallelDegrees(dp=2), loss=loss) for loss in ("fused", "apart")]
    peaks = [Predictor()(one).peak_bytes for one in rows]
    copy = 2 * 24 * 4096 * 4
    assert peaks[1] - peaks[0] == pytest.approx(2 * copy, rel=0.05)  # the logarithms, and ones and zeros


@pytest.mark.parametrize("name", WHOLE)
def test_layers_folded_are_the_whole_program(name):
    one = WHOLE[name]
    found = Predictor()(one)
    whole = _step_of(one, 4, preset("a100")).measured(preset("a100"))
    assert parts_of(whole, one) == pytest.approx({**found.parts, HOST: 0.0, OUTSIDE: 0.0}, rel=0.01, abs=2e-6)
    assert found.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.05)
    host, started = HOSTS[one.fusion], whole.dealt.values()
    assert host.forward == host.backward
    seconds = sum(each.kernels * host.forward + each.collectives * host.collective for each in started)
    assert seconds * 0.999 <= found.seconds <= 1.001 * seconds + sum(found.parts.values()) - found.parts[HOST]


def test_programs_of_few_layers_are_those_of_plans():
    """But for what they make again, which they do not keep."""
    one = WHOLE["both axes"]
    hardware = replace(preset("a100"), device=replace(preset("a100").device, fusion=one.fusion))
    cost = plan(step_of(one, 4, 2 * one.axes.dp), mesh=one.axes.mesh, search=one.plan, hardware=hardware).cost
    found = Predictor()(one)
    assert sum(found.parts.values()) - found.parts[HOST] == pytest.approx(cost.seconds, rel=0.01)
    assert found.peak_bytes == pytest.approx(cost.peak_memory_bytes, rel=0.05)


def test_kernels_and_hosts_are_those_of_the_row():
    """Fusing takes no longer; older attention takes longer; a step of little work waits for the host."""
    made = [
        row("a", GPT, "zero3", ParallelDegrees(dp=2), sequence=256, fusion=how, overlap=how == "xla")
        for how in ("eager", "xla")
    ]
    eager, compiled = (Predictor()(one) for one in made)
    assert compiled.parts["rest"] < eager.parts["rest"] and compiled.parts["over dp"] < eager.parts["over dp"]
    assert eager.parts[HOST] > 0 == eager.parts["outside"]
    older = Predictor()(row("a", LLAMA, "zero3", ParallelDegrees(dp=2), sequence=4096, attention="older"))
    newer = Predictor()(row("a", LLAMA, "zero3", ParallelDegrees(dp=2), sequence=4096))
    assert older.parts["attention"] > newer.parts["attention"]


def test_hand_written_kernels_update_all_parameters_at_once_and_wait_behind_each_pass():
    one = row("a", GPT, "data_parallel", ParallelDegrees(dp=2), fusion="kernels", attention="apart", global_batch=12)
    measures = _step_of(one, 2, preset("a100"))
    apart, joined = (measures.measured(preset("a100"), joins).dealt for joins in (False, True))
    for slot, each in apart.items():
        if slot.when == EACH:
            assert joined[slot] == each
            continue
        assert each.kernels >= joined[slot].kernels <= 1 >= joined[slot].collectives
        for part, seconds in each.ledger.items():
            assert joined[slot].ledger.get(part, 0.0) <= seconds
    whole = sum(each.ledger.get("over dp", 0.0) for each in joined.values())
    assert 0 < whole < 0.5 * sum(each.ledger.get("over dp", 0.0) for each in apart.values())
    slow, ahead = HostTimes(3e-5, 1e-5, 0.0, "", waits=True), HostTimes(3e-5, 1e-5, 0.0, "")
    passes = [SlotWork({"products": 1e-3}, 100, 0)], [SlotWork({"products": 2e-3}, 100, 0)]
    assert RowRates(slow, 0.0).done(*passes, times=2).seconds == pytest.approx(2 * (3e-3 + 2e-3), rel=0.02)
    assert RowRates(ahead, 0.0).done(*passes, times=2).seconds == pytest.approx(2 * (3e-3 + 1e-3), rel=0.2)


def test_micro_batches_update_and_reduce_once():
    for reduced, reductions in (("step", 1), ("micro batch", 3)):
        more = {"sequence": 512, "reduced": reduced}
        once, thrice = (
            Predictor()(row("a", GPT, "data_parallel", ParallelDegrees(dp=2), global_batch=4 * n, **more))
            for n in (1, 3)
        )
        for part in ("products", "attention"):
            assert thrice.parts[part] == pytest.approx(3 * once.parts[part])
        assert thrice.parts["update"] == pytest.approx(once.parts["update"])
        assert thrice.parts["over dp"] == pytest.approx(reductions * once.parts["over dp"], rel=0.05)
        assert once.parts["gradient sums"] == 0 < thrice.parts["gradient sums"]


def test_sums_of_gradients_are_of_the_type_that_is_computed_in():
    """Megatron-LM: f16 in steps of f16, f32 in those of bf16."""
    more = {"sequence": 512, "global_batch": 12, "fusion": "kernels", "attention": "apart"}
    narrow, wide = (
        Predictor()(row("a", GPT, "data_parallel", ParallelDegrees(dp=2), precision=kind, **more)).parts[SUMS]
        for kind in ("f16", "bf16")
    )
    assert 0 < narrow < wide
    half, whole = (adding_seconds(10**9, preset("a100"), sums) for sums in (2, 4))
    assert half == pytest.approx((2 + 2 + 2) / (2 + 4 + 4) * whole, rel=0.01)


def test_hosts_of_ranks_of_one_node_wait_for_each_other():
    apart = {"sequence": 64, "fusion": "kernels", "attention": "apart"}
    rates = [rates_of(row("a", GPT, "megatron", ParallelDegrees(tp=tp), **apart), preset("a100")) for tp in (1, 2, 16)]
    assert [one.ranks for one in rates] == [1, 2, 8]
    work = SlotWork({}, 10, 4)
    alone, pair, node = (one.done([work]).seconds for one in rates)
    assert pair - alone == pytest.approx(4 * HOSTS["kernels"].crowd, rel=0.1) and node - alone > 40 * (pair - alone)


STAGES = {
    "two stages": row("a", GPT, "data_parallel", ParallelDegrees(dp=2, pp=2), global_batch=16, recompute="full"),
    "four, tensor parallel": row("b", GPT, "megatron", ParallelDegrees(dp=2, tp=2, pp=4), global_batch=16),
    "chunks in turn": row(
        "c", LLAMA, "zero3", ParallelDegrees(dp=2, pp=2), global_batch=32, chunks=2, reduced="micro batch"
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_have_all_that_the_step_has(name, monkeypatch):
    """Together they compute as long as one device that does all of it, but for a tied table that two update; without
    common buffers, whose latency collectives of several layers share."""
    monkeypatch.setattr(predict, "DEFAULT", tuple(name for name in predict.DEFAULT if name != "combine"))
    one = STAGES[name]
    predictor = Predictor()
    few, more = (predictor._measures(one, layers) for layers in (1, 2))
    loads = [load(one, few.of_stage(one, more, *each), RowRates(HOSTS["none"], 0.0)) for each in dealt_out(one)]
    once, twice = parts_of(few, one), parts_of(more, one)
    for part in ("attention", "products", "loss", "over dp", "over tp"):
        found = sum(each.parts(one.micro_batches).get(part, 0.0) for each in loads)
        whole = once.get(part, 0.0) + 3 * (twice.get(part, 0.0) - once.get(part, 0.0))
        assert found == pytest.approx(whole, rel=1e-6, abs=1e-12), part
    step = predictor(one)
    assert sum(step.parts.values()) == pytest.approx(step.seconds) and step.parts["stages"] > 0


def test_stages_wait_as_their_schedule_says():
    """Each further micro batch takes as long as the one before; chunks in turn wait less; a stage needs less memory."""
    many = {"sequence": 256, "recompute": "full"}
    rows = [row("a", GPT, "data_parallel", ParallelDegrees(pp=2), global_batch=2 * m, **many) for m in (4, 5, 6)]
    four, five, six = (Predictor()(one).seconds for one in rows)
    assert six - five == pytest.approx(five - four, rel=0.01)
    chunked = Predictor()(row("a", GPT, "data_parallel", ParallelDegrees(pp=2), global_batch=8, chunks=2, **many))
    assert 0 < chunked.parts["stages"] < Predictor()(rows[0]).parts["stages"]
    alone = row("a", GPT, "data_parallel", ParallelDegrees(), global_batch=8, **many)
    assert Predictor()(rows[0]).peak_bytes < Predictor()(alone).peak_bytes


def test_what_no_plan_expresses_is_named():
    many = (
        row("a", GPT, "megatron", ParallelDegrees(pp=8)),
        row("b", GPT, "zero3", ParallelDegrees(cp=2)),
        row("c", GPT, "expert_parallel", ParallelDegrees(dp=2, ep=2)),
        row("g", DecoderModel("mixture"), "zero1", ParallelDegrees(dp=2)),
        row("d", GPT, "zero3", ParallelDegrees(dp=2), precision="f8"),
        row("e", DecoderModel("gpt", 64, 4, 3, 96), "no such plan", ParallelDegrees(dp=2)),
        row("f", GPT, "megatron", ParallelDegrees(tp=5)),
    )
    found = [Predictor()(one) for one in many]
    assert all(one.refused for one in found)
    assert refusals(found)["more stages than layers"] == 1
    assert score("all", found) is None and rankings(found) == ()


def test_sequences_in_parts():
    """Devices that share a sequence work alike on causal attention, and hold parts of the weights."""
    big, many = DecoderModel("llama", 1024, 2, 8, 96, ffn=96, kv_heads=4), {"sequence": 8192, "recompute": "full"}
    whole = Predictor()(row("a", big, "zero3", ParallelDegrees(dp=4), global_batch=8, **many))
    parts = Predictor()(
        row("b", big, "zero3(cp) + context_parallel(cp)", ParallelDegrees(cp=4), global_batch=2, **many)
    )
    both = "zero3(dp.cp) + context_parallel(cp)"
    mixed = Predictor()(row("c", big, both, ParallelDegrees(dp=2, cp=2), global_batch=4, **many))
    assert parts.parts["attention"] < 1.35 * whole.parts["attention"] / 4, "in order the last would do 1.75"
    assert mixed.parts["attention"] < 1.35 * whole.parts["attention"] / 2
    assert parts.peak_bytes < mixed.peak_bytes < whole.peak_bytes
    assert "over cp" in parts.parts and "over dp.cp" in mixed.parts


MIXTURE = DecoderModel("mixture", 64, 2, 4, 96, experts=8, active=2, expert_inner=48, shared_inner=32)
LATENT = {"query_latent": 24, "key_latent": 16, "head_width": 16, "rotary": 8}


@pytest.mark.parametrize("latent", [{}, LATENT])
def test_mixtures_send_tokens_to_their_experts(latent):
    """Experts are split, tokens go to them and back, and other weights lie in parts on all devices that split data."""
    model = DecoderModel(**{**{one: getattr(MIXTURE, one) for one in MIXTURE.__struct_fields__}, **latent})
    one = row("r", model, "zero3_keep(dp.ep) + expert_parallel(ep)", ParallelDegrees(dp=4, ep=2), global_batch=8)
    found = Predictor()(one)
    assert not found.refused and found.parts["products"] > 0
    step = step_of(one, 1, 4)
    planned = plan(step, mesh=one.axes.mesh, search=one.plan, hardware="a100", passes=False)
    verify_program(planned.program)
    kinds = {(of.step.kind, ".".join(ref.name for ref in of.step.axes)) for of in planned.program.collectives}
    assert {("all_to_all", "ep"), ("reduce_scatter", "dp.ep")} <= kinds
    split = {value.name: str(planned.plan.layouts[value]) for value in planned.graph.inputs}
    experts = [layout for name, layout in split.items() if name.endswith("layers.0.inner.gate")]
    assert experts and all(layout.startswith("ep") for layout in experts)


def test_products_in_8_bits():
    big = DecoderModel("llama", 2048, 2, 16, 4096, ffn=8192, kv_heads=4)
    wide, narrow = (
        Predictor()(Row("r", "t", big, 2048, "h100", ParallelDegrees(dp=2), "zero3", 4, 2, Measurement(1.0),
                        precision=precision))
        for precision in ("bf16", "f8")
    )  # fmt: skip
    assert 0.5 < narrow.parts["products"] / wide.parts["products"] < 0.9, "half the time, and rounding"
    assert narrow.parts["attention"] == wide.parts["attention"]


def test_rows_of_torchtitan():
    """Contexts in parts, 8 bits and stages, as its tables have them."""
    rows = load_rows(next(one for one in shipped() if "torchtitan" in one.name)).rows
    plans = {str(one.axes): one.plan for one in rows}
    assert plans["dp=4 cp=2"] == "zero3(dp.cp) + context_parallel(cp)" and "cp=8" in plans
    assert plans["pp=8 dp=8 tp=8"] == "zero3_keep(dp) + megatron_sp(tp)" and plans["dp=8"] == "zero3"
    found = {one.id: Predictor()(one) for one in rows if one.axes.cp == 2}
    assert all(0.85 < one.ratio < 1.15 for one in found.values())


def test_weights_that_are_gathered_ahead_are_few_of_all_layers():
    rows = load_rows(next(one for one in shipped() if "llm_foundry" in one.name)).rows
    (row,) = [one for one in rows if "30b s512 8 a100_80gb" in one.id]  # it ran, so it fits
    found = Predictor()(row)
    assert 16 * 30e9 / 8 < found.peak_bytes < found.device_bytes
    assert fit_told([found]) == "Of 1 steps that ran, 0 are predicted to need more memory than there is."
    above = replace(found, device_bytes=found.peak_bytes / 1.25)
    assert "1 are predicted to need more memory than there is, by up to 25 %" in fit_told([found, above])


def test_scores():
    predicted = (1.0, 1.1, 0.8, 2.0)
    found = [
        Prediction(
            Row("r", "t", GPT, 8, "a100", ParallelDegrees(), "zero1", 1, 1, Measurement(float(i + 1), 2.0)),
            {"x": (i + 1) * one},
            2.0**30,
        )
        for i, one in enumerate(predicted)
    ]
    found_score = score("all", found)
    assert found_score is not None
    assert (found_score.count, found_score.worst, found_score.memory_count) == (4, 1.0, 4)
    assert found_score.median_error == pytest.approx(0.15) and found_score.bias == pytest.approx(1.05)
    assert found_score.nine_of_ten == 1.0 and found_score.memory_error == pytest.approx(0.5)
    (ranked,) = rankings(found)
    assert (ranked.count, ranked.correlation, ranked.regret) == (4, 1.0, 0.0)
    assert rankings(found[:3]) == ()
