"""Annotated JAX programs for 8 devices: what people write with `jax.jit` and shardings, forward and in training.

`PROGRAMS` maps a name to a Program. Sizes are those of small models; `module(small=True)` makes them so small that a
program can be run on virtual ranks and compared.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import jax_moving as _moving  # registers its programs
from benchmarks import jax_transformers as _transformers  # registers its programs
from benchmarks.jax_program import (
    CUBE,
    GRID,
    LINE,
    PROGRAMS,
    RATE,
    WHOLE,
    Made,
    Program,
    convolve,
    floats,
    norm,
    program,
    specs,
    trained,
)

__all__ = ["PROGRAMS", "Program"]
del _moving, _transformers


# -- multilayer perceptrons


@program(GRID, batch=8, width=12, hidden=16)
def mlp_megatron(mesh, batch=256, width=512, hidden=2048):
    """Columns, then rows; the batch along data."""

    def forward(x, up, down):
        return jax.nn.relu(x @ up) @ down

    x = floats(batch, width, spec=P("data", None))
    weights = floats(width, hidden, spec=P(None, "model")), floats(hidden, width, spec=P("model", None))
    return Made(forward, (x, *weights), P("data", None))


@program(GRID, batch=8, width=12, hidden=16)
def mlp_megatron_training(mesh, batch=256, width=512, hidden=2048):
    def loss(parameters, x, y):
        up, down = parameters
        return ((jax.nn.relu(x @ up) @ down - y) ** 2).mean()

    weights = floats(width, hidden, spec=P(None, "model")), floats(hidden, width, spec=P("model", None))
    data = floats(batch, width, spec=P("data", None))
    return trained(loss, weights, data, data)


@program(GRID, batch=8, width=16, hidden=24)
def mlp_sequence_parallel(mesh, batch=256, width=512, hidden=2048):
    """Between the projections the tokens lie split along the model axis, too."""

    def forward(x, up, down):
        h = norm(x)
        h = lax.with_sharding_constraint(h, NamedSharding(mesh, P("data", None)))
        out = jax.nn.relu(h @ up) @ down
        return x + lax.with_sharding_constraint(out, NamedSharding(mesh, P(("data", "model"), None)))

    x = floats(batch, width, spec=P(("data", "model"), None))
    weights = floats(width, hidden, spec=P(None, "model")), floats(hidden, width, spec=P("model", None))
    return Made(forward, (x, *weights), P(("data", "model"), None))


@program(LINE, batch=16, width=8, hidden=24)
def mlp_data_parallel_training(mesh, batch=512, width=256, hidden=1024):
    def loss(parameters, x, y):
        up, bias, down = parameters
        return ((jax.nn.gelu(x @ up + bias) @ down - y) ** 2).mean()

    weights = floats(width, hidden), floats(hidden), floats(hidden, width)
    data = floats(batch, width, spec=P("x", None))
    return trained(loss, weights, data, data)


@program(LINE, batch=16, width=16, hidden=24)
def mlp_contracted(mesh, batch=256, width=512, hidden=1024):
    """Every product contracts a split dim; results lie split again."""

    def forward(x, first, second):
        return jnp.tanh(x @ first) @ second

    x = floats(batch, width, spec=P(None, "x"))
    weights = floats(width, hidden, spec=P("x", None)), floats(hidden, width, spec=P("x", None))
    return Made(forward, (x, *weights), P(None, "x"))


@program({"a": 4, "b": 2}, batch=8, width=12, hidden=16)
def mlp_over_flat_axes(mesh, batch=256, width=512, hidden=2048):
    """Weights split over both axes, major and minor by turns; the batch over the smaller one."""

    def forward(x, up, down):
        return jax.nn.gelu(x @ up) @ down

    weights = floats(width, hidden, spec=P(None, ("a", "b"))), floats(hidden, width, spec=P(("b", "a"), None))
    return Made(forward, (floats(batch, width, spec=P("b", None)), *weights), P("b", "a"))


# -- fully sharded parameters


@program(LINE, batch=16, width=8, hidden=24)
def fsdp_forward(mesh, batch=4096, width=256, hidden=1024):
    def forward(weights, x):
        for up, down in weights:
            x = x + jax.nn.gelu(norm(x) @ up) @ down
        return x

    layer = floats(width, hidden, spec=P("x", None)), floats(hidden, width, spec=P("x", None))
    return Made(forward, ([layer] * 2, floats(batch, width, spec=P("x", None))), P("x", None))


@program(LINE, batch=16, width=8, hidden=24)
def zero3_training(mesh, batch=4096, width=256, hidden=1024):
    """Parameters lie split over all devices before and after each step."""

    def loss(weights, x, y):
        for up, down in weights:
            x = x + jax.nn.gelu(norm(x) @ up) @ down
        return ((x - y) ** 2).mean()

    layer = floats(width, hidden, spec=P("x", None)), floats(hidden, width, spec=P("x", None))
    data = floats(batch, width, spec=P("x", None))
    return trained(loss, [layer] * 2, data, data)


@program(LINE, batch=16, width=8, hidden=24)
def zero1_adam(mesh, batch=4096, width=256, hidden=1024):
    """Parameters whole, moments split: each device updates a part."""

    def loss(weights, x, y):
        return ((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2).mean()

    def step(weights, first, second, x, y):
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)
        new = jax.tree.map(lambda w, m, v: w - RATE * m * lax.rsqrt(jnp.abs(v) + 1e-6), weights, first, second)
        return value, new, first, second

    weights = floats(width, hidden), floats(hidden, width)
    moments = floats(width, hidden, spec=P("x", None)), floats(hidden, width, spec=P("x", None))
    data = floats(batch, width, spec=P("x", None))
    return Made(step, (weights, moments, moments, data, data), (WHOLE, specs(weights), specs(moments), specs(moments)))


@program(CUBE, batch=8, width=12, hidden=16)
def fsdp_tensor_training(mesh, batch=2048, width=256, hidden=1024):
    """Three axes: data, parameters split in storage, tensor parallel."""

    def loss(weights, x, y):
        up, down = weights
        return ((x + jax.nn.gelu(norm(x) @ up) @ down - y) ** 2).mean()

    weights = floats(width, hidden, spec=P("fsdp", "model")), floats(hidden, width, spec=P("model", "fsdp"))
    data = floats(batch, width, spec=P(("data", "fsdp"), None))
    return trained(loss, weights, data, data)


# -- convolutions


@program(LINE, batch=2, size=4, channels=8, hidden=16)
def convolution_channels(mesh, batch=16, size=32, channels=64, hidden=128):
    """Output channels, then input channels."""

    def forward(x, first, second):
        return convolve(jax.nn.relu(convolve(x, first)), second)

    kernels = (
        floats(3, 3, channels, hidden, spec=P(None, None, None, "x")),
        floats(3, 3, hidden, channels, spec=P(None, None, "x", None)),
    )
    return Made(forward, (floats(batch, size, size, channels), *kernels), P(None, None, None, "x"))


@program(LINE, batch=2, size=16, channels=3, hidden=4)
def convolution_space(mesh, batch=8, size=64, channels=16, hidden=32):
    """Rows of the images."""

    def forward(x, first, second):
        return jax.nn.relu(convolve(jax.nn.relu(convolve(x, first)), second))

    kernels = floats(3, 3, channels, hidden), floats(3, 3, hidden, channels)
    return Made(forward, (floats(batch, size, size, channels, spec=P(None, "x")), *kernels), P(None, "x"))


@program(GRID, batch=4, size=8, channels=3, hidden=4)
def convolution_space_training(mesh, batch=8, size=64, channels=16, hidden=32):
    def loss(kernels, x):
        first, second = kernels
        return (convolve(jax.nn.relu(convolve(x, first)), second, 2) ** 2).mean()

    kernels = floats(3, 3, channels, hidden), floats(3, 3, hidden, channels)
    return trained(loss, kernels, floats(batch, size, size, channels, spec=P("data", "model")))


# -- loops


@program(GRID, batch=4, width=8, hidden=12, layers=3)
def scan_layers(mesh, batch=256, width=256, hidden=1024, layers=6):
    def forward(weights, x):
        def layer(x, one):
            return x + jax.nn.relu(x @ one[0]) @ one[1], None

        return lax.scan(layer, x, weights)[0]

    weights = (
        floats(layers, width, hidden, spec=P(None, None, "model")),
        floats(layers, hidden, width, spec=P(None, "model", None)),
    )
    return Made(forward, (weights, floats(batch, width, spec=P("data", None))), P("data", None))


@program(LINE, batch=8, width=8, layers=3)
def scan_fsdp_training(mesh, batch=2048, width=256, layers=4):
    def loss(weights, x):
        def layer(x, one):
            return x + jnp.tanh(x @ one), None

        return (lax.scan(layer, x, weights)[0] ** 2).mean()

    weights = floats(layers, width, width, spec=P(None, "x", None))
    return trained(loss, weights, floats(batch, width, spec=P("x", None)))


# -- sizes that do not divide, changes of layout


@program(LINE, batch=11, width=13, hidden=10)
def uneven_products(mesh, batch=250, width=300, hidden=1001):
    def forward(x, up, down):
        h = lax.with_sharding_constraint(jax.nn.relu(x @ up), NamedSharding(mesh, P(None, "x")))
        return jax.nn.softmax(h, axis=-1) @ down

    return Made(forward, (floats(batch, width), floats(width, hidden), floats(hidden, width)), WHOLE)


@program(LINE, rows=16, columns=24)
def transpose_normalize(mesh, rows=1024, columns=2048):
    """Softmax over rows, then over columns, as in optimal transport; the split stays on one dim."""

    def forward(x):
        for _ in range(2):
            x = jax.nn.softmax(x, axis=1)
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, P(None, "x")))
            x = jax.nn.softmax(x, axis=0)
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("x", None)))
        return x.T

    return Made(forward, (floats(rows, columns, spec=P("x", None)),), P("x", None))


@program(CUBE, batch=4, rows=6, columns=8)
def transpose_axes(mesh, batch=64, rows=128, columns=256):
    """Axes change places between dims."""

    def forward(x):
        y = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P("model", "data", "fsdp")))
        return jnp.cos(y).transpose(2, 1, 0)

    return Made(forward, (floats(batch, rows, columns, spec=P("data", "fsdp", "model")),), P("model", "data", "fsdp"))


@program(LINE, batch=11, width=13, hidden=10)
def uneven_training(mesh, batch=8 * 30, width=100, hidden=250):
    def loss(w, x):
        h = lax.with_sharding_constraint(jax.nn.relu(x @ w[0]), NamedSharding(mesh, P(None, "x")))
        return (jax.nn.softmax(h @ w[1]) ** 2).sum()

    return trained(loss, (floats(width, hidden), floats(hidden, width)), floats(batch, width))


@program(CUBE, batch=8, width=12, hidden=16)
def bf16_mlp(mesh, batch=512, width=256, hidden=1024):
    def loss(w, x):
        h = jax.nn.silu(x.astype(jnp.bfloat16) @ w[0].astype(jnp.bfloat16))
        return ((h @ w[1].astype(jnp.bfloat16)).astype(jnp.float32) ** 2).mean()

    w = floats(width, hidden, spec=P("fsdp", "model")), floats(hidden, width, spec=P("model", "fsdp"))
    return trained(loss, w, floats(batch, width, spec=P(("data", "fsdp"))))


@program(GRID, batch=8, width=12, hidden=16)
def dropout_training(mesh, batch=256, width=256, hidden=1024):
    def loss(w, x, key):
        h = jax.nn.relu(x @ w[0])
        h = jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, h.shape), h / 0.9, 0)
        return ((h @ w[1]) ** 2).mean()

    w = floats(width, hidden, spec=P(None, "model")), floats(hidden, width, spec=P("model", None))
    return trained(loss, w, floats(batch, width, spec=P("data", None)), ((2,), jnp.uint32, WHOLE))


@program(LINE, batch=8, size=4, channels=3, hidden=5)
def batchnorm_training(mesh, batch=32, size=16, channels=16, hidden=32):
    def loss(k, x):
        a, b, g = k
        h = convolve(x, a)
        h = (h - h.mean((0, 1, 2))) * lax.rsqrt(h.var((0, 1, 2)) + 1e-5) * g
        return (convolve(jax.nn.relu(h), b) ** 2).mean()

    k = floats(3, 3, channels, hidden), floats(3, 3, hidden, channels), floats(hidden)
    return trained(loss, k, floats(batch, size, size, channels, spec=P("x")))


@program(LINE, rows=16, columns=24)
def sorted_rows(mesh, rows=512, columns=1024):
    def forward(x):
        return jnp.cumsum(jnp.sort(x, axis=1), axis=1)

    return Made(forward, (floats(rows, columns, spec=P(None, "x")),), P(None, "x"))
