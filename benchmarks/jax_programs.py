"""Annotated JAX programs for 8 devices: what people write with `jax.jit` and shardings, forward and in training.

`PROGRAMS` maps a name to a Program. All arguments and results have shardings, as in a training loop, where the results
of one step are the arguments of the next. Sizes are those of small models; `small=True` makes them so small that a
program can be run on virtual ranks and compared. No devices are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LINE, GRID, CUBE = {"x": 8}, {"data": 2, "model": 4}, {"data": 2, "fsdp": 2, "model": 2}
WHOLE = P()
RATE = 1e-2


@dataclass(frozen=True)
class Made:
    """A function, and what it takes and gives: a pytree of (shape, element type, spec) and one of specs."""

    function: Callable
    arguments: tuple
    results: Any


@dataclass(frozen=True)
class Program:
    """One program: `make(mesh, sizes)` gives a Made, `large` and `small` are the sizes that it knows."""

    name: str
    axes: dict[str, int]
    make: Callable[..., Made]
    small: dict[str, int]

    def module(self, small: bool = False) -> str:
        """The program as the text of a StableHLO module."""
        mesh = AbstractMesh(tuple(self.axes.values()), tuple(self.axes), axis_types=(AxisType.Auto,) * len(self.axes))
        made = self.make(mesh, **(self.small if small else {}))
        arguments = jax.tree.map(lambda one: _argument(mesh, *one), made.arguments, is_leaf=_is_tensor)
        results = jax.tree.map(lambda one: NamedSharding(mesh, one), made.results, is_leaf=lambda one: type(one) is P)
        step = jax.jit(made.function, out_shardings=results)
        return step.trace(*arguments).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


PROGRAMS: dict[str, Program] = {}


def program(axes: dict[str, int], **small: int) -> Callable:
    """Register a maker, with the axes of its mesh and its small sizes."""

    def register(make: Callable[..., Made]) -> Callable[..., Made]:
        PROGRAMS[make.__name__] = Program(make.__name__, axes, make, small)
        return make

    return register


def _is_tensor(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 3 and isinstance(one[2], P)


def _argument(mesh: AbstractMesh, shape: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def floats(*shape: int, spec: P = WHOLE) -> tuple:
    return shape, jnp.float32, spec


def ints(*shape: int, spec: P = WHOLE) -> tuple:
    return shape, jnp.int32, spec


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda one: one[2], tree, is_leaf=_is_tensor)


def training(loss: Callable) -> Callable:
    """One step of gradient descent: (parameters, *data) -> (loss, new parameters)."""

    def step(parameters: Any, *data: Any) -> tuple:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        return value, jax.tree.map(lambda one, gradient: one - RATE * gradient, parameters, gradients)

    return step


def trained(loss: Callable, parameters: Any, *data: Any) -> Made:
    return Made(training(loss), (parameters, *data), (WHOLE, specs(parameters)))


def norm(x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)


def entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy, by a gather of the labels' scores."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], axis=-1)
    return -chosen.mean()


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


# -- attention


def attend(query: jax.Array, key: jax.Array, value: jax.Array, causal: bool = True) -> jax.Array:
    """Attention of (batch, length, heads, width)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(jnp.float32(query.shape[-1]))
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)


def self_attention(x: jax.Array, weights: Any, heads: int) -> jax.Array:
    batch, length, width = x.shape
    query, key, value = ((x @ one).reshape(batch, length, heads, width // heads) for one in weights[:3])
    return attend(query, key, value).reshape(batch, length, width) @ weights[3]


def attention_weights(width: int, columns: P, rows: P) -> tuple:
    return tuple(floats(width, width, spec=columns) for _ in range(3)) + (floats(width, width, spec=rows),)


@program(GRID, batch=2, length=6, width=16, heads=4)
def attention_heads(mesh, batch=8, length=256, width=256, heads=8):
    def forward(x, weights):
        return self_attention(x, weights, heads)

    weights = attention_weights(width, P(None, "model"), P("model", None))
    return Made(forward, (floats(batch, length, width, spec=P("data", None, None)), weights), P("data", None, None))


@program(GRID, batch=2, length=6, width=16, heads=4)
def attention_heads_training(mesh, batch=8, length=256, width=256, heads=8):
    def loss(weights, x):
        return (self_attention(x, weights, heads) ** 2).mean()

    weights = attention_weights(width, P(None, "model"), P("model", None))
    return trained(loss, weights, floats(batch, length, width, spec=P("data", None, None)))


@program(LINE, batch=2, length=16, width=12, heads=3)
def attention_sequence(mesh, batch=4, length=1024, width=128, heads=4):
    """Queries, keys and values split by position."""

    def forward(x, weights):
        return self_attention(x, weights, heads)

    return Made(
        forward,
        (floats(batch, length, width, spec=P(None, "x", None)), attention_weights(width, WHOLE, WHOLE)),
        P(None, "x", None),
    )


@program(LINE, batch=2, length=16, width=16, heads=8)
def attention_ulysses(mesh, batch=4, length=1024, width=256, heads=8):
    """Tokens split by position outside, by heads inside of attention."""

    def forward(x, weights):
        query, key, value = ((x @ one).reshape(batch, length, heads, width // heads) for one in weights[:3])
        by_heads = NamedSharding(mesh, P(None, None, "x", None))
        query, key, value = (lax.with_sharding_constraint(one, by_heads) for one in (query, key, value))
        out = lax.with_sharding_constraint(attend(query, key, value), by_heads)
        return out.reshape(batch, length, width) @ weights[3]

    return Made(
        forward,
        (floats(batch, length, width, spec=P(None, "x", None)), attention_weights(width, WHOLE, WHOLE)),
        P(None, "x", None),
    )


# -- experts


def dispatch(x: jax.Array, router: jax.Array, capacity: int) -> jax.Array:
    """Which token takes which place of which expert, weighted: (tokens, experts, capacity)."""
    gates = jax.nn.softmax(x @ router)
    experts = gates.shape[-1]
    chosen = jax.nn.one_hot(gates.argmax(-1), experts)
    place = (jnp.cumsum(chosen, axis=0) * chosen).sum(-1) - 1
    places = jax.nn.one_hot(place.astype(jnp.int32), capacity)
    return (gates * chosen)[:, :, None] * places[:, None, :]


def expert_layer(groups: jax.Array, router: jax.Array, up: jax.Array, down: jax.Array, capacity: int) -> jax.Array:
    """Mixture of experts over (groups, tokens, width), by einsums as in GShard."""
    combine = jax.vmap(lambda x: dispatch(x, router, capacity))(groups)
    taken = (combine > 0).astype(groups.dtype)
    inside = jnp.einsum("gtec,gtm->egcm", taken, groups)
    inside = jax.nn.relu(jnp.einsum("egcm,emh->egch", inside, up))
    outside = jnp.einsum("egch,ehm->egcm", inside, down)
    return jnp.einsum("gtec,egcm->gtm", combine, outside)


@program(LINE, groups=8, tokens=6, width=4, hidden=6, experts=8, capacity=3)
def moe_forward(mesh, groups=8, tokens=128, width=128, hidden=512, experts=8, capacity=32):
    def forward(x, router, up, down):
        return expert_layer(x, router, up, down, capacity)

    weights = floats(width, experts), floats(experts, width, hidden, spec=P("x")), floats(experts, hidden, width, spec=P("x"))
    return Made(forward, (floats(groups, tokens, width, spec=P("x")), *weights), P("x"))


@program(GRID, groups=8, tokens=6, width=4, hidden=8, experts=4, capacity=3)
def moe_training(mesh, groups=8, tokens=128, width=128, hidden=512, experts=4, capacity=48):
    def loss(parameters, x):
        router, up, down = parameters
        return (expert_layer(x, router, up, down, capacity) ** 2).mean()

    weights = (
        floats(width, experts),
        floats(experts, width, hidden, spec=P("model")),
        floats(experts, hidden, width, spec=P("model")),
    )
    return trained(loss, weights, floats(groups, tokens, width, spec=P(("data", "model"))))


# -- vocabularies


@program(GRID, batch=4, length=5, width=6, words=16)
def embedding_vocabulary(mesh, batch=16, length=128, width=256, words=8192):
    def forward(table, tokens):
        return norm(table[tokens])

    arguments = floats(words, width, spec=P("model", None)), ints(batch, length, spec=P("data", None))
    return Made(forward, arguments, P("data", None, None))


@program(GRID, batch=4, length=5, width=6, words=16)
def loss_vocabulary_training(mesh, batch=8, length=64, width=256, words=8192):
    """A projection to scores that lie split by words, and cross entropy."""

    def loss(weight, x, labels):
        return entropy(x @ weight, labels)

    arguments = floats(batch, length, width, spec=P("data", None, None)), ints(batch, length, spec=P("data", None))
    return trained(loss, floats(width, words, spec=P(None, "model")), *arguments)


@program(GRID, batch=4, length=5, width=8, words=16)
def embedding_training(mesh, batch=8, length=64, width=128, words=4096):
    """One table embeds and projects."""

    def loss(table, tokens):
        x = jnp.tanh(table[tokens[:, :-1]])
        return entropy(x @ table.T, tokens[:, 1:])

    return trained(loss, floats(words, width, spec=P("model", None)), ints(batch, length + 1, spec=P("data", None)))


# -- convolutions


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


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


# -- a transformer


@program(GRID, batch=2, length=4, width=16, heads=4, words=16)
def gpt_forward(mesh, batch=8, length=128, width=256, heads=8, words=4096):
    def forward(parameters, tokens):
        return gpt(parameters, tokens, heads)

    parameters = gpt_parameters(length, width, words, P(None, "model"), P("model", None))
    return Made(forward, (parameters, ints(batch, length, spec=P("data", None))), P("data", None, "model"))


@program(GRID, batch=2, length=4, width=16, heads=4, words=16)
def gpt_training(mesh, batch=8, length=128, width=256, heads=8, words=4096):
    def loss(parameters, tokens):
        return entropy(gpt(parameters, tokens[:, :-1], heads), tokens[:, 1:])

    parameters = gpt_parameters(length, width, words, P(None, "model"), P("model", None))
    return trained(loss, parameters, ints(batch, length + 1, spec=P("data", None)))


@program(CUBE, batch=4, length=4, width=16, heads=4, words=16)
def gpt_fsdp_training(mesh, batch=8, length=128, width=256, heads=8, words=4096):
    """Data, parameters split in storage, and tensor parallel."""

    def loss(parameters, tokens):
        return entropy(gpt(parameters, tokens[:, :-1], heads), tokens[:, 1:])

    parameters = gpt_parameters(length, width, words, P("fsdp", "model"), P("model", "fsdp"))
    return trained(loss, parameters, ints(batch, length + 1, spec=P(("data", "fsdp"), None)))


def gpt_parameters(length: int, width: int, words: int, columns: P, rows: P) -> dict[str, Any]:
    layer = {
        "attention": attention_weights(width, columns, rows),
        "up": floats(width, 4 * width, spec=columns),
        "down": floats(4 * width, width, spec=rows),
    }
    return {"words": floats(words, width, spec=rows), "places": floats(length, width), "layers": [layer] * 2}


def gpt(parameters: Any, tokens: jax.Array, heads: int) -> jax.Array:
    x = parameters["words"][tokens] + parameters["places"]
    for layer in parameters["layers"]:
        x = x + self_attention(norm(x), layer["attention"], heads)
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x) @ parameters["words"].T
