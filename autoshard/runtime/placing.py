"""Which rank runs on which host: host files, MindSpore's rank tables, and whether a host is this machine."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections import Counter
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated

from autoshard.util.errors import RuntimeSetupError
from autoshard.util.files import read_json, read_text
from autoshard.util.text import natural
from costmodel import format_bytes
from costmodel.json_door import Record, matching

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_RANK_BYTES = 20 << 20
"""Memory that a rank has for itself alone before it computes anything, measured with Python 3.11, numpy and mpi4py."""


def place_ranks(ranks: int, hosts: Path | None = None, rank_table: Path | None = None) -> list[str]:
    """The host of every rank, in rank order; all "localhost" if neither file is given.

    Raises:
        RuntimeSetupError: the file cannot be read, or does not provide for exactly these ranks; or they are more than
            this machine's memory has room for.
    """
    if hosts is not None:
        return _read_hosts(hosts, ranks)
    if rank_table is not None:
        return _read_rank_table(rank_table, ranks)
    _check_room(ranks)
    return ["localhost"] * ranks


def _check_room(ranks: int) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if ranks * _RANK_BYTES > memory:
        raise RuntimeSetupError(
            f"cannot start {ranks} ranks on this machine: it has {format_bytes(memory)} of memory, of which each takes "
            f"{format_bytes(_RANK_BYTES)} before it computes anything; start {memory // _RANK_BYTES} at most, or name "
            "several hosts"
        )


def _read_hosts(path: Path, ranks: int) -> list[str]:
    slots: Counter[str] = Counter()
    counted = False
    for number, line in enumerate(read_text(path, "host file", RuntimeSetupError).splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"([\w.-]+)(?:\s+slots\s*=\s*([0-9]+)|:([0-9]+))?(?:\s+max[_-]slots\s*=\s*[0-9]+)?", text)
        if match is None:
            raise RuntimeSetupError(
                f"cannot read line {number} of the host file {path}: {text!r}; write `host`, `host slots=4` or `host:4`"
            )
        counted = counted or bool(match[2] or match[3])
        slots[match[1]] += natural(match[2] or match[3] or "1", RuntimeSetupError)
    if not slots:
        raise RuntimeSetupError(f"the host file {path} names no host")
    if not counted:
        slots = _even_shares(slots, ranks)
    if slots.total() < ranks:
        raise RuntimeSetupError(
            f"the host file {path} has {slots.total()} slots, but {ranks} ranks were asked for;"
            " raise the slots, name more hosts, or start fewer ranks"
        )
    # No more than are asked for: a file may promise any number of slots.
    return list(islice((host for host, count in slots.items() for _ in repeat(None, min(count, ranks))), ranks))


def _even_shares(slots: Counter[str], ranks: int) -> Counter[str]:
    """Deal the ranks out in turn: a host written on two lines gets two of every round."""
    lines = [host for host, count in slots.items() for _ in range(count)]
    return Counter({host: 0 for host in slots}) + Counter(lines[i % len(lines)] for i in range(ranks))


_HOST = matching(r"^[A-Za-z0-9_][A-Za-z0-9_.:%-]*\Z")
"""Names and addresses of hosts: they are written into files that mpiexec reads, a line for each."""


class RankedDevice(Record, frozen=True, forbid_unknown_fields=False):
    """A device of a rank table; of what else stands there nothing is needed."""

    rank_id: str | int


class TableHost(Record, frozen=True, forbid_unknown_fields=False):
    """A host of a rank table."""

    server_id: Annotated[str, _HOST]
    device: tuple[RankedDevice, ...]


class RankTable(Record, frozen=True, forbid_unknown_fields=False):
    """A MindSpore rank table."""

    version: str
    server_list: tuple[TableHost, ...]


def _read_rank_table(path: Path, ranks: int) -> list[str]:
    table = _parse_table(path)
    places = [(rank, server) for server, devices in table for rank in devices]
    found = sorted(rank for rank, _ in places)
    if found != list(range(len(found))):
        raise RuntimeSetupError(
            f"the rank table {path} lists the ranks {found}; they must be 0..{len(found) - 1}, each once"
        )
    if len(found) != ranks:
        raise RuntimeSetupError(
            f"the rank table {path} lists {len(found)} ranks, but {ranks} were asked for;"
            f" use -n {len(found)} or another table"
        )
    # A table of one server is often a sample whose address is a placeholder: it means this machine.
    if len(table) == 1:
        return ["localhost"] * ranks
    return [server for _, server in sorted(places)]


def count_ranks(rank_table: Path) -> int:
    """How many ranks a MindSpore rank table lists."""
    return sum(len(devices) for _, devices in _parse_table(rank_table))


def _parse_table(path: Path) -> list[tuple[str, list[int]]]:
    """(server, rank numbers) of each server of a MindSpore rank table."""
    table = read_json(path, RankTable, "rank table", RuntimeSetupError)
    if table.version != "1.0":
        raise RuntimeSetupError(f"the rank table {path} has version {table.version!r}; only version '1.0' can be read")
    servers = [
        (one.server_id, [natural(str(device.rank_id), RuntimeSetupError) for device in one.device])
        for one in table.server_list
    ]
    if not any(devices for _, devices in servers):
        raise RuntimeSetupError(f"the rank table {path} lists no device")
    return servers


def all_local(places: list[str]) -> bool:
    """Whether all these hosts are this machine."""
    return all(_is_local(host) for host in set(places))


def _is_local(host: str) -> bool:
    if host in _LOCAL_NAMES or host in (socket.gethostname(), socket.getfqdn()):
        return True
    # Only an address of this machine can be bound to.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False
