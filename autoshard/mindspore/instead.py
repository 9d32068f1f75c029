"""What scripts take in the place of names of MindSpore that are not offered."""

from __future__ import annotations

_RECURRENT = "write its gates with nn.Dense, and a loop over the steps in construct; or take torch.nn's by from_torch"
_TRANSPOSED = "take torch.nn.ConvTranspose2d by from_torch"

_RATES = "give the optimizer a rate for each step, a list or a LearningRateSchedule"
_MINT = "take the function of that name in ops, or autoshard.ops"

INSTEAD = {
    **dict.fromkeys(("LearningRateScheduler", "ReduceLROnPlateau"), _RATES),
    "mint": _MINT,
    **dict.fromkeys(("LSTM", "LSTMCell", "GRU", "GRUCell", "RNN", "RNNCell"), _RECURRENT),
    **dict.fromkeys(("Conv1dTranspose", "Conv2dTranspose", "Conv3dTranspose", "Conv2DTranspose"), _TRANSPOSED),
}  # fmt: skip
"""By name, whether of the package, of nn or of ops."""
