"""What a row's software does at which rate, beside what its graph and its hardware say: hosts, kernels, sums.

These constants are of kinds of software, none of a row or a model.
"""

from __future__ import annotations

from dataclasses import replace as changed

from autoshard.cost.instructions import flops
from autoshard.partition.program import Compute
from autoshard.truth.rows import Row
from autoshard.truth.stages import RowRates
from costmodel import Device, Hardware, operator_seconds
from costmodel.host import HOSTS

OUTSIDE_SHARE = {"kernels": 0.30}
"""What kernels written by hand take longer than the bandwidth of copies allows (a softmax of scores, dropout with its
mask, norms, losses in several passes: 0.68 of the peak and not 0.88), to what attention in several kernels, the loss
and the rest besides products take; fitted to rows of Megatron-LM."""
SUM_BYTES = {"f16": 2}
"""Bytes of an element of the sums of gradients, where they are not f32: Megatron-LM sums in f32 where it computes in
bf16, and in f16 where in f16 (megatron/arguments.py, --accumulate-allreduce-grads-in-fp32)."""
LOSS_COPIES = {"parallel": 1}
"""Tensors of the size of logits in f32 that the gradient of a loss takes beside the three that stand side by side in
programs: of PyTorch's `loss_parallel` the logarithms, the gradient of picking, its sum with the softmax, and their
product are there at once (torch/distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward)."""
OLDER = 0.55
"""The rate of the attention kernels of early 2023 to that of FlashAttention-2, which is "around 2x" (Dao 2023, section
4); fitted to llm-foundry's rows of sequences from 8,192 on, on A100 and H100 alike."""


def rates_of(row: Row, hardware: Hardware) -> RowRates:
    """How fast a row's host is, and what it computes beside its graph."""
    ranks = min([row.axes.tp, *(span for span, _ in hardware.topology.levels[:1] if span is not None)])
    return RowRates(HOSTS[row.fusion], OUTSIDE_SHARE.get(row.fusion, 0.0), ranks)


def with_attention(hardware: Hardware, row: Row) -> Hardware:
    """The hardware with the attention kernels that the row had."""
    share = hardware.device.attention_efficiency
    if row.attention != "older" or share is None:
        return hardware
    return changed(hardware, device=changed(hardware.device, attention_efficiency=OLDER * share))


def adding_seconds(elements: int, hardware: Hardware, sums: int) -> float:
    """Seconds to add gradients of 2 bytes to sums of so many, which are read and written."""
    return float(operator_seconds(elements, elements * (2 + 2 * sums), hardware.device, "f32"))


_QUANTIZING = 2 + 1 + 1
"""Bytes that are moved to round an element of 16 bits to 8: read, written, and written turned, since products in 8 bits
take both sides by rows. The largest of a tensor is found by what makes it."""


def float8_seconds(one: Compute, device: Device) -> float:
    """Seconds of a product in 8 bits, whose operands of 16 bits are rounded before it."""
    elements = sum(register.local.elements for register in one.operands)
    written = sum(register.local.nbytes for register in one.results)
    quantizing = operator_seconds(0.0, float(_QUANTIZING * elements), device)
    return float(quantizing) + float(operator_seconds(flops(one), float(elements + written), device, "f8", "MatMul"))
