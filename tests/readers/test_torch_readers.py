"""Exported programs of PyTorch (.pt2): a damaged or forged one is refused in words, and nothing in it is run."""

from __future__ import annotations

from typing import Any

import pytest

import autoshard as ash
from tests.readers.guard import survive
from tests.readers.mutations import mutations

pytestmark = pytest.mark.torch

COUNT = 300


def test_exported_programs(tmp_path):
    import torch

    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.ones(2, 4),)), path)
    good = path.read_bytes()

    def read(sample: bytes) -> Any:
        path.write_bytes(sample)
        return ash.from_torch(path)

    read(good)
    read_count, refused = survive(read, mutations(good, COUNT, 4), tmp_path)
    assert read_count + refused == COUNT and refused > COUNT // 2
