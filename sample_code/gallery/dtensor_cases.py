"""Issues of PyTorch's DTensor and of what builds on it; the peer is DTensor on gloo, a process for each rank."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from case import Case, case

DTENSOR: list[Case] = []
dtensor = partial(case, DTENSOR)
F = np.float32


@dtensor("pytorch/pytorch#179502", "A view of a tensor that is split on dim 1", "d=4", (((12, 8), F),), ("-, d",))
def view_of_columns(x):
    """The numbers are wrong."""
    return x.view(16, 6)


@dtensor(
    "pytorch/pytorch#166598",
    "A contraction with axes in another order",
    "a=2 b=2",
    (((8, 12), F), ((12, 6), F)),
    ("b.a, -", "-, -"),
)
def contraction(x, w):
    """Numbers are wrong where one dim is split over axes in another order than the mesh's. (Private there.)"""
    return torch.einsum("bk,kn->bn", x, w)


@dtensor(
    "pytorch/pytorch#172350",
    "Rows put by index",
    "d=4",
    (((12, 6), F), (np.array([7, 0, 3]),), ((3, 6), F)),
    ("d, -", "-", "-, -"),
)
def rows_put(x, rows, new):
    """Rows that are put by index end at the wrong place."""
    return torch.index_put(x, (rows,), new)


@dtensor("pytorch/pytorch#143372", "A view with an empty rank", "d=4", (((6, 256), F),), ("d, -",))
def view_with_an_empty_rank(x):
    """An uneven view fails on the rank that holds nothing."""
    return x.view(-1)


@dtensor("pytorch/pytorch#135054", "A dim of size 1", "d=2", (((1, 2), F),), ("d, -",))
def view_of_size_one(x):
    """A split dim of size 1 makes a view replicate."""
    return x.view(1, 2) * 2


@dtensor("pytorch/pytorch#161147", "Two dims joined, one of them uneven", "d=4", (((6, 10), F),), ("-, d",))
def uneven_dims_joined(x):
    """Joining an uneven split dim is an error at dispatch."""
    return x.view(60)


@dtensor(
    "pytorch/pytorch#165962", "The largest of a partial product", "d=4", (((6, 8), F), ((8, 10), F)), ("-, d", "d, -")
)
def largest_of_partial(x, w):
    """Maxima of partial values are reduced too late."""
    return (x @ w).max()


@dtensor("pytorch/pytorch#124990", "A diagonal", "d=4", (((8, 8), F),), ("d, -",))
def diagonal(x):
    """That an operator has no strategy is told too late, after another error."""
    return torch.diagonal(x) * 2


@dtensor("pytorch/pytorch#147724", "One row selected", "d=4", (((8, 6), F),), ("d, -",))
def selected(x):
    """`select` had no strategy."""
    return x.select(0, 5) + 1


@dtensor("pytorch/pytorch#152249", "Masked in place", "d=4", (((8, 6), F),), ("d, -",))
def masked_in_place(x):
    """`masked_fill_` had no strategy."""
    y = x * 1
    return y.masked_fill_(y > 0.5, 0.0)


@dtensor("pytorch/pytorch#147578", "The largest along a dim", "d=4", (((8, 6), F),), ("d, -",))
def largest_along(x):
    """`amax` had no strategy."""
    return torch.amax(x, 0)


@dtensor("pytorch/pytorch#167917", "Detached in place", "d=4", (((8, 6), F),), ("d, -",))
def detached(x):
    """`detach_` had no strategy (here `detach`, as exported programs are functional)."""
    return (x * 2).detach() + x


@dtensor("pytorch/torchtitan#3645", "A router", "d=4", (((8, 12), F), ((12, 16), F)), ("d, -", "-, -"))
def router(x, gate):
    """A router's top-k has no strategy."""
    return torch.topk(torch.softmax(x @ gate, -1), 4)[0]


@dtensor("NVIDIA/physicsnemo#1944", "A cross product", "d=4", (((8, 3), F), ((8, 3), F)), ("d, -", "-, -"))
def cross_product(x, r):
    """The cross product with a replicated value is wrong, or its gradient is the local part."""
    return torch.linalg.cross(x, r)


@dtensor(
    "pytorch/pytorch#118600",
    "Permuted, normalized, permuted",
    "d=4",
    (((4, 6, 8), F), ((6, 10), F)),
    ("d, -, -", "-, -"),
)
def permuted(x, w):
    """Gradients lie in another way than what they are gradients of."""
    y = torch.nn.functional.layer_norm(x.permute(0, 2, 1), (6,))
    return y @ w


@dtensor(
    "pytorch/pytorch#191926",
    "A convolution along a split width",
    "d=4",
    (((2, 3, 16, 16), F), ((5, 3, 4, 4), F)),
    ("-, -, -, d", "-, -, -, -"),
)
def convolution(x, kernel):
    """The gradient of a convolution's input is placed along the batch, not along the width."""
    return torch.nn.functional.conv2d(x, kernel, stride=4)


@dtensor("meta-pytorch/autoparallel#3", "Sorted along a split dim", "d=4", (((8, 6), F),), ("d, -",))
def sorted_rows(x):
    """Sorting is not implemented."""
    return torch.sort(x, dim=0)[0]


@dtensor("meta-pytorch/autoparallel#3", "Experts by order", "d=4", (((16, 8), F), ((16,), F)), ("d, -", "d"))
def experts_by_order(x, scores):
    """Sorting tokens by expert is not implemented."""
    return x[torch.argsort(scores)]


@dtensor(
    "meta-pytorch/autoparallel#427",
    "A vocabulary that does not divide",
    "d=4",
    (((6, 12), F), ((12, 257), F)),
    ("-, -", "-, d"),
)
def uneven_vocabulary(x, table):
    """Dims that do not divide are refused."""
    return torch.log_softmax(x @ table, -1)


@dtensor("pytorch/pytorch#115310", "Three rows over four", "a=2 b=2", (((6, 5), F), ((5, 3), F)), ("-, -", "-, a.b"))
def fewer_columns_than_ranks(x, w):
    """Fewer columns than ranks: putting the whole together hangs."""
    return x @ w


@dtensor("pytorch/pytorch#144109", "Uneven columns", "d=4", (((6, 14), F),), ("-, d",))
def uneven_columns(x):
    """Uneven local sizes come together wrongly."""
    return torch.cumsum(x, 1)
