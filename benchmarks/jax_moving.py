"""Annotated JAX programs in which elements move: shifts, windows, sums from the front, look-ups, the largest ones.

Their dims are split where they move, so that devices have to send what their neighbours need, and no more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.jax_program import CUBE, GRID, LINE, WHOLE, Made, convolve, floats, ints, norm, program, trained


@program(GRID, rows=16, columns=6)
def pipeline_shift(mesh, rows=64, columns=512):
    def forward(x):
        return jnp.roll(x, 3, axis=0) + jnp.flip(x, 0) + jnp.pad(x, ((1, 1), (0, 0)))[2:]

    return Made(forward, (floats(rows, columns, spec=P("model", "data")),), P("model", "data"))


@program(GRID, rows=16, columns=6)
def pipeline_shift_training(mesh, rows=64, columns=512):
    """Stages hand on what they have made, and the last one's goes to the first."""

    def loss(w, x):
        for _ in range(3):
            x = jnp.tanh(jnp.roll(x, 1, axis=0) * w)
        return (x**2).mean()

    return trained(loss, floats(rows, columns, spec=P("model", "data")), floats(rows, columns, spec=P("model", "data")))


@program(LINE, rows=16, columns=6)
def reverse_cumulative(mesh, rows=4096, columns=64):
    """Discounted returns: sums from the end on, of which the mean and the first are kept."""

    def forward(x):
        returns = jnp.flip(jnp.cumsum(jnp.flip(x, 0), axis=0), 0)
        return returns - returns.mean(0), returns[:1]

    return Made(forward, (floats(rows, columns, spec=P("x", None)),), (P("x", None), WHOLE))


@program(GRID, batch=4, size=8, channels=3, hidden=4)
def convolution_transposed(mesh, batch=8, size=32, channels=16, hidden=32):
    """A decoder of images: transposed convolutions with stride 2, rows over model."""

    def grown(x, kernel):
        return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def forward(x, first, second):
        return grown(jax.nn.relu(grown(x, first)), second)

    kernels = floats(3, 3, channels, hidden), floats(4, 4, hidden, channels)
    images = floats(batch, size, size, channels, spec=P("data", "model"))
    return Made(forward, (images, *kernels), P("data", "model"))


@program(CUBE, batch=4, tokens=6, width=16)
def norm_over_split_dims(mesh, batch=32, tokens=128, width=512):
    """Layer norm where the normalized dim is split, its scale and bias likewise, with the gradient."""

    def loss(w, x):
        scale, bias = w
        for _ in range(2):
            x = x + norm(x) * scale + bias
        return (x**2).mean()

    w = floats(width, spec=P("model")), floats(width, spec=P("model"))
    return trained(loss, w, floats(batch, tokens, width, spec=P("data", "fsdp", "model")))


@program(LINE, rows=16, columns=24)
def top_k_split(mesh, rows=256, columns=4096):
    """The largest of a split dim, with their numbers."""

    def forward(x):
        values, places = lax.top_k(x, 8)
        return jax.nn.softmax(values, axis=-1), places

    return Made(forward, (floats(rows, columns, spec=P(None, "x")),), (WHOLE, WHOLE))


@program(GRID, batch=4, rows=8, columns=6, picks=4)
def gather_batched(mesh, batch=16, rows=1024, columns=128, picks=64):
    """From each of a batch of tables some rows; the batch along data, the tables' rows along model."""

    def forward(table, places):
        return jnp.take_along_axis(table, places[..., None], axis=1)

    table = floats(batch, rows, columns, spec=P("data", "model"))
    return Made(forward, (table, ints(batch, picks, spec=P("data", None))), P("data", None, None))


@program({"y": 2, "x": 4}, rows=8, columns=16)
def stencil_periodic(mesh, rows=512, columns=1024):
    """Steps of diffusion on a torus, split in both directions."""

    def forward(x):
        for _ in range(3):
            around = jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1)
            x = x + 0.1 * (around - 4 * x)
        return x

    return Made(forward, (floats(rows, columns, spec=P("y", "x")),), P("y", "x"))


@program({"a": 4, "b": 2}, batch=8, size=24, width=8)
def windows_of_sequence(mesh, batch=16, size=4096, width=32):
    """Mean of each eight tokens, the maximum around each, and the difference to the token before."""

    def forward(x):
        mean = lax.reduce_window(x, 0.0, lax.add, (1, 8, 1), (1, 1, 1), "SAME") / 8
        most = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 1), (1, 1, 1), "SAME")
        return mean + most + x - jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    return Made(forward, (floats(batch, size, width, spec=P("b", "a", None)),), P("b", "a", None))


@program(GRID, batch=2, size=16, channels=2, hidden=3)
def unet(mesh, batch=8, size=64, channels=8, hidden=16):
    """Down, up again, and beside it what was there before; rows over model."""

    def forward(x, first, inner, last):
        h = jax.nn.relu(convolve(x, first))
        down = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        down = jax.nn.relu(convolve(down, inner))
        up = jnp.repeat(jnp.repeat(down, 2, 1), 2, 2)
        return convolve(jnp.concatenate([h, up], -1), last)

    kernels = floats(3, 3, channels, hidden), floats(3, 3, hidden, hidden), floats(3, 3, 2 * hidden, channels)
    return Made(forward, (floats(batch, size, size, channels, spec=P("data", "model")), *kernels), P("data", "model"))


@program(GRID, batch=4, length=3, width=8)
def recurrent(mesh, batch=32, length=8, width=64):
    """An LSTM over time; the gates over model."""

    def forward(w, x):
        def cell(carried, now):
            h, state = carried
            i, f, g, o = jnp.split(jnp.concatenate([now, h], -1) @ w, 4, -1)
            state = jax.nn.sigmoid(f) * state + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(state)
            return (h, state), h

        start = jnp.zeros((batch, width))
        return lax.scan(cell, (start, start), x)[1]

    weights = floats(2 * width, 4 * width, spec=P(None, "model"))
    return Made(forward, (weights, floats(length, batch, width, spec=P(None, "data", None))), P(None, "data", None))
