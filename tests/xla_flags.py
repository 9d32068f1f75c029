"""What XLA is told by its environment in tests: to compile quickly, and how many devices this host has."""

from __future__ import annotations

DEVICES = "--xla_force_host_platform_device_count"
QUICK = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
"""One module of LLVM for a program, without MLIR before it: half of the time for what is compiled and run once."""


def quick(flags: str) -> str:
    """Flags, and with them those for quick compilation that are not there yet."""
    given = flags.split()
    names = {flag.partition("=")[0] for flag in given}
    return " ".join([*given, *(flag for flag in QUICK if flag.partition("=")[0] not in names)])


def without_devices(flags: str) -> str:
    """Flags that leave the number of devices to what is started with them."""
    return " ".join(flag for flag in flags.split() if flag.partition("=")[0] != DEVICES)


def with_devices(flags: str, count: int) -> str:
    """Flags for so many devices, whatever they said of it."""
    return f"{without_devices(flags)} {DEVICES}={count}".strip()
