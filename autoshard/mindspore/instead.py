"""What scripts take in the place of names of MindSpore that are not offered."""

from __future__ import annotations

_TRANSPOSED = "take torch.nn.ConvTranspose3d by from_torch"

_RATES = "give the optimizer a rate for each step, a list or a LearningRateSchedule"

_DRAWN = "hold ops.StandardNormal() or ops.UniformReal() in a cell, and call it with a shape: it draws anew each step"

INSTEAD = {
    **dict.fromkeys(("standard_normal", "normal", "randn", "randn_like", "StandardLaplace"), _DRAWN),
    **dict.fromkeys(("uniform", "rand", "rand_like", "bernoulli", "randint", "multinomial"), _DRAWN),
    **dict.fromkeys(("LearningRateScheduler", "ReduceLROnPlateau"), _RATES),
    **dict.fromkeys(("Conv3dTranspose", "Conv3DTranspose"), _TRANSPOSED),
}  # fmt: skip
"""By name, whether of the package, of nn or of ops."""
