"""Where ranks of torch compute and what moves their tensors, chosen before a run from what torch sees on each rank.

>>> one = Seen("host", ("GPU-1",), has_nccl=True)
>>> placements("auto", [one, one])[1]
DevicePlacement(device='cuda:0', wire='cpu', backend='gloo')
>>> placements("cpu", [one])[0]
DevicePlacement(device='cpu', wire='cpu', backend='gloo')

Torch itself is not imported here: what it sees comes as a value (`torch_devices.seen`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from autoshard.util.errors import RuntimeSetupError, UnknownNameError
from autoshard.util.near import did_you_mean

DEVICES = ("auto", "cpu", "cuda")
"""What a run can be asked to compute on; auto is cuda where torch sees a CUDA device on every rank, else cpu."""
NCCL = "cpu:gloo,cuda:nccl"
"""Backends of torch.distributed where each rank has a CUDA device of its own."""


@dataclass(frozen=True)
class Seen:
    """What torch sees on one rank.

    Attributes:
        host: the name of the rank's host.
        cuda: for each CUDA device that this process sees what tells it from all others of the host (its UUID).
        has_nccl: whether torch was built with NCCL.
        chosen: the number of the CUDA device that the process is on already; None: any.
    """

    host: str
    cuda: tuple[str, ...] = ()
    has_nccl: bool = False
    chosen: int | None = None

    def as_data(self) -> dict[str, object]:
        """The same as plain data, to be sent."""
        return asdict(self)

    @classmethod
    def of_data(cls, data: dict) -> Seen:
        return cls(**{**data, "cuda": tuple(data["cuda"])})


@dataclass(frozen=True)
class DevicePlacement:
    """One rank's device, by torch's name; the device on which lies what it sends; and torch.distributed's backends.

    Where `wire` is another device than `device`, tensors are copied there and back around each collective.
    """

    device: str = "cpu"
    wire: str = "cpu"
    backend: str = "gloo"

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"

    def through(self, backends: str) -> DevicePlacement:
        """The same on a group that there is already, with the backends that torch.distributed tells of it.

        Types are never what a backend lacks: what gloo or NCCL does not reduce or move, bfloat16 say, goes as a wider
        type or as bytes.

        Raises:
            RuntimeSetupError: none of its backends is known to move what lies on the device or on CPUs.
        """
        known = dict(one.split(":", 1) for one in backends.split(",") if ":" in one)
        if self.wire != "cpu" and known.get("cuda") == "nccl":
            return self
        if known.get("cpu") == "gloo":
            return replace(self, wire="cpu")
        raise RuntimeSetupError(
            f"torch.distributed was started with backend {backends!r}, but the engine torch computes on {self.device} "
            f"and sends by {'gloo' if self.wire == 'cpu' else 'NCCL, or by gloo through copies on the host'} (bfloat16 "
            "and other types that it lacks as bytes, or wider); call torch.distributed.init_process_group("
            f"{self.backend!r}), or leave that to autoshard"
        )


def check_device(device: str) -> None:
    """Check that a device can be asked for by that name.

    Raises:
        UnknownNameError: it cannot.
    """
    if device not in DEVICES:
        hint = did_you_mean(device, DEVICES, 1)
        raise UnknownNameError(f"unknown device {device!r}{hint}; known are {', '.join(DEVICES)}")


def placements(asked: str, seen: Sequence[Seen]) -> tuple[DevicePlacement, ...]:
    """For each rank where it computes: of its host's CUDA devices those that it sees are taken in turn.

    Ranks that have a device each send by NCCL; where several share one, which NCCL refuses, all send by gloo, through
    copies on the host.

    Args:
        asked: one of `DEVICES`.
        seen: what torch sees on each rank.

    Raises:
        UnknownNameError: no such device.
        RuntimeSetupError: cuda is asked for, and a rank sees no CUDA device.
    """
    check_device(asked)
    without = [rank for rank, one in enumerate(seen) if not one.cuda]
    if asked == "cuda" and without:
        ranks = ", ".join(map(str, without))
        raise RuntimeSetupError(
            f"device 'cuda' was asked for, but torch sees no CUDA device on {seen[without[0]].host} (of "
            f"rank{'s' * (len(without) > 1)} {ranks}); take device 'cpu', or 'auto', which computes on CPUs then"
        )
    if asked == "cpu" or without:
        return (DevicePlacement(),) * len(seen)
    numbers = [
        local % len(one.cuda) if one.chosen is None else one.chosen
        for local, one in zip(_local_ranks(seen), seen, strict=True)
    ]
    taken = Counter((one.host, one.cuda[number]) for number, one in zip(numbers, seen, strict=True))
    own = max(taken.values()) == 1 and all(one.has_nccl for one in seen)
    names = [f"cuda:{number}" for number in numbers]
    return tuple(DevicePlacement(name, name if own else "cpu", NCCL if own else "gloo") for name in names)


def _local_ranks(seen: Sequence[Seen]) -> Iterator[int]:
    """For each rank its number among those of its host."""
    counted: Counter[str] = Counter()
    for one in seen:
        yield counted[one.host]
        counted[one.host] += 1


__all__ = ["DEVICES", "NCCL", "DevicePlacement", "Seen", "check_device", "placements"]
