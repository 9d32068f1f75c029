"""Devices, topologies and presets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel import Device, Link, Topology, preset, presets

INNER, MIDDLE, OUTER = Link("inner", 1e-6, 6e10), Link("middle", 2e-6, 2e10), Link("outer", 4e-6, 1e10)


def device(**changes):
    fields = {
        "name": "d",
        "peak_flops": (("f32", 6e12), ("bf16", 24e12)),
        "memory_bandwidth": 1e12,
        "memory_bytes": 4 * 2**30,
        "launch_seconds": 4e-6,
    }
    return Device(**(fields | changes))


def test_peak_by_dtype_falls_back_to_f32():
    assert device().peak("bf16") == 24e12
    assert device().peak("i32") == device().peak("f32") == 6e12


def test_device_takes_a_mapping_and_stays_hashable():
    assert device(peak_flops={"f32": 6e12, "bf16": 24e12}) == device()
    assert len({device(peak_flops={"f32": 6e12, "bf16": 24e12}), device()}) == 1


def test_replaced_device_forgets_the_old_peaks():
    slow = device()
    assert slow.peak("f32") == 6e12
    assert replace(slow, peak_flops=(("f32", 12e12),)).peak("bf16") == 12e12


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"peak_flops": (("bf16", 1e12),)}, "needs an f32 entry"),
        ({"peak_flops": (("f32", 0.0),)}, "peak_flops of f32 is 0"),
        ({"memory_bandwidth": -1.0}, "memory_bandwidth is -1"),
        ({"memory_bytes": 0}, "memory_bytes is 0"),
        ({"launch_seconds": float("nan")}, "launch_seconds is nan"),
        ({"compute_efficiency": 1.2}, "compute_efficiency is 1.2"),
        ({"memory_efficiency": 0.0}, "memory_efficiency is 0"),
    ],
)
def test_device_refuses(changes, part):
    with pytest.raises(ValueError, match=part):
        device(**changes)


@pytest.mark.parametrize("latency, bandwidth", [(-1e-6, 1e9), (1e-6, 0), (float("inf"), 1e9), (1e-6, float("nan"))])
def test_link_refuses(latency, bandwidth):
    with pytest.raises(ValueError, match="link 'l'"):
        Link("l", latency, bandwidth)


def test_topology_finds_the_innermost_level_that_holds_the_group():
    topology = Topology(((4, INNER), (12, MIDDLE), (None, OUTER)))
    found = [topology.link(span).name for span in (1, 2, 4, 5, 12, 13, 10**6)]
    assert found == ["inner", "inner", "inner", "middle", "middle", "outer", "outer"]


def test_topology_with_an_end():
    topology = Topology(((6, INNER), (24, OUTER)))
    assert topology.link(24) is OUTER
    with pytest.raises(ValueError, match="spans 25 ranks but the topology ends at 24"):
        topology.link(25)
    with pytest.raises(ValueError, match="at least 1 rank, not 0"):
        topology.link(0)


@pytest.mark.parametrize(
    "levels",
    [
        (),
        ((None, INNER), (4, OUTER)),
        ((4, INNER), (4, OUTER)),
        ((12, INNER), (4, OUTER)),
        ((4, INNER), (10, OUTER)),
        ((0, INNER),),
    ],
)
def test_topology_refuses(levels):
    with pytest.raises(ValueError, match="topology"):
        Topology(levels)


def test_topology_from_lists_is_hashable():
    listed = Topology([[4, INNER], [None, OUTER]])  # pyright: ignore[reportArgumentType]
    assert hash(listed) == hash(Topology(((4, INNER), (None, OUTER))))


def test_preset_names():
    wanted = {
        "cpu",
        "cpu-gloo",
        "a100",
        "a100-40gb",
        "a100-4x200",
        "h100",
        "h100-500w",
        "h200",
        "b200",
        "gb200",
        "mi300x",
        "tpu_v4",
        "tpu_v5e",
        "tpu_v5p",
        "tpu_v6e",
        "trainium2",
    }
    wanted |= {"ascend910", "ascend910b"}
    assert set(presets()) == wanted
    assert preset("a100-80gb") is preset("a100") and preset("h100-700w") is preset("h100")
    with pytest.raises(ValueError, match="'h1000'; did you mean h100.*; there are .*h100"):
        preset("h1000")


@pytest.mark.parametrize("name", presets())
def test_preset_is_sound(name):
    hardware = preset(name)
    assert hardware.name == name
    assert hash(hardware) == hash(preset(name))
    assert hardware.device.source
    assert hardware.device.peak("bf16") <= hardware.device.peak("i8") or name.startswith("cpu")
    links = [link for _, link in hardware.topology.levels]
    assert all(link.source for link in links)
    assert hardware.topology.levels[-1][0] is None
    assert [link.bandwidth for link in links] == sorted((link.bandwidth for link in links), reverse=True)
    assert [link.latency for link in links] == sorted(link.latency for link in links)
    # A port is never faster than the memory that feeds it.
    assert links[0].bandwidth < hardware.device.memory_bandwidth


def test_presets_keep_the_order_of_generations():
    a100, h100, b200, gb200 = (preset(name) for name in ("a100", "h100", "b200", "gb200"))
    assert b200.device.peak("bf16") < gb200.device.peak("bf16") and gb200.topology.link(72) == b200.topology.link(8)
    for older, newer in ((a100, h100), (h100, b200)):
        assert older.device.peak("bf16") < newer.device.peak("bf16")
        assert older.device.memory_bandwidth < newer.device.memory_bandwidth
        assert older.topology.link(8).bandwidth < newer.topology.link(8).bandwidth
    v4, v5e, v5p, v6e = (preset(f"tpu_{name}").device.peak("bf16") for name in ("v4", "v5e", "v5p", "v6e"))
    assert v5e < v4 < v5p < v6e
