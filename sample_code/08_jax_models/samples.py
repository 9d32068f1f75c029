"""JAX models, small: flax linen, flax nnx and plain functions. Plan and run each by its name.

    autoshard run samples.py:lm -n 8 --mesh dp=2,tp=4 --check

Those that end in `_training` are steps of training, with optimizers of optax, and those that end in `_annotated` ask of
some tensors how they lie on mesh axes called dp and tp.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import small_models as models
from jax.sharding import PartitionSpec as P

import autoshard as ash

BATCH, LENGTH = 8, 16


def _words() -> np.ndarray:
    return np.random.default_rng(1).integers(0, models.WORDS, (BATCH, LENGTH), np.int32)


def _images(size: int = 16) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(BATCH, size, size, 3)).astype(np.float32)


def _classes() -> np.ndarray:
    return np.random.default_rng(2).integers(0, models.CLASSES, BATCH, np.int32)


def _next_word(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def _momentum() -> optax.GradientTransformation:
    return optax.sgd(0.1, momentum=0.9)


# -- a decoder of flax linen


def _lm(**kwargs):
    module, tokens = models.Decoder(), _words()
    return ash.from_jax(module, tokens, params=module.init(jax.random.key(0), tokens), **kwargs)


LM = {
    "tokens": ("dp", None),
    "**.embed.embedding": (None, "tp"),
    "**.query": (None, "tp", None),
    "**.key": (None, "tp", None),
    "**.value": (None, "tp", None),
    "**.out": ("tp", None, None),
    "**.up": (None, "tp"),
    "**.up.bias": ("tp",),
    "**.down": ("tp", None),
}


def lm():
    return _lm()


def lm_annotated():
    return ash.annotate(lm(), LM)


def lm_training():
    return _lm(loss=_next_word, optimizer=_momentum())


def lm_training_annotated():
    return ash.annotate(lm_training(), LM)


# -- a vision transformer of flax nnx


def _vit(**kwargs):
    from flax import nnx

    return ash.from_jax(models.ViT(nnx.Rngs(0)), _images(), **kwargs)


VIT = {
    "images": ("dp", None, None, None),
    "blocks.*.attention.query": (None, "tp", None),
    "blocks.*.attention.key": (None, "tp", None),
    "blocks.*.attention.value": (None, "tp", None),
    "blocks.*.attention.out": ("tp", None, None),
    "blocks.*.up": (None, "tp"),
    "blocks.*.up.bias": ("tp",),
    "blocks.*.down": ("tp", None),
}


def vit():
    return _vit()


def vit_annotated():
    return ash.annotate(vit(), VIT)


def _classified(logits: jax.Array, images: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, _classes()).mean()


def vit_training():
    return _vit(loss=_classified, optimizer=_momentum())


def vit_training_annotated():
    return ash.annotate(vit_training(), VIT)


# -- a convolutional network of flax linen, with batch norm and group norm


def _cnn(images: np.ndarray, train: bool, **kwargs):
    module = models.Convolutional()
    variables = module.init(jax.random.key(0), images, train=False)
    extra = {"mutable": ["batch_stats"]} if train else {}
    return ash.from_jax(module, images, params=variables, train=train, **extra, **kwargs)


CNN = {
    "images": ("dp", None, None, None),
    "**.conv1": (None, None, None, "tp"),
    "**.conv2": (None, None, "tp", None),
}


def cnn():
    return _cnn(_images(), train=False)


def cnn_annotated():
    return ash.annotate(cnn(), CNN)


def cnn_training():
    def loss(logits: jax.Array, images: jax.Array, **_: object) -> jax.Array:
        return _classified(logits, images)

    return _cnn(_images(), train=True, loss=loss, optimizer=_momentum())


def cnn_training_annotated():
    return ash.annotate(cnn_training(), CNN)


# -- a GPT of plain JAX whose layers are scanned, its parameters a dict of stacked arrays


def _gpt(**kwargs):
    return ash.from_jax(models.gpt, _words(), params=models.gpt_params(), **kwargs)


GPT = {
    "embed": P(None, "tp"),
    "places": P(),
    "layers": {
        "query": P(None, None, "tp", None),
        "key": P(None, None, "tp", None),
        "value": P(None, None, "tp", None),
        "out": P(None, "tp", None, None),
        "up": P(None, None, "tp"),
        "down": P(None, "tp", None),
        "scale1": P(),
        "scale2": P(),
    },
    "scale": P(),
}


def gpt():
    return _gpt()


def gpt_annotated():
    """A pytree of PartitionSpecs, as the parameters are nested."""
    return ash.annotate(gpt(), GPT)


def gpt_training():
    """JAX differentiates: only it knows the derivative of a loop."""
    return _gpt(loss=_next_word, optimizer=optax.adam(1e-2, eps=1e-4), gradients="jax")


def gpt_training_annotated():
    return ash.annotate(gpt_training(), GPT)


# -- a mixture of experts in plain JAX


def _moe(**kwargs):
    return ash.from_jax(models.mixture, _words(), params=models.mixture_params(), **kwargs)


MOE = {
    "tokens": ("dp", None),
    "experts.*": ("tp", None, None),
}


def moe():
    return _moe()


def moe_annotated():
    return ash.annotate(moe(), MOE)


def moe_training():
    return _moe(loss=_next_word, optimizer=_momentum())


def moe_training_annotated():
    return ash.annotate(moe_training(), MOE)


# -- gradients as outputs: what JAX differentiates is imported like any other function


def gpt_gradient():
    def loss(params: models.Params, tokens: jax.Array) -> jax.Array:
        return _next_word(models.gpt(params, tokens), tokens)

    return ash.from_jax(jax.value_and_grad(loss), _words(), params=models.gpt_params())


# -- half precision


def lm_bfloat16():
    """Parameters and activations in bfloat16; compared with JAX without the excess precision that XLA may keep."""
    module, tokens = models.Decoder(dtype=jnp.bfloat16), _words()
    variables = jax.tree.map(lambda one: one.astype(jnp.bfloat16), module.init(jax.random.key(0), tokens))
    return ash.from_jax(module, tokens, params=variables)
