"""Seconds and bytes for a piece of hardware: numbers in, numbers out, no graphs.

    hardware    Device, Link, Topology, Hardware; preset("h100")
    collectives seconds("all_gather", nbytes, ranks, link) and one function per kind; bytes_moved; algorithms
    hierarchy   grouped_seconds: groups that span several levels of links; group_levels
    compute     operator_seconds(flops, nbytes, device, dtype)
    memory      peak(rows of first step, last step, bytes); live_bytes
    timeline    simulate(tasks, overlap): when each piece of a rank's program runs
    measure     seconds_each(action), CollectiveSample, OperatorSample
    fit         fit_device(samples), fit_link(samples): hardware from measurements
    store       save(hardware, path), load(path): hardware in files
    units       "9.8 us", "48 KiB", and back to bytes
    json_door   decode(text, kind), read(path, kind): JSON of strangers, checked
    whole_file  write_whole(path, text): files whole or not at all

>>> hardware = preset("h100")
>>> format_seconds(seconds("all_reduce", 2**20, 8, hardware.topology.link(8)))
'39.1 us'
"""

from __future__ import annotations

from costmodel.collectives import (
    KINDS,
    Algorithm,
    algorithms,
    all_gather,
    all_reduce,
    all_to_all,
    bytes_moved,
    permute,
    reduce_scatter,
    seconds,
)
from costmodel.compute import operator_seconds
from costmodel.curves import CollectiveCurve, OperatorCurve
from costmodel.hardware import Device, Hardware, Link, Topology
from costmodel.hierarchy import group_levels, grouped_seconds, listed_levels
from costmodel.memory import live_bytes, peak
from costmodel.presets import preset, presets
from costmodel.store import calibrated_path, load, save
from costmodel.timeline import Task, Timeline, simulate
from costmodel.units import format_bytes, format_count, format_seconds, parse_bytes

__all__ = [
    "KINDS",
    "Algorithm",
    "CollectiveCurve",
    "Device",
    "Hardware",
    "Link",
    "OperatorCurve",
    "Task",
    "Timeline",
    "Topology",
    "algorithms",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "bytes_moved",
    "calibrated_path",
    "format_bytes",
    "format_count",
    "format_seconds",
    "group_levels",
    "grouped_seconds",
    "listed_levels",
    "live_bytes",
    "load",
    "operator_seconds",
    "parse_bytes",
    "peak",
    "permute",
    "preset",
    "presets",
    "reduce_scatter",
    "save",
    "seconds",
    "simulate",
]
