"""Pipelines of equal layers: parts that are priced once give the price of the whole; the search finds the best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.api import known_hardware
from autoshard.partition.program import Bundle
from autoshard.pipeline import found_stages, plan_pipeline
from autoshard.pipeline.found_stages import layered_search
from autoshard.pipeline.joint.layered import DATA_PLANS
from autoshard.pipeline.joint.layered_step import LayeredChoice, plan_name
from autoshard.pipeline.joint.search import StageRequest
from autoshard.transform.layers import RepeatedLayers
from autoshard.truth.models import step_of
from autoshard.truth.rows import DecoderModel, Measurement, ParallelDegrees, Row
from autoshard.util.errors import GraphError, MemoryLimitError

LAYERS, BATCH, DEVICES = 8, 4, 2


def decoder(layers=LAYERS, batch=BATCH, sequence=128):
    model = DecoderModel("gpt", 256, layers, 8, 512)
    row = Row(
        id="", table="", model=model, sequence=sequence, hardware="a100", axes=ParallelDegrees(), plan="",
        global_batch=batch, micro_batch=1, measured=Measurement(1.0),
    )  # fmt: skip
    return step_of(row, layers, batch).traced


def search_of(traced, **settings):
    hardware = known_hardware("a100").for_ranks(DEVICES)
    layers = RepeatedLayers.of(traced.graph)
    assert layers is not None
    return layered_search(traced, layers, StageRequest(traced.graph, DEVICES, hardware, **settings))


@pytest.fixture(scope="module")
def search():
    return search_of(decoder(), schedules=("1f1b", "zb_h1"))


@pytest.mark.parametrize(
    ("groups", "data", "tensor", "plan", "schedule", "chunks"),
    [
        (2, 2, 1, "zero1", "1f1b", 1),
        (2, 2, 1, "zero3", "1f1b", 1),
        (2, 1, 2, "megatron_sp", "interleaved_1f1b", 2),
        (4, 1, 1, "data_parallel", "1f1b", 1),
    ],
)
def test_parts_give_the_price_of_the_whole(search, groups, data, tensor, plan, schedule, chunks):
    choice = LayeredChoice(groups, data, tensor, 1, BATCH // data, plan, "none", schedule, chunks)
    price = search.price(choice)
    starts = [sum(price.layers[:i]) for i in range(len(price.layers))]
    stages = {f"layers.{{{at}..{at + n - 1}}}": i for i, (at, n) in enumerate(zip(starts, price.layers, strict=True))}
    whole = plan_pipeline(
        decoder(), pipeline="/".join([str(choice.mesh)] * groups), stages=stages, search=plan, hardware="a100",
        micro_batches=choice.micro_batches, schedule=schedule, chunks=chunks if chunks > 1 else None,
    )  # fmt: skip
    assert price.seconds == pytest.approx(whole.price.seconds, rel=0.05)
    assert max(price.nbytes) == pytest.approx(max(one.nbytes for one in whole.price.memory), rel=0.15)


def test_parameters_of_many_layers_come_together_in_buffers_that_have_room():
    stages = {"layers.{0..5}": 0, "layers.{6..7}": 1}
    whole = plan_pipeline(
        decoder(), pipeline="dp=2/dp=2", stages=stages, search="zero1", hardware="a100", micro_batches=2
    )  # fmt: skip
    (update,) = (ready for (stage, kind), ready in whole.programs.pieces.items() if (stage, kind) == (0, "U0"))
    kinds = [getattr(getattr(one, "step", None), "kind", "") for one in update.program.instructions]
    bundles = [one for one in update.program.instructions if isinstance(one, Bundle)]
    assert "all_gather" not in kinds and 0 < len(bundles) < 4
    assert sum(len(one.parts) for one in bundles if one.parts[0].step.kind == "all_gather") > 40


@pytest.fixture(scope="module")
def priced(search):
    """All choices, priced."""
    found = []
    for groups, data, tensor, rows, (tensor_plan, again) in search._space():
        for data_plan in DATA_PLANS:
            plan = plan_name(data_plan, tensor_plan, data, tensor)
            for name, chunks in search._schedules(groups):
                count = BATCH // (data * rows)
                one = search.price(LayeredChoice(groups, data, tensor, rows, count, plan, again, name, chunks))
                found += [one] if one is not None else []
    return found


def test_the_fastest_of_all_choices_is_found(search, priced):
    best, told = search.run()
    assert told.gap == 0
    assert len(priced) > 20
    assert best.seconds == min(one.seconds for one in priced)
    assert told.bound <= best.seconds


def test_the_fastest_that_fits_is_found(search, priced):
    sizes, before = sorted({max(one.nbytes) for one in priced}), search.wanted
    try:
        for limit in sizes[:-1]:
            search.wanted = replace(before, limit=int(limit) + 1)
            best, told = search.run()
            assert best.seconds == min(one.seconds for one in priced if max(one.nbytes) <= limit + 1)
            assert told.gap == 0
    finally:
        search.wanted = before


def test_choices_like_one_that_needs_more_when_planned_whole_are_expected_to_need_more():
    search = search_of(decoder(), schedules=("1f1b",), limit=10**9)
    best, _ = search.run()
    search.learn(best, 2 * 10**9)
    other, _ = search.run()
    assert (other.choice.plan, other.choice.recompute) != (best.choice.plan, best.choice.recompute)


def test_one_group_holds_one_micro_batch():
    """All schedules take equally long there; what GPipe holds of all micro batches is no reason against one group."""
    search = search_of(decoder(batch=64))
    assert list(search._schedules(1)) == [("1f1b", 1)]
    prices = {
        name: search.price(LayeredChoice(1, 2, 1, 1, 32, "data_parallel", "none", name, 1))
        for name in ("1f1b", "gpipe")
    }
    assert prices["1f1b"].seconds == pytest.approx(prices["gpipe"].seconds)
    assert max(prices["1f1b"].nbytes) < max(prices["gpipe"].nbytes)


def test_a_limit_is_refused():
    with pytest.raises(MemoryLimitError, match="keeps to the memory limit of 1000 B: the least that one needs is"):
        search_of(decoder(), schedules=("1f1b",), limit=1000).run()


def test_what_is_found_keeps_to_the_limit_when_it_is_planned_whole(monkeypatch):
    """What is added up of layers may be less than what the pipeline takes."""
    monkeypatch.setattr(found_stages, "MOST_PLACES", 0)
    free = plan_pipeline(decoder(), mesh="2", pipeline="auto", schedule="1f1b", hardware="a100")
    limit = max(one.nbytes for one in free.price.memory) * 8 // 10
    found = plan_pipeline(decoder(), mesh="2", pipeline="auto", schedule="1f1b", hardware="a100", memory=limit)
    assert max(one.nbytes for one in found.price.memory) <= limit
    assert found.price.seconds >= free.price.seconds


def test_what_no_pipeline_keeps_to_names_the_stage_and_what_is_largest_there(monkeypatch):
    monkeypatch.setattr(found_stages, "MOST_PLACES", 0)
    with pytest.raises(MemoryLimitError, match=r"which runs stages? \d.*, holds .* \(.*weight.*\)") as refused:
        plan_pipeline(decoder(), mesh="2", pipeline="auto", schedule="1f1b", hardware="a100", memory=1000)
    assert refused.value.needed > refused.value.limit == 1000


def test_what_is_found_is_planned_whole(monkeypatch):
    monkeypatch.setattr(found_stages, "MOST_PLACES", 0)
    found = plan_pipeline(decoder(), mesh="2", pipeline="auto", schedule="1f1b", hardware="a100")
    assert found.searched is not None and [one.groups for one in found.searched.others] == [1]
    assert found.price.seconds == pytest.approx(found.searched.seconds, rel=0.1)
    assert "pipelines priced of" in found.report()


@pytest.mark.parametrize("pieces", [1, 2])
def test_links_of_one_kind_and_a_loss_in_pieces(monkeypatch, pieces):
    monkeypatch.setattr(found_stages, "MOST_PLACES", 0)
    found = plan_pipeline(decoder(), mesh="2", pipeline="auto", schedule="1f1b", loss_pieces=pieces)
    assert found.searched is not None and found.loss_pieces == pieces


def test_micro_batches_whose_rows_no_pieces_divide_are_left_out():
    """30 words are no 4 pieces, 4 sequences are; 7 divides neither."""
    found, _ = search_of(decoder(batch=16, sequence=30), loss_pieces=4).run()
    assert found.choice.rows * found.choice.data % 4 == 0
    with pytest.raises(GraphError, match="no dim of rows that 7 divides"):
        search_of(decoder(batch=16, sequence=30), loss_pieces=7).run()
