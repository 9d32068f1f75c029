"""Issues of JAX, XLA and what builds on StableHLO; the peer is XLA with Shardy's propagation, on host devices."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from case import Case, case
from jax import lax

XLA: list[Case] = []
xla = partial(case, XLA)
F, WORD = np.float32, np.int32


@xla(
    "jax-ml/jax#21562",
    "From one split to another",
    "x=4 y=2",
    (((16, 16, 16), F),) * 2,
    ("y, -, x",) * 2 + ("-, x.y, -",),
)
def redistribution_by_gathering(a, b):
    """Both ends are split; XLA gathers all between them, and warns of an involuntary full rematerialization."""
    return a + b


@xla(
    "jax-ml/jax#18591",
    "The gradient of an embedding",
    "dp=2 tp=4",
    (((64, 32), F), ((16,), WORD)),
    ("tp, -", "dp", "tp, -"),
)
def gradient_of_an_embedding(table, words):
    """The warning of a full rematerialization names neither the line nor the operator."""
    return jax.grad(lambda t: (t[words] ** 2).sum())(table)


@xla(
    "jax-ml/jax#20381",
    "Rows shuffled, each by itself",
    "dp=8",
    (((16, 32), F), ((16, 32), WORD)),
    ("dp, -", "dp, -", "dp, -"),
)
def shuffled_rows(x, order):
    """A shuffle inside of rows gathers all rows."""
    return jnp.take_along_axis(x, jnp.argsort(order, axis=1), axis=1)


@xla("jax-ml/jax#19271", "The largest along a split dim", "d=8", (((2, 8192), F),), ("-, d", "-, -"))
def largest(x):
    """top_k along a split dim was wrong on GPUs; on CPUs the whole dim is gathered."""
    return lax.top_k(x, 4)[0]


@xla("jax-ml/jax#23052", "Some rows set", "d=8", (((64, 16), F), ((3, 16), F)), ("-, d", "-, d", "-, d"))
def rows_set(x, rows):
    """`x.at[0:3].set(...)` with static bounds gathered, with dynamic ones not."""
    return x.at[0:3].set(rows)


@xla("jax-ml/jax#23052", "Rows set along the split dim", "d=8", (((64, 16), F), ((3, 16), F)), ("d, -", "-, -", "d, -"))
def split_rows_set(x, rows):
    """The same along the dim that is split."""
    return x.at[0:3].set(rows)


@xla("jax-ml/jax#28542", "A column taken", "s=4", (((4, 3), F),), ("s, -", "s"), explicit=True)
def column(a):
    """With explicit axes `a[:, 1]` is refused, though dim 1 is not split."""
    return a[:, 1]


@xla(
    "jax-ml/jax#31798",
    "The gradient of a convolution",
    "s=8",
    (((8, 1, 16), F), ((1, 1, 3), F)),
    ("s, -, -", "-, -, -", "-, -, -"),
    explicit=True,
)
def gradient_of_convolution(x, kernel):
    """With explicit axes the convolution goes forward, and its gradient is refused."""
    dims = ("NCH", "OIH", "NCH")
    one = lambda k: lax.conv_general_dilated(x, k, (1,), "SAME", dimension_numbers=dims)  # noqa: E731
    return jax.vjp(one, kernel)[1](one(kernel))[0]


@xla(
    "jax-ml/jax#29859",
    "A reshape that cuts a split dim",
    "x=2 y=2",
    (((10, 1), F),),
    ("x, -", "x, -, -"),
    explicit=True,
)
def reshape_with_ones(a):
    """With explicit axes this reshape ended in an AssertionError."""
    return jnp.reshape(a, (2, 5, 1))


@xla(
    "jax-ml/jax#33787",
    "Complex numbers seen as pairs",
    "data=8",
    (((128, 64), np.complex64),),
    ("data, -", "data, -, -"),
    explicit=True,
)
def complex_pairs(x):
    """With explicit axes a view of complex numbers as floats had no rule."""
    return jnp.stack([x.real, x.imag], axis=-1)


@xla(
    "jax-ml/jax#37853",
    "Numbers masked",
    "d=8",
    (((64, 8), F), ((64, 8), np.bool_)),
    ("d, -", "-, -", "d, -"),
    explicit=True,
)
def masked(x, mask):
    """With explicit axes `where` is refused if the mask lies in another way."""
    return jnp.where(mask, x, 0.0)


@xla(
    "jax-ml/jax#29637",
    "Branches that lie in unlike ways",
    "d=8",
    (((64, 8), F), ((), WORD)),
    ("d, -", "", "d, -"),
    explicit=True,
)
def branches(x, which):
    """With explicit axes branches whose results lie in unlike ways are refused."""
    return lax.switch(which, [lambda y: y, lambda y: y[::-1]], x)


@xla("jax-ml/jax#29883", "Many matrices decomposed", "d=8", (((8, 16, 16), F),), ("d, -, -", "d, -, -"), explicit=True)
def decomposed(x):
    """With explicit axes linear algebra had no rules for batches that are split."""
    return jnp.linalg.cholesky(x @ x.mT + 16 * jnp.eye(16, dtype=x.dtype))


@xla("jax-ml/jax#35650", "Sorted by index", "x=8", (((4096,), F),), ("x", "x"))
def sorted_by_index(x):
    """`arr[argsort(arr)]` took two all-gathers."""
    return x[jnp.argsort(x)]


@xla(
    "openxla/xla#4062",
    "A product of unlike splits",
    "x=2 y=4",
    (((256, 512), F), ((512, 128), F)),
    ("x, y", "y, x", "y, x"),
)
def product_of_unlike(a, b):
    """Both operands of a product are gathered."""
    return (a @ b).T


@xla("openxla/xla#13306", "Gradient accumulation", "d=8", (((16, 2048), F),), ("d, -", "-, d, -"))
def micro_batches(x):
    """A reshape into micro batches splits the wrong one of both dims, and all is exchanged."""
    return x.reshape(2, 8, 2048)


@xla(
    "openxla/xla#47945",
    "A grouped convolution",
    "d=8",
    (((8, 8, 8, 16), F), ((3, 3, 2, 16), F)),
    ("d, -, -, -", "-, -, -, -", "d, -, -, -"),
)
def grouped_convolution(x, kernel):
    """A grouped convolution gathers its batch."""
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
    )


@xla(
    "openxla/xla#42481",
    "Added at some rows",
    "tp=8",
    (((64, 24), F), ((10,), WORD), ((10, 24), F)),
    ("tp, -", "-", "-, -", "tp, -"),
)
def gradient_of_added_rows(table, rows, more):
    """The backward pass of a scatter-add does its all-reduce in the wrong place."""
    return jax.grad(lambda t: (t.at[rows % 64].add(more) ** 2).sum())(table)


@xla("openxla/xla#5963", "The largest of what all have", "d=8", (((64, 128), F),), ("-, -", ""))
def largest_of_replicated(x):
    """A reduction of a value that all devices hold is done by each of them, whole."""
    return jnp.abs(x).max()


@xla("EnzymeAD/Enzyme-JAX#822", "Pads and slices of a stencil", "x=4 y=2", (((96, 96), F),), ("x.y, -", "x, y"))
def stencil(x):
    """Pads and slices between unlike splits are rematerialized in full."""
    return jnp.pad(x[1:-1], ((8, 7), (0, 0)))[3:99] * 2


@xla("tenstorrent/tt-xla#3643", "A split dim cut in two", "d=4", (((30720,), F),), ("d", "d, -"))
def cut_in_two(x):
    """The reshape of a split dim fails; there is nothing to do."""
    return x.reshape(240, 128)


@xla("tenstorrent/tt-mlir#8787", "30 heads over 4 devices", "d=4", (((64, 3840), F),), ("-, d", "-, -, -"))
def heads_that_do_not_divide(x):
    """Heads that do not divide are a compile error."""
    return x.reshape(64, 30, 128)


@xla(
    "tenstorrent/tt-mlir#6313",
    "A table split by columns",
    "a=8",
    (((2048, 64), F), ((32,), WORD)),
    ("-, a", "-", "-, a"),
)
def table_by_columns(table, words):
    """An embedding that is split along its second dim gets another program each time."""
    return table[words]


@xla(
    "tenstorrent/tt-xla#2601",
    "One value for many",
    "d=8",
    (((64, 32), F), ((4, 32, 8), F)),
    ("d, -", "-, -, -", "-, -"),
)
def experts_joined(x, weights):
    """One value is brought into the same layout once for each expert."""
    whole = [x.T @ jnp.tanh(x @ weights[i]) for i in range(4)]
    return jnp.concatenate(whole, axis=1)


@xla(
    "openxla/shardy#921",
    "Two products in a row",
    "tp=8",
    (((32, 64), F), ((64, 128), F), ((128, 64), F)),
    ("-, -", "-, tp", "tp, -", "-, -"),
)
def collectives_in_stablehlo(x, up, down):
    """Collectives are only there inside of XLA; asked for at the level of StableHLO, which `partition` prints."""
    return jax.nn.relu(x @ up) @ down
