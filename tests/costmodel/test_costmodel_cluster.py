"""Cluster files: what they say as hardware, and what is wrong with others."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel import group_levels, listed_levels, load, preset, save
from costmodel.units import parse_rate, parse_seconds

LAB = """
name = "lab"
nodes = 4
devices = 8
[device]
like = "h100"
memory = "94 GB"
[[links]]
name = "NVLink"
joins = 8
bandwidth = "450 GB/s"
latency = "2 us"
[[links]]
name = "rails"
joins = 32
bandwidth = 50e9
latency = 4e-6
"""
OWN = """
[device]
memory = 16000000000
memory_bandwidth = "1 TB/s"
launch = "5 us"
peak_flops = { f32 = 20e12, bf16 = 80e12 }
"""


def written(folder, text: str) -> str:
    path = folder / "lab.toml"
    path.write_text(text, encoding="latin-1")
    return str(path)


def test_a_cluster_is_hardware(tmp_path):
    found = preset(written(tmp_path, LAB))
    assert [(span, link.name, link.bandwidth, link.latency) for span, link in found.topology.levels] == [
        (8, "NVLink", 450e9, 2e-6),
        (32, "rails", 50e9, 4e-6),
    ]
    assert found.device.memory_bytes == 94 * 10**9
    assert found.device.peak_flops == preset("h100").device.peak_flops


def test_a_device_of_its_own(tmp_path):
    text = LAB.replace('[device]\nlike = "h100"\nmemory = "94 GB"\n', OWN)
    device = preset(written(tmp_path, text)).device
    assert (device.peak("bf16"), device.memory_bandwidth, device.launch_seconds) == (80e12, 1e12, 5e-6)


def test_power_and_kernels_of_a_cluster(tmp_path):
    """A limit of power slows products, not memory; a hardware file keeps both."""
    limited = LAB.replace('memory = "94 GB"', 'memory = "94 GB"\npower = "500 W"\nfusion = "inductor"')
    found, whole = preset(written(tmp_path, limited)), preset("h100").device
    assert found.device.compute_efficiency == pytest.approx(whole.compute_efficiency * (390 / 590) ** 0.4)
    assert found.device.compute_efficiency == pytest.approx(preset("h100-500w").device.compute_efficiency)
    assert (found.device.memory_bandwidth, found.device.fusion) == (whole.memory_bandwidth, "inductor")
    assert load(save(found, tmp_path / "lab.json")) == found


WRONG = {
    "no power": (LAB.replace("[[links]]", 'power = "500 V"\n[[links]]', 1), r"\[device\] power: '500 V' is no power"),
    "too much power": (
        LAB.replace("[[links]]", "power = 900\n[[links]]", 1),
        "power is 900 W; it is above 110, to 700 W",
    ),
    "power of a device of its own": (
        LAB.replace('[device]\nlike = "h100"\nmemory = "94 GB"\n', OWN + 'power = "1 kW"\n'),
        "does not say at which power its rates are, to take 1000 W of",
    ),
    "kernels": (LAB.replace("[[links]]", 'fusion = "jit"\n[[links]]', 1), "fusion is 'jit'; it is one of none, eager"),
    "no TOML": (LAB.replace("nodes = 4", "nodes = "), "Invalid value"),
    "unknown field": (LAB.replace("nodes = 4", "nodes = 4\nracks = 2"), "unknown field `racks`"),
    "missing": (LAB.replace("nodes = 4", ""), "missing required field `nodes`"),
    "another kind": (LAB.replace("nodes = 4", 'nodes = "four"'), r"Expected `int`, got `str` - at `\$.nodes`"),
    "too few joined": (LAB.replace("nodes = 4", "nodes = 5"), "joins 32, but 5 nodes of 8 devices are 40"),
    "nodes cut": (LAB.replace("devices = 8", "devices = 16").replace("nodes = 4", "nodes = 2"), "none of them the 16"),
    "order": (LAB.replace("joins = 8", "joins = 12"), "divides by it"),
    "no preset": (LAB.replace('"h100"', '"h1000"'), "is like 'h1000', which is no preset; there are cpu"),
    "no rate": (LAB.replace("450 GB/s", "450 GB/h"), "link 'NVLink': '450 GB/h' is no rate"),
    "no second": (LAB.replace("450 GB/s", "450 GiB"), "link 'NVLink': '450 GiB' is no rate; write bytes per second"),
    "below 0": (LAB.replace("450 GB/s", "-450 GB/s"), "link 'NVLink': '-450 GB/s' is no rate; write bytes per second"),
    "no time": (LAB.replace("2 us", "2 days"), "link 'NVLink': '2 days' is no time"),
    "negative": (LAB.replace("50e9", "-50e9"), "bandwidth is -50000000000.0"),
    "not a number": (LAB.replace("50e9", "nan"), "bandwidth is nan"),
    "near field": (
        LAB.replace("latency = 4e-6", "latncy = 4e-6"),
        r"unknown field `latncy` - at `\$.links\[1\]`; did you mean latency",
    ),
    "bits": (
        LAB.replace("450 GB/s", "400 Gb/s"),
        "'400 Gb/s' counts bits, and bandwidths are in bytes: write '50 GB/s'",
    ),
    "no dtype": (
        LAB.replace("[[links]]", "peak_flops = { f32 = 1e12, BF16 = 9e12 }\n[[links]]", 1),
        "'BF16', which is no element type; did you mean bf16",
    ),
    "another encoding": (LAB.replace("lab", "l\u00e4b"), "it is no text in UTF-8"),
    "half a device": (LAB.replace('like = "h100"\n', ""), "lacks peak_flops, memory_bandwidth, launch"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(tmp_path, name):
    text, told = WRONG[name]
    with pytest.raises(ValueError, match=r"cluster file .*lab.toml: .*" + told):
        preset(written(tmp_path, text))


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="there is no cluster file .*none.toml"):
        preset(str(tmp_path / "none.toml"))


def test_rates_and_times():
    assert (parse_rate("1.5 TB/s"), parse_rate(12), parse_seconds("3 ms"), parse_seconds("250ns")) == (
        1.5e12, 12.0, 3e-3, 2.5e-7,
    )  # fmt: skip
    assert parse_seconds("1.9 \u00b5s") == parse_seconds("1.9 \u03bcs") == 1.9e-6


def test_a_mark_of_the_encoding_is_passed_over(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(LAB, encoding="utf-8-sig")
    assert preset(str(path)).name == "lab"


def test_kinds_of_eight_bits_run_like_them():
    device = preset("h100").device
    assert device.peak("f8e4m3fn") == device.peak("f8") > device.peak("bf16") and device.peak("i16") == device.peak(
        "f32"
    )


def test_levels_of_listed_groups_are_those_of_strides(tmp_path):
    topology = preset(written(tmp_path, LAB)).topology
    ranks = np.arange(32)
    for count, stride in ((4, 1), (8, 1), (4, 8), (16, 2), (32, 1), (2, 4)):
        first = ranks[ranks // stride % count == 0]
        rows = first[:, None] + np.arange(count) * stride
        assert listed_levels(topology, rows) == group_levels(topology, [(count, stride)])
