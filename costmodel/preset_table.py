"""Hardware presets: one entry a machine, every number with its unit and where it is from.

"datasheet" is the vendor's number; "planning" is an estimate to be replaced by a measurement when one is at
hand. Peaks are dense (no sparsity). A reader looks entries up with `costmodel.preset`.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.hardware import Device, Hardware, Link, Topology
from costmodel.preset_torus import TORUS_PRESETS

TERA, GIGA, GB, GIB, US = 1e12, 1e9, 1e9, 2**30, 1e-6

# Seconds between two kernels of a stream; what a host takes to start them (4 to 10 us) hides behind long ones.
# planning: 1 to 2 us.  The Ascend figure is the floor that
# PyTorch's AutoParallel uses for GPUs.
_GPU_LAUNCH = 1.5 * US
_ASCEND_LAUNCH = 7 * US  # planning

# Seconds of a round over NVLink: a gather by doubling takes log2 (ranks) of them, an all-reduce twice as many.
# A100: all-reduces of 4 to 67 MB among 8 take 53 to 99 us more than their bytes do at the 229 GB/s of a GiB (nccl-tests
# on an NDm A100 v4, readme of AML_NCCL_Test), 11.5 us a round. H100: all-gathers among 2, 4 and 8 have an intercept of
# 8, 17 and 30 us (nccl-tests, as PyTorch's AutoParallel notes them). B200: 22 to 25 us and 5.5 to 9 us a rank
# (MooreThreads/SimuMax, b200_bf16_ceperm.json), 27 us a round of 8.
_NVLINK3_ROUND, _NVLINK4_ROUND, _NVLINK5_ROUND = 11.5 * US, 10 * US, 27 * US
_ETHERNET_STEP = 14 * US  # planning: NCCL's network step with the simple protocol
_INFINIBAND_STEP = 14 * US  # NCCL's network ring step with the simple protocol, which large messages take
_INFINIBAND_GATHER = 40 * US  # a gather among 2 x 8 H100 takes 70 us beside its bytes (NCCL 2.27.5), 30 within nodes


# Shares of memory bandwidth that kernels reach on NVIDIA's parts: 0.906 of copies, 0.914 of two reads and a write on an
# H100 NVL; less for reductions.
_HBM = 0.88

# Shares of the peak that products reach which nothing else limits, fitted to published training steps for each kind of
# device (`python -m benchmarks.truth_halves`, docs/reference/measured.md). All of a kernel's traffic is taken to stand
# beside its operations: measured products on A100 and B200 (SimuMax's tables, 697 shapes) lose as much with small
# sides.
_A100_PRODUCTS, _H100_PRODUCTS, _B200_PRODUCTS = 0.775, 0.62, 0.495

# Shares that attention reaches, forward and backward together, by the operations that its operators count (a gradient
# 3.5 times the forward pass, where kernels do 2.5). H100: FlashAttention-2 on heads of 128 at sequences of 8,192, 333
# and 318 TF/s (charts of its repository); A100: 190 and 170; B200: 0.365 of the peak both ways (SimuMax's table, which
# counts causal work whole).
_A100_ATTENTION, _H100_ATTENTION, _B200_ATTENTION = 0.72, 0.42, 0.47


def _infiniband(gbits: int, latency: float = _INFINIBAND_STEP) -> Link:
    return Link(
        f"infiniband {gbits} Gb/s",
        latency,
        gbits / 8 * GB,
        source="planning: line rate of one adapter per GPU, one way; latency from NCCL's tuning tables",
    )


def _nvlink(generation: int, bandwidth: float, source: str, latency: float) -> Link:
    return Link(f"nvlink {generation}", latency, bandwidth, source=source)


_CPU = Hardware(
    "cpu",
    Device(
        "cpu core",
        # One x86 core under numpy: BLAS for f64 and f32, plain loops for the others. planning
        (
            ("f64", 30 * GIGA),
            ("f32", 60 * GIGA),
            ("f16", 0.3 * GIGA),
            ("bf16", 0.3 * GIGA),
            ("i32", 1.5 * GIGA),
            ("i64", 1.5 * GIGA),
            ("i8", 1.5 * GIGA),
        ),
        memory_bandwidth=16 * GB,  # planning: a copy by one core, read plus written
        memory_bytes=4 * GIB,  # planning: a rank's part of its host
        launch_seconds=1 * US,  # planning: a numpy call on a few elements, and its share of the interpreter
        # The rates above are measured ones of whole operators, so little is taken off again.
        compute_efficiency=0.9,
        memory_efficiency=0.9,
        source="planning: numpy on one core of a 2020s x86 server, order of magnitude; measure your own host",
    ),
    Topology(
        (
            (
                None,
                Link(
                    "shared memory",
                    3 * US,
                    8 * GB,
                    source="planning: two MPI ranks that exchange buffers through shared memory; measure",
                ),
            ),
        )
    ),
)

_CPU_GLOO = Hardware(
    "cpu-gloo",
    replace(
        _CPU.device,
        name="cpu core under PyTorch",
        peak_flops=tuple(
            (kind, 30 * GIGA if kind in ("f16", "bf16") else rate) for kind, rate in _CPU.device.peak_flops
        ),
        launch_seconds=3 * US,  # planning: a call of PyTorch on a few elements
        fusion="eager",
        source="planning: as cpu; products of 16 bits by oneDNN at half the rate of f32",
    ),
    Topology(
        (
            (
                None,
                Link(
                    "gloo",
                    80 * US,
                    2.2 * GB,
                    source="measured: all-reduces of 4 bytes and of 32 MiB among two processes of a host, PyTorch 2.13",
                ),
            ),
        )
    ),
)

_A100 = Hardware(
    "a100",
    Device(
        "A100 SXM 80GB",
        # datasheet; f32 without TF32, f64 on tensor cores
        (
            ("f64", 19.5 * TERA),
            ("f32", 19.5 * TERA),
            ("tf32", 156 * TERA),
            ("f16", 312 * TERA),
            ("bf16", 312 * TERA),
            ("i8", 624 * TERA),
            ("i32", 19.5 * TERA),
        ),
        memory_bandwidth=2039 * GB,  # datasheet
        memory_bytes=80 * GIB,  # datasheet
        launch_seconds=_GPU_LAUNCH,
        memory_efficiency=_HBM,
        compute_efficiency=_A100_PRODUCTS,
        attention_efficiency=_A100_ATTENTION,
        memory_overlap=0.0,
        power=400,
        source="NVIDIA A100 datasheet; shares of the peaks fitted to published training steps",
    ),
    Topology(
        (
            # datasheet 600 GB/s both ways
            (8, _nvlink(3, 230 * GB, "229 GB/s of all-reduces of a GiB among 8 (nccl-tests)", _NVLINK3_ROUND)),
            (None, _infiniband(200)),
        )
    ),
)

_H100 = Hardware(
    "h100",
    Device(
        "H100 SXM 80GB",
        # datasheet; its figures for f16 and below assume sparsity and are halved here; f64 on tensor cores
        (
            ("f64", 67 * TERA),
            ("f32", 67 * TERA),
            ("tf32", 494 * TERA),
            ("f16", 989 * TERA),
            ("bf16", 989 * TERA),
            ("f8", 1979 * TERA),
            ("i8", 1979 * TERA),
            ("i32", 33.5 * TERA),
        ),  # i32: half the lanes of f32, planning
        memory_bandwidth=3350 * GB,  # datasheet
        memory_bytes=80 * GIB,  # datasheet
        launch_seconds=_GPU_LAUNCH,
        memory_efficiency=_HBM,
        compute_efficiency=_H100_PRODUCTS,
        attention_efficiency=_H100_ATTENTION,
        memory_overlap=0.0,
        power=700,
        source="NVIDIA H100 datasheet; shares of the peaks fitted to published training steps",
    ),
    Topology(
        (
            # datasheet 900 GB/s both ways; rings without in-switch reduction
            (
                8,
                _nvlink(
                    4,
                    345 * GB,
                    "394 GB/s of a gathered GiB among 8 (nccl-tests), 7/8 of which a rank receives",
                    _NVLINK4_ROUND,
                ),
            ),
            (None, _infiniband(400)),
        )
    ),
)

_A100_40 = replace(
    _A100,
    name="a100-40gb",
    device=replace(
        _A100.device,
        name="A100 SXM 40GB",
        memory_bandwidth=1555 * GB,  # datasheet
        memory_bytes=40 * GIB,  # datasheet
    ),
)

_A100_4X200 = replace(
    _A100,
    name="a100-4x200",
    topology=Topology((_A100.topology.levels[0], (None, _infiniband(100)))),  # four adapters of 200 Gb/s for eight
)

_H100_500W = replace(
    _H100,
    name="h100-500w",
    device=replace(
        _H100.device.at_power(500),
        name="H100 96GB at 500 W",
        memory_bandwidth=2400 * GB,
        memory_bytes=96 * 10**9,
        source="torchtitan's benchmarks of 2024-12, which say of their H100: 96 GB of HBM2e, 2.4 TB/s, 500 W; "
        "planning: products at 0.85 of those at 700 W",
    ),
)

_H200 = replace(
    _H100,
    name="h200",
    device=replace(
        _H100.device,
        name="H200 SXM 141GB",
        memory_bandwidth=4800 * GB,  # datasheet
        memory_bytes=141 * 10**9,  # datasheet
        source="NVIDIA H200 datasheet; peaks are the H100's",
    ),
)

_B200 = Hardware(
    "b200",
    Device(
        "B200 (HGX, 1000 W)",
        # published figures of the 1000 W part; tables round f32 to 75-80 and f64 to 37-40
        (
            ("f64", 37 * TERA),
            ("f32", 75 * TERA),
            ("tf32", 1100 * TERA),
            ("f16", 2250 * TERA),
            ("bf16", 2250 * TERA),
            ("f8", 4500 * TERA),
            ("i8", 4500 * TERA),
            ("i32", 75 * TERA),
        ),  # i32: as f32, planning
        memory_bandwidth=7700 * GB,  # published for HGX; 8000 in other tables
        memory_bytes=180 * 10**9,  # the usable part of 192 GB
        launch_seconds=_GPU_LAUNCH,
        memory_efficiency=_HBM,
        compute_efficiency=_B200_PRODUCTS,
        attention_efficiency=_B200_ATTENTION,
        memory_overlap=0.0,
        power=1000,
        source="published tables of the HGX B200; they differ by up to 7 %, the lower figures are used; shares of the "
        "peaks fitted to published training steps",
    ),
    Topology(
        (
            # datasheet 1800 GB/s both ways; NVL72 racks have 72 in place of 8. planning
            (8, _nvlink(5, 606 * GB, "0.673 of 900 GB/s one way in gathers (SimuMax's measurements)", _NVLINK5_ROUND)),
            (None, _infiniband(400, _INFINIBAND_GATHER)),
        )
    ),
)


_GB200 = replace(
    _B200,
    name="gb200",
    device=replace(
        _B200.device,
        name="B200 of a GB200 NVL72 (1200 W)",
        # datasheet of the NVL72 over its 72 devices; its figures for f16 and below assume sparsity and are halved here
        peak_flops=(
            ("f64", 40 * TERA),
            ("f32", 80 * TERA),
            ("tf32", 1250 * TERA),
            ("f16", 2500 * TERA),
            ("bf16", 2500 * TERA),
            ("f8", 5000 * TERA),
            ("i8", 5000 * TERA),
            ("i32", 80 * TERA),
        ),  # i32: as f32, planning
        memory_bandwidth=8000 * GB,  # datasheet: 576 TB/s of 72
        memory_bytes=186 * 10**9,  # datasheet: 13.4 TB of 72
        power=1200,
        source="NVIDIA GB200 NVL72 datasheet; planning: shares of the peaks are the B200's",
    ),
    topology=Topology(((72, _B200.topology.levels[0][1]), _B200.topology.levels[1])),
)

_MI300X = Hardware(
    "mi300x",
    Device(
        "Instinct MI300X (750 W)",
        # datasheet, dense; f64 and f32 of matrix cores
        (
            ("f64", 163.4 * TERA),
            ("f32", 163.4 * TERA),
            ("tf32", 653.7 * TERA),
            ("f16", 1307.4 * TERA),
            ("bf16", 1307.4 * TERA),
            ("f8", 2614.9 * TERA),
            ("i8", 2614.9 * TERA),
            ("i32", 81.7 * TERA),
        ),  # i32: half of f32, planning
        memory_bandwidth=5300 * GB,  # datasheet
        memory_bytes=192 * GIB,  # datasheet
        launch_seconds=_GPU_LAUNCH,
        memory_efficiency=0.8,  # planning
        # The most that products of any shape reach is 668 TF/s (stas00/ml-engineering, compute/accelerator). Those of
        # training reach 0.77 of such a figure on H100, 0.89 on A100, 0.64 on B200: 0.8 of it is planned with.
        compute_efficiency=0.8 * 668 / 1307.4,
        attention_efficiency=0.28,  # planning: as much less than products as on H100
        memory_overlap=0.0,
        power=750,
        source="AMD Instinct MI300X datasheet; share of products from the best that was measured",
    ),
    Topology(
        (
            # datasheet: seven links of 64 GB/s one way, to each of the others
            (8, Link("Infinity Fabric", 10 * US, 310 * GB, source="planning: 0.7 of 448 GB/s one way, among all eight; "
                     "two devices by themselves have one link of 64 GB/s")),
            (None, _infiniband(400)),
        )
    ),
)  # fmt: skip


def _roce(gbits: int) -> Link:
    return Link(
        f"RoCE {gbits} Gb/s",
        _ETHERNET_STEP,
        gbits / 8 * GB,
        source="planning: line rate of one port per NPU, one way",
    )


_ASCEND910 = Hardware(
    "ascend910",
    Device(
        "Ascend 910",
        # f16, i8: Huawei at Hot Chips 2019. The matrix unit has no f32: 32 cores * 64 lanes * 2 * 1 GHz of
        # the vector unit, planning; bf16 is not native and runs like f32.
        (
            ("f32", 4.1 * TERA),
            ("f16", 256 * TERA),
            ("bf16", 4.1 * TERA),
            ("i8", 512 * TERA),
            ("i32", 4.1 * TERA),
        ),
        memory_bandwidth=1200 * GB,  # Hot Chips 2019
        memory_bytes=32 * GIB,
        launch_seconds=_ASCEND_LAUNCH,
        source="Huawei at Hot Chips 2019 for f16, i8, HBM; other dtypes are planning figures",
    ),
    Topology(
        (
            # Three HCCS ports of 240 Gb/s join four NPUs; two such fours share a host's PCIe.
            (4, Link("HCCS", 3 * US, 72 * GB, source="planning: 0.8 of three ports of 30 GB/s")),
            (8, Link("PCIe 4 x16", 5 * US, 20 * GB, source="planning: two fours of one host over PCIe")),
            (None, _roce(100)),
        )
    ),
)

_ASCEND910B = Hardware(
    "ascend910b",
    Device(
        "Ascend 910B",
        # Parts differ: 313 to 376 f16; the lowest is used. f32 a quarter of f16. planning
        (
            ("f32", 78 * TERA),
            ("f16", 313 * TERA),
            ("bf16", 313 * TERA),
            ("i8", 626 * TERA),
            ("i32", 9 * TERA),
        ),
        memory_bandwidth=1600 * GB,  # planning: public tables name 0.4 to 1.6 TB/s
        memory_bytes=64 * GIB,
        launch_seconds=_ASCEND_LAUNCH,
        source="planning: public tables disagree; override with your part's datasheet",
    ),
    Topology(
        (
            (
                8,
                Link("HCCS", 3 * US, 157 * GB, source="planning: 0.8 of 196 GB/s one way, full mesh of eight"),
            ),
            (None, _roce(200)),
        )
    ),
)

PRESETS = {
    hardware.name: hardware
    for hardware in (
        _CPU,
        _CPU_GLOO,
        _A100,
        _A100_40,
        _A100_4X200,
        _H100,
        _H100_500W,
        _H200,
        _B200,
        _GB200,
        _MI300X,
        *TORUS_PRESETS,
        _ASCEND910,
        _ASCEND910B,
    )
}
