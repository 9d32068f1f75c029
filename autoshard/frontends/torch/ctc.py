"""ctc_loss as one operator of fixed sizes: torch's own makes tables whose size depends on the longest of the labels.

Labels that follow each other in one tensor, without padding, are read as rows. Those that `masked_select` took out of
padded ones (models of speech do so) are found again where they lie, as how many they are is known in the run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard import ops
from autoshard.frontends.torch.markers import marker
from autoshard.frontends.torch.table import Call, do, translates

_SCHEMA = (
    "ctc_loss(Tensor log_probs, Tensor labels, Tensor frames, Tensor counts, int blank, bool zero_infinity) -> Tensor"
)


def ctc_functions() -> dict[Any, Callable]:
    """What stands for the loss, and for selecting labels for it."""
    import torch
    from torch.utils.weak import WeakIdKeyDictionary

    selected = WeakIdKeyDictionary()

    def masked_select(tensor: Any, mask: Any) -> Any:
        found = torch.masked_select(tensor, mask)
        selected[found] = tensor, mask
        return found

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
        reduction: str | int = "mean", zero_infinity: bool = False,
    ) -> Any:  # fmt: skip
        """Torch's reductions of the losses of a batch."""
        if targets in selected:
            targets = _in_front(*selected[targets])
        return _loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)

    selects = dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), masked_select)
    return {**selects, **dict.fromkeys((torch.nn.functional.ctc_loss, torch.ctc_loss), ctc_loss)}


def _in_front(tensor: Any, mask: Any) -> Any:
    """As many elements as there are, those that are selected first and in their order."""
    import torch

    tensor, mask = torch.broadcast_tensors(tensor, mask)
    return tensor.flatten()[torch.argsort(~mask.flatten(), stable=True)]


def _loss(
    log_probs: Any, targets: Any, frames: Any, counts: Any, blank: int, reduction: str | int, zero_infinity: bool
) -> Any:
    import torch

    alone = log_probs.dim() == 2
    log_probs = log_probs[:, None] if alone else log_probs
    most = None if isinstance(counts, torch.Tensor) else max(_numbers(counts), default=0)
    frames, counts = (_lengths(one, log_probs.device) for one in (frames, counts))
    labels = targets.reshape(1, -1) if alone else targets
    labels = _rows(labels, counts, most) if labels.dim() == 1 else labels
    losses = marker(_SCHEMA, _one_each)(log_probs, labels.long(), frames, counts, blank, zero_infinity)
    if reduction in ("mean", 1):
        return (losses / counts.clamp(min=1)).mean()
    if reduction in ("sum", 2):
        return losses.sum()
    if reduction not in ("none", 0):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return losses[0] if alone else losses


def _numbers(lengths: Any) -> Sequence[int]:
    return (lengths,) if isinstance(lengths, int) else tuple(lengths)


def _lengths(lengths: Any, device: Any) -> Any:
    import torch

    tensor = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(_numbers(lengths), device=device)
    return tensor.reshape(-1).long()


def _rows(labels: Any, counts: Any, most: int | None) -> Any:
    """Labels one behind the other as a row for each sequence, as wide as one may be; behind its last are any."""
    import torch

    begins = counts.cumsum(0) - counts
    places = begins[:, None] + torch.arange(labels.shape[0] if most is None else most, device=labels.device)
    return labels[places.clamp(max=labels.shape[0] - 1)]


def _one_each(log_probs: Any, labels: Any, *_: Any) -> Any:
    return log_probs.new_empty(labels.shape[:1])


@translates("autoshard.ctc_loss.default")
def _(call: Call, log_probs: Any, labels: Any, frames: Any, counts: Any, blank: int, zero_infinity: bool) -> Any:
    # Torch's gradient takes the probabilities of a frame to add up to 1.
    return do(
        ops.ctc_loss, log_probs, labels, frames, counts, blank=blank, zero_infinity=zero_infinity, normalized=True
    )
