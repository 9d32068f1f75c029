"""What torch sees of this process's devices, and how it is asked to compute on one as numpy does."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import torch
import torch.distributed as dist

from autoshard.engines.placement import DevicePlacement, Seen


def seen(is_settled: bool = False) -> Seen:
    """What torch sees on this rank.

    Args:
        is_settled: whether the process has chosen its CUDA device already: the one that is its present one.
    """
    cuda = tuple(map(_identity, range(torch.cuda.device_count()))) if torch.cuda.is_available() else ()
    chosen = torch.cuda.current_device() if cuda and is_settled else None
    return Seen(socket.gethostname(), cuda, dist.is_nccl_available(), chosen)


def _identity(number: int) -> str:
    """What tells a CUDA device from all others of the host, whatever number this process knows it by."""
    return str(getattr(torch.cuda.get_device_properties(number), "uuid", number))


def settle(placement: DevicePlacement) -> None:
    """Make the device the one that this process computes on."""
    torch.set_num_threads(1)
    if torch.device(placement.device).type == "cuda":
        torch.cuda.set_device(placement.device)


@contextlib.contextmanager
def exact(placement: DevicePlacement) -> Iterator[None]:
    """Compute without gradients, and f32 as f32: TF32, which CUDA takes for convolutions unless told otherwise, keeps
    10 bits of a factor's 23 (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)."""
    with torch.no_grad():
        if placement.is_cpu:
            yield
            return
        cudnn = torch.backends.cudnn
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            cudnn.allow_tf32 = before[1]


__all__ = ["exact", "seen", "settle"]
