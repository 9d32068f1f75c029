"""Which device each rank computes on, and what moves its tensors, by what torch sees on the ranks."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops, plan
from autoshard.engines.placement import NCCL, DevicePlacement, Seen, placements
from autoshard.util.errors import RuntimeSetupError, UnknownNameError

TWO = ("GPU-a", "GPU-b")


def _devices(asked: str, *seen: Seen) -> list[str]:
    return [one.device for one in placements(asked, seen)]


def test_ranks_of_a_host_take_its_devices_in_turn() -> None:
    one, other = Seen("one", TWO, True), Seen("other", ("GPU-c",), True)
    found = placements("auto", [one, other, one])
    assert found == tuple(DevicePlacement(name, name, NCCL) for name in ("cuda:0", "cuda:0", "cuda:1"))


def test_ranks_that_share_a_device_send_through_the_host() -> None:
    found = placements("cuda", [Seen("one", TWO, True)] * 3)
    assert [one.device for one in found] == ["cuda:0", "cuda:1", "cuda:0"]
    assert {(one.wire, one.backend) for one in found} == {("cpu", "gloo")}


def test_a_device_for_each_process_is_not_shared() -> None:
    """As where CUDA_VISIBLE_DEVICES shows each rank another one, by the same number."""
    found = placements("auto", [Seen("one", ("GPU-a",), True), Seen("one", ("GPU-b",), True)])
    assert found[1] == DevicePlacement("cuda:0", "cuda:0", NCCL)


def test_without_nccl_and_with_devices_that_are_chosen() -> None:
    assert placements("auto", [Seen("one", TWO, False)] * 2)[1] == DevicePlacement("cuda:1", "cpu", "gloo")
    ranks = [Seen("one", TWO, True, chosen=1), Seen("one", TWO, True, chosen=0)]
    assert _devices("auto", *ranks) == ["cuda:1", "cuda:0"]


def test_cpus_where_they_are_asked_for_or_a_rank_has_nothing_else() -> None:
    with_one, without = Seen("one", TWO, True), Seen("other")
    assert placements("cpu", [with_one]) == (DevicePlacement(),)
    assert placements("auto", [with_one, without]) == (DevicePlacement(), DevicePlacement())
    with pytest.raises(RuntimeSetupError, match=r"'cuda' was asked for, .* no CUDA device on other \(of rank 1\)"):
        placements("cuda", [with_one, without])
    with pytest.raises(UnknownNameError, match="unknown device 'cude'; did you mean 'cuda'"):
        placements("cude", [with_one])


def test_what_ranks_see_travels_as_plain_data() -> None:
    one = Seen("one", TWO, True, 1)
    assert Seen.of_data(one.as_data()) == one


@pytest.mark.parametrize(
    "placement, backends, wire",
    [
        (DevicePlacement("cuda:1", "cuda:1", NCCL), "cpu:gloo,cuda:nccl", "cuda:1"),
        (DevicePlacement("cuda:1", "cuda:1", NCCL), "cuda:nccl", "cuda:1"),
        (DevicePlacement("cuda:1", "cuda:1", NCCL), "cpu:gloo,cuda:gloo", "cpu"),
        (DevicePlacement("cuda:1", "cpu", "gloo"), "cpu:gloo,cuda:nccl", "cpu"),
        (DevicePlacement(), "cpu:gloo,cuda:nccl", "cpu"),
    ],
)
def test_groups_that_are_there_already(placement: DevicePlacement, backends: str, wire: str) -> None:
    assert placement.through(backends) == DevicePlacement(placement.device, wire, placement.backend)


@pytest.mark.parametrize("placement", [DevicePlacement(), DevicePlacement("cuda:0", "cpu", "gloo")])
def test_groups_that_move_nothing_of_cpus(placement: DevicePlacement) -> None:
    with pytest.raises(RuntimeSetupError, match=rf"backend 'cuda:nccl', but .* computes on {placement.device} and"):
        placement.through("cuda:nccl")


@pytest.mark.parametrize(
    "engine, device, kind, words",
    [
        ("numpy", "cuda", RuntimeSetupError, "the engine numpy computes on CPUs"),
        ("xla", "cpu", RuntimeSetupError, "on the devices that JAX has, not on device 'cpu'"),
        ("numpy", "gpu", UnknownNameError, "unknown device 'gpu'"),
        ("torhc", "cpu", UnknownNameError, "unknown engine 'torhc'"),
    ],
)
def test_devices_that_an_engine_does_not_compute_on(engine: str, device: str, kind: type, words: str) -> None:
    x = np.ones((4, 3), np.float32)
    planned = plan(ops.exp, (x,), "2")
    for asked in (planned.run, lambda _, **given: planned.check_engine(**given)):
        with pytest.raises(kind, match=words):
            asked(x, engine=engine, device=device)


@pytest.mark.torch
def test_a_device_that_is_not_there() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    x = np.ones((4, 3), np.float32)
    planned = plan(ops.exp, (x,), "2")
    with pytest.raises(RuntimeSetupError, match="torch sees no CUDA device"):
        planned.run(x, engine="torch", device="cuda")
    np.testing.assert_allclose(planned.run(x, engine="torch", device="cpu"), np.exp(x), rtol=1e-6)


def test_stages_of_numpy_run_on_cpus() -> None:
    from autoshard.pipeline.planning import PlannedPipeline

    with pytest.raises(RuntimeSetupError, match="computes on CPUs"):
        PlannedPipeline.check_engine(None, "numpy", "cuda")  # type: ignore[arg-type]
