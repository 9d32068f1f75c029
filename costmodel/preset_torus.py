"""Presets of chips that are joined as a torus: Google's TPUs and AWS' Trainium; `preset_table.py` holds the others.

All have presets of one form: a chip, the axes of its torus, the network between pods.
"""

from __future__ import annotations

from costmodel.hardware import Device, Hardware, Link, Topology

TERA, GB, GIB, US = 1e12, 1e9, 2**30, 1e-6

_LAUNCH = 1 * US  # planning: compiled programs start operators from the chip itself
_DCN_STEP = 20 * US  # planning


def _torus(name: str, device: Device, pod: int, torus: str, ici: float, dcn_gbits: int, links: str = "ICI") -> Hardware:
    """A pod of chips; `ici` is the bytes per second that a chip sends along one torus axis, both ways."""
    inside = Link(
        f"{links}, one axis of a {torus}",
        1 * US,  # planning: one hop
        ici,
        source="planning: both links of one wrapped torus axis, 0.9 of line rate; an axis of 2 or without "
        "wrap-around gets half, and an all_to_all over n > 4 ranks takes n/4 times longer than a crossbar",
    )
    outside = Link(
        "data center network",
        _DCN_STEP,
        dcn_gbits / 8 * GB,
        source="the vendor's documentation, Gb/s per chip",
    )
    return Hardware(name, device, Topology(((pod, inside), (None, outside))))


def _tpu_device(name: str, bf16: float, i8: float, bandwidth: float, memory_bytes: int) -> Device:
    return Device(
        name,
        # bf16 and i8 as documented; f32 as six bf16 passes of the matrix unit, planning; i32 like f32,
        # planning
        (("f32", bf16 / 6), ("bf16", bf16), ("f16", bf16 / 6), ("i8", i8), ("i32", bf16 / 6)),
        memory_bandwidth=bandwidth,
        memory_bytes=memory_bytes,
        launch_seconds=_LAUNCH,
        source="Google Cloud TPU documentation for bf16, i8 and HBM; other dtypes are planning figures",
    )


_TPU_V4 = _torus(
    "tpu_v4",
    _tpu_device("TPU v4", 275 * TERA, 275 * TERA, 1228 * GB, 32 * GIB),
    pod=4096,
    torus="3-D torus",
    ici=90 * GB,
    dcn_gbits=25,  # DCN: planning, the documentation names none
)
_TPU_V5E = _torus(
    "tpu_v5e",
    _tpu_device("TPU v5e", 197 * TERA, 393 * TERA, 819 * GB, 16 * GIB),
    pod=256,
    torus="2-D torus",
    ici=90 * GB,
    dcn_gbits=25,
)
_TPU_V5P = _torus(
    "tpu_v5p",
    _tpu_device("TPU v5p", 459 * TERA, 918 * TERA, 2765 * GB, 95 * GIB),
    pod=8960,
    torus="3-D torus",
    ici=180 * GB,
    dcn_gbits=50,
)
# v6e and Trainium2: links as those of the older parts, 0.9 of both ports of an axis.
_TPU_V6E = _torus(
    "tpu_v6e",
    _tpu_device("TPU v6e (Trillium)", 918 * TERA, 1836 * TERA, 1638 * GB, 32 * 10**9),
    pod=256,
    torus="2-D torus",
    ici=180 * GB,  # 800 GB/s both ways on four ports
    dcn_gbits=100,  # planning: four adapters of 200 Gb/s for a host of eight chips
)
_TRAINIUM2 = _torus(
    "trainium2",
    Device(
        "Trainium2",
        # AWS Neuron documentation, dense; i8 is not documented and taken to run like f8
        (
            ("f32", 181 * TERA),
            ("tf32", 667 * TERA),
            ("f16", 667 * TERA),
            ("bf16", 667 * TERA),
            ("f8", 1299 * TERA),
            ("i8", 1299 * TERA),
            ("i32", 181 * TERA),
        ),
        memory_bandwidth=2900 * GB,
        memory_bytes=96 * GIB,
        launch_seconds=_LAUNCH,
        source="AWS Neuron documentation, Trainium2 architecture; a device is a chip of eight cores; i32: planning",
    ),
    pod=16,
    torus="4 x 4 torus of one trn2.48xlarge",
    ici=288 * GB,  # NeuronLink-v3: 1.28 TB/s both ways on four ports
    dcn_gbits=200,  # 3.2 Tb/s of EFA for sixteen chips
    links="NeuronLink-v3",
)

TORUS_PRESETS = (_TPU_V4, _TPU_V5E, _TPU_V5P, _TPU_V6E, _TRAINIUM2)
"""All of this file."""
