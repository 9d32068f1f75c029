"""Annotated programs to plan: models in Python and StableHLO modules lowered by JAX, each with a mesh.

`TARGETS` has them by name; `TARGETS[name].build()` makes the traced model or the module's text. No weights are made,
and no devices are needed. Those in JAX_TARGETS need jax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoshard import nn, ops
from autoshard.core.tensortype import TensorType
from autoshard.trace import trace
from autoshard.trace.initializer import deferred
from autoshard.transform.train import train_step
from benchmarks.models import transformer_step


@dataclass(frozen=True)
class Target:
    """Something annotated to plan for a mesh.

    `build()` gives what `autoshard.plan` takes: something traced, or the text of a module, which names its mesh.
    """

    build: Callable[[], Any]
    mesh: str | None = "dp=2 tp=4"


def f32(*shape: int) -> TensorType:
    return TensorType.of(shape, "f32")


def i32(*shape: int) -> TensorType:
    return TensorType.of(shape, "i32")


# -- models ----------------------------------------------------------------------------------------------------


class Mlp(nn.Cell):
    """Dense layers with ReLU between; `strategies` shards the products by number, `asked` their weights."""

    def __init__(
        self, sizes: tuple[int, ...], strategies: dict[int, tuple], asked: dict[int, str] | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(*pair) for pair in zip(sizes, sizes[1:], strict=False)])
        self.relu = ops.ReLU()
        for i, strategy in strategies.items():
            self.layers[i].matmul.shard(strategy)
        for i, sharding in (asked or {}).items():
            self.layers[i].weight.sharding = sharding

    def construct(self, x):
        *first, last = self.layers
        for layer in first:
            x = self.relu(layer(x))
        return last(x)


class Loss(nn.Cell):
    """A model's mean squared error."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network, self.loss = network, nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.network(x), y)


class Residual(nn.Cell):
    """Two dense layers around which the input is added."""

    def __init__(self, width: int, first: tuple, second: tuple) -> None:
        super().__init__()
        self.up, self.down, self.gelu = nn.Dense(width, 4 * width), nn.Dense(4 * width, width), ops.GeLU()
        self.up.matmul.shard(first)
        self.down.matmul.shard(second)

    def construct(self, x):
        return x + self.down(self.gelu(self.up(x)))


class Tied(nn.Cell):
    """Token scores by the table that the tokens are looked up in; returns the mean loss."""

    def __init__(self, words: int, width: int, strategy: tuple) -> None:
        super().__init__()
        self.embed, self.norm, self.loss = nn.Embedding(words, width), nn.LayerNorm(width), nn.TokenLoss()
        self.scores = ops.MatMul(transpose_b=True).shard(strategy)

    def construct(self, ids, labels):
        return self.loss(self.scores(self.norm(self.embed(ids)), self.embed.embedding_table), labels)


class Lookup(nn.Cell):
    """Embedding, a projection to the words, and the mean loss."""

    def __init__(self, words: int, width: int, strategy: tuple) -> None:
        super().__init__()
        self.embed, self.head, self.loss = nn.Embedding(words, width), nn.Dense(width, words), nn.TokenLoss()
        self.head.matmul.shard(strategy)

    def construct(self, ids, labels):
        return self.loss(self.head(self.embed(ids)), labels)


class Experts(nn.Cell):
    """Every token goes through all experts, weighted by a softmax: a dense mixture."""

    def __init__(self, experts: int, width: int, strategy: tuple) -> None:
        super().__init__()
        self.gate, self.softmax = nn.Dense(width, experts), ops.Softmax(axis=-1)
        self.up = nn.Parameter(deferred("normal", (experts, width, 2 * width), "f32"), name="up")
        self.down = nn.Parameter(deferred("normal", (experts, 2 * width, width), "f32"), name="down")
        self.first, self.second, self.relu = ops.BatchMatMul(), ops.BatchMatMul(), ops.ReLU()
        self.first.shard(strategy)

    def construct(self, x):
        weights = ops.transpose(self.softmax(self.gate(x)), perm=(1, 0))
        copies = ops.broadcast_to(x, shape=(self.up.shape[0], *x.shape))
        results = self.second(self.relu(self.first(copies, self.up)), self.down)
        return ops.reduce_sum(results * ops.reshape(weights, shape=(*weights.shape, 1)), axis=0)


class Layers(nn.Cell):
    """Encoder layers; `strategies` shards (query, mapping) of each."""

    def __init__(self, layers: int, width: int, heads: int, query: tuple | None, mapping: tuple | None) -> None:
        super().__init__()
        self.blocks = nn.CellList([nn.TransformerBlock(width, heads, 4 * width) for _ in range(layers)])
        for block in self.blocks:
            products: Any = block
            if query:
                products.attention.query.matmul.shard(query)
            if mapping:
                products.feed_forward.mapping.matmul.shard(mapping)

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def _mlp(sizes: tuple[int, ...], strategies: dict[int, tuple], batch: int = 512) -> Callable[[], Any]:
    return lambda: trace(Mlp(sizes, strategies), f32(batch, sizes[0]))


def _mlp_step(sizes: tuple[int, ...], strategies: dict[int, tuple], batch: int = 512) -> Callable[[], Any]:
    def build() -> Any:
        network = Mlp(sizes, strategies)
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        return train_step(Loss(network), optimizer, f32(batch, sizes[0]), f32(batch, sizes[-1]))

    return build


def _token_step(network: Callable[[], nn.Cell], batch: int = 32, length: int = 128) -> Callable[[], Any]:
    def build() -> Any:
        model = network()
        return train_step(model, nn.Adam(model.trainable_params(), 1e-3), i32(batch, length), i32(batch, length))

    return build


def _asked_mlp(weights: dict[int, str], inputs: str | None, outputs: str | None = None) -> Callable[[], Any]:
    def build() -> Any:
        shardings: dict[str, Any] = {"in_shardings": (inputs,)}
        if outputs:
            shardings["out_shardings"] = outputs
        return trace(Mlp((512, 2048, 512), {}, weights), f32(512, 512), **shardings)

    return build


def _constrained() -> Any:
    """Rows are asked before a product, columns behind it."""
    network = Mlp((512, 1024, 512), {})

    def model(x):
        hidden = network.layers[0](ops.sharding_constraint(x, '[{"dp", "tp"}, {}]'))
        return network.layers[1](ops.relu(ops.sharding_constraint(hidden, '[{}, {"tp"}]')))

    return trace(model, f32(512, 512))


def _seeds() -> Any:
    """Two branches that are split differently, and joined."""
    first, second = nn.Dense(512, 512), nn.Dense(512, 512)
    first.matmul.shard(((8, 1), (1, 1)))
    second.matmul.shard(((1, 1), (8, 1)))
    return trace(lambda x: ops.relu(first(x)) * ops.sigmoid(second(x)), f32(1024, 512))


def _step(layers: int, data: int, tensor: int, **sizes: int) -> Callable[[], Any]:
    sizes = {"hidden": 256, "heads": 8, "vocabulary": 4096, "sequence": 256, "batch": 32, **sizes}
    return lambda: transformer_step(layers, data, tensor, **sizes)


_COLUMNS = ((2, 1), (4, 1))
_COLUMNS3 = ((2, 1, 1), (4, 1))

PYTHON_TARGETS: dict[str, Target] = {
    "mlp, columns": Target(_mlp((512, 2048, 512), {0: _COLUMNS})),
    "mlp, columns, flat": Target(_mlp((512, 2048, 512), {0: _COLUMNS}), "8"),
    "mlp, sums": Target(_mlp((512, 2048, 512), {0: ((1, 8), (1, 8))}), "8"),
    "mlp, last only": Target(_mlp((512, 1024, 1024, 512), {2: ((2, 4), (1, 4))})),
    "mlp, conflict": Target(_mlp((512, 1024, 1024, 512), {0: ((8, 1), (1, 1)), 2: ((1, 1), (8, 1))})),
    "mlp, conflict inside": Target(_mlp((256, 512, 512, 256), {0: _COLUMNS, 1: ((8, 1), (1, 1)), 2: _COLUMNS})),
    "mlp step": Target(_mlp_step((512, 2048, 512), {0: _COLUMNS})),
    "mlp step, rows": Target(_mlp_step((512, 2048, 512), {0: ((8, 1), (1, 1))})),
    "mlp step, three axes": Target(_mlp_step((512, 2048, 512), {0: ((4, 1), (2, 1))}), "a=2 b=2 c=2"),
    "mlp step, large weights": Target(_mlp_step((4096, 4096, 4096), {0: _COLUMNS}, 64)),
    "residual": Target(lambda: trace(Residual(512, ((8, 1), (1, 1)), ((2, 4), (1, 4))), f32(512, 512))),
    "two seeds": Target(_seeds, "8"),
    "weights asked": Target(_asked_mlp({0: '[{"tp", ?}, {?}]'}, '[{"dp"}, {}]')),
    "weights asked, data open": Target(_asked_mlp({0: '[{"tp", ?}, {?}]', 1: '[{?}, {"tp", ?}]'}, None)),
    "weights asked by rows": Target(_asked_mlp({0: '[{"dp"}, {}]', 1: '[{"dp"}, {}]'}, '[{"dp"}, {}]')),
    "outputs asked": Target(_asked_mlp({0: '[{"tp"}, {}]'}, '[{"dp"}, {}]', '[{"dp", "tp"}, {}]')),
    "constraints disagree": Target(_constrained),
    "tied weights": Target(_token_step(lambda: Tied(4096, 256, ((2, 1, 1), (4, 1))))),
    "lookup and loss": Target(_token_step(lambda: Lookup(8192, 256, ((2, 1, 1), (4, 1))))),
    "experts": Target(lambda: trace(Experts(8, 256, ((8, 1, 1), (8, 1, 1))), f32(512, 256)), "8"),
    "encoder": Target(lambda: trace(Layers(1, 256, 8, _COLUMNS3, _COLUMNS3), f32(16, 128, 256))),
    "encoder, query only": Target(lambda: trace(Layers(2, 256, 8, _COLUMNS3, None), f32(16, 128, 256))),
    "encoder, conflict": Target(lambda: trace(Layers(2, 256, 8, ((8, 1, 1), (1, 1)), _COLUMNS3), f32(16, 128, 256))),
    "transformer step, 1 layer": Target(_step(1, 2, 4)),
    "transformer step, 2 layers": Target(_step(2, 4, 2), "dp=4 tp=2"),
    "transformer step, 4x4": Target(_step(1, 4, 4), "dp=4 tp=4"),
}


# -- modules ---------------------------------------------------------------------------------------------------


def _lowered(function: Callable, arguments: list[tuple], data: int = 2, model: int = 4) -> str:
    """A module's text; an argument is (shape, axis names per dim or None for nothing asked[, dtype])."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    mesh = AbstractMesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    types = []
    for shape, axes, *dtype in arguments:
        sharding = None if axes is None else NamedSharding(mesh, PartitionSpec(*axes))
        types.append(jax.ShapeDtypeStruct(shape, dtype[0] if dtype else jnp.float32, sharding=sharding))
    return jax.jit(function).trace(*types).lower(lowering_platforms=("tpu",)).as_text()


def _jax_mlp(step: bool, first: tuple | None, second: tuple | None, data: tuple) -> Callable[[], str]:
    def build() -> str:
        import jax
        import jax.numpy as jnp

        def forward(up, down, x):
            return jax.nn.relu(x @ up) @ down

        def trained(up, down, x):
            def loss(up, down):
                return jnp.mean(forward(up, down, x) ** 2)

            value, gradients = jax.value_and_grad(loss, (0, 1))(up, down)
            return value, up - 0.1 * gradients[0], down - 0.1 * gradients[1]

        weights = [((512, 2048), first), ((2048, 512), second)]
        return _lowered(trained if step else forward, [*weights, ((512, 512), data)])

    return build


def _jax_attention() -> str:
    import jax
    import jax.numpy as jnp

    def attention(x, query, key, value, out):
        batch, length, width = x.shape

        def heads(one):
            return (x @ one).reshape(batch, length, 8, width // 8)

        scores = jnp.einsum("bqhd,bkhd->bhqk", heads(query), heads(key)) / 8.0
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), heads(value))
        return x + mixed.reshape(batch, length, width) @ out

    columns = [((256, 256), (None, "model"))] * 3
    return _lowered(attention, [((16, 128, 256), ("data", None, None)), *columns, ((256, 256), ("model", None))])


def _jax_experts() -> str:
    import jax
    import jax.numpy as jnp

    def experts(x, gate, up, down):
        weights = jax.nn.softmax(x @ gate)
        hidden = jax.nn.relu(jnp.einsum("td,edf->etf", x, up))
        return jnp.einsum("te,etd->td", weights, jnp.einsum("etf,efd->etd", hidden, down))

    return _lowered(
        experts,
        [
            ((512, 256), ("data", None)),
            ((256, 8), None),
            ((8, 256, 512), ("model", None, None)),
            ((8, 512, 256), ("model", None, None)),
        ],
    )


def _jax_convolutions() -> str:
    import jax

    def network(x, first, second):
        for kernel in (first, second):
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME"))
        return x.mean((2, 3))

    kernels = [((64, 16, 3, 3), None), ((128, 64, 3, 3), ("model", None, None, None))]
    return _lowered(network, [((32, 16, 32, 32), ("data", None, None, None)), *kernels])


def _jax_lookup() -> str:
    import jax
    import jax.numpy as jnp

    def loss(table, head, tokens):
        scores = jax.nn.log_softmax(table[tokens[:, :-1]] @ head)
        return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))

    def step(table, head, tokens):
        value, gradients = jax.value_and_grad(loss, (0, 1))(table, head, tokens)
        return value, table - 0.1 * gradients[0], head - 0.1 * gradients[1]

    shapes = [((4096, 256), ("model", None)), ((256, 4096), (None, "model")), ((32, 129), ("data", None), jnp.int32)]
    return _lowered(step, shapes)


def _jax_scan() -> str:
    import jax

    def scanned(x, weights):
        return jax.lax.scan(lambda x, weight: (jax.nn.gelu(x @ weight), None), x, weights)[0]

    return _lowered(scanned, [((512, 512), ("data", None)), ((4, 512, 512), (None, None, "model"))])


def _gpt(layers: int, data: int, model: int) -> Callable[[], str]:
    def build() -> str:
        from benchmarks.gpt_module import module

        return module(layers, data, model)

    return build


JAX_TARGETS: dict[str, Target] = {
    "jax mlp": Target(_jax_mlp(False, (None, "model"), ("model", None), ("data", None)), None),
    "jax mlp, conflict": Target(_jax_mlp(False, ("model", None), ("model", None), ("data", None)), None),
    "jax mlp step": Target(_jax_mlp(True, (None, "model"), None, ("data", None)), None),
    "jax mlp step, states split": Target(_jax_mlp(True, ("data", None), ("data", None), ("data", None)), None),
    "jax attention": Target(_jax_attention, None),
    "jax experts": Target(_jax_experts, None),
    "jax convolutions": Target(_jax_convolutions, None),
    "jax lookup step": Target(_jax_lookup, None),
    "jax scan": Target(_jax_scan, None),
    "jax gpt step, 1 layer": Target(_gpt(1, 2, 4), None),
    "jax gpt step, 2 layers": Target(_gpt(2, 4, 2), None),
}
TARGETS: dict[str, Target] = {**PYTHON_TARGETS, **JAX_TARGETS}
