"""Hardware in files: what is saved comes back, and what is no hardware is refused with the place."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from costmodel import (
    CollectiveCurve,
    Hardware,
    Link,
    OperatorCurve,
    Topology,
    calibrated_path,
    load,
    preset,
    presets,
    save,
)

CURVE = CollectiveCurve("all_reduce", 4, 2e-6, 1e-9, 4096.0, 3e-10)
WORK = OperatorCurve("Add", "f32", 1e-6, 0.0, 1e-10, 0.0, 1e-10)


def measured() -> Hardware:
    device = replace(preset("cpu").device, operators=(WORK,))
    inner = Hardware("4 ranks", device, Topology(((None, Link("MPI", 1e-6, 4e9, "here", (CURVE,))),)))
    return replace(inner, name="all", by_ranks=((4, inner),))


@pytest.mark.parametrize("name", [*presets(), "measured"])
def test_what_is_saved_comes_back(tmp_path, name):
    hardware = measured() if name == "measured" else preset(name)
    path = save(hardware, tmp_path / "folder" / "hardware.json")
    assert load(path) == hardware == preset(str(path))
    assert [one.name for one in path.parent.iterdir()] == ["hardware.json"]


def test_calibrated_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv("AUTOSHARD_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrated_path() == tmp_path / "autoshard" / "calibrated.json"
    with pytest.raises(ValueError, match=r"no hardware file .*calibrated.json; `autoshard calibrate -n RANKS`"):
        preset("calibrated")
    monkeypatch.setenv("AUTOSHARD_CALIBRATION", str(tmp_path / "mine.json"))
    save(measured(), calibrated_path())
    assert preset("calibrated") == measured()


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(measured(), tmp_path / "hardware.json")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("costmodel.whole_file.os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        save(preset("h100"), path)
    assert load(path) == measured()
    assert [one.name for one in tmp_path.iterdir()] == ["hardware.json"]


def edited(tmp_path, *place, value):
    """A saved file with one entry changed."""
    path = save(measured(), tmp_path / "hardware.json")
    data = json.loads(path.read_text())
    at = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    "place, value, words",
    [
        (("format",), "a poem", r"Invalid enum value 'a poem' - at `\$.format`"),
        (("version",), 2, r"Invalid enum value 2 - at `\$.version`"),
        (("more",), 1, "unknown field `more`"),
        (("hardware",), [], r"Expected `object`, got `array` - at `\$.hardware`"),
        (("hardware", "name"), 3, r"Expected `str`, got `int` - at `\$.hardware.name`"),
        (("hardware", "device", "launch_seconds"), "1", r"got `str` - at `\$.hardware.device.launch_seconds`"),
        (("hardware", "device", "launch_seconds"), True, "got `bool`"),
        (("hardware", "device", "launch_seconds"), -1, "launch_seconds is -1"),
        (("hardware", "device", "launch_seconds"), 7, "launch_seconds is 7; it is in seconds, 0 to 1"),
        (("hardware", "device", "memory_bytes"), 80, "memory_bytes is 80; it is in bytes, 1.04858e[+]06 to"),
        (("hardware", "device", "memory_bandwidth"), 3350, "memory_bandwidth is 3350; it is in bytes per second"),
        (("hardware", "device", "peak_flops"), [["f32", 67.0]], "peak_flops of f32 is 67; it is in operations per"),
        (("hardware", "topology", 0, 1, "bandwidth"), 450, "bandwidth is 450; .*another unit"),
        (("hardware", "topology", 0, 1, "latency"), 14, "latency is 14; it is in seconds"),
        (("hardware", "device", "memory_bytes"), 1.5, r"Expected `int`, got `float` - at `.*memory_bytes`"),
        (("hardware", "device", "peak_flops"), [["f32"]], r"`array` of length 2 - at `.*peak_flops\[0\]`"),
        (("hardware", "device", "peak_flops"), [["f64", 1.0]], "needs an f32 entry"),
        (("hardware", "device", "operators", 0, "launch"), float("nan"), "JSON is malformed"),
        (("hardware", "device", "operators", 0, "launch"), 10**400, "Number out of range"),
        (("hardware", "topology", 0, 1, "curves", 0, "ranks"), 1, "at least 2"),
        (("hardware", "topology", 0, 1, "curves", 0, "knee"), None, r"topology\[0\]\[1\].curves\[0\].knee`"),
        (("hardware", "topology", 0, 0), "two", r"topology\[0\]\[0\]`"),
        (("hardware", "topology"), [], "at least one"),
        (("hardware", "by_ranks", 0, 0), 0, "the numbers grow from 1"),
        (("hardware", "by_ranks", 0, 1, "device"), None, r"by_ranks\[0\]\[1\].device`"),
    ],
)
def test_what_is_no_hardware_is_refused(tmp_path, place, value, words):
    path = edited(tmp_path, *place, value=value)
    with pytest.raises(ValueError, match=words) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path} is no hardware file: ")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '"__import__"', "\x00\xff"])
def test_any_other_text_is_refused(tmp_path, text):
    path = tmp_path / "hardware.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no hardware file"):
        load(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="there is no hardware file"):
        preset(str(tmp_path / "missing.json"))
    with pytest.raises(ValueError, match="cannot read the hardware file"):
        load(tmp_path)
    with pytest.raises(ValueError, match="no hardware preset 'abacus'; there are cpu, .*, calibrated, or a FILE.json"):
        preset("abacus")
