"""Issues about redistribution alone; the peers are DTensor's `redistribute`, run, and its price of it."""

from __future__ import annotations

from functools import partial

import numpy as np
from case import Case, case

MOVES: list[Case] = []
moves = partial(case, MOVES)
F = np.float32


@moves("pytorch/pytorch#132751", "Two dims change axes", "a=2 b=4", (((64, 64), F),), ("a, b", "b, a"))
def exchanged_axes(x):
    """From one split to another the tensor is replicated on the way."""
    return x


@moves("pytorch/pytorch#132751", "One axis moves on", "a=2 b=2 c=2", (((16, 16, 16), F),), ("a.b, c, -", "a, b, c"))
def moved_on(x):
    """The same on three axes."""
    return x


@moves("pytorch/pytorch#157585", "The inner axis gathered", "a=2 b=4", (((32, 16), F),), ("a.b, -", "a, -"))
def inner_gathered(x):
    """Gathering the inner axis and gathering the outer one cost the same."""
    return x


@moves("pytorch/pytorch#157585", "The outer axis gathered", "a=2 b=4", (((32, 16), F),), ("a.b, -", "b, -"))
def outer_gathered(x):
    """The outer one: each rank needs other rows than its neighbours hold."""
    return x


@moves("pytorch/pytorch#177663", "From rows to columns", "a=8", (((64, 64), F),), ("a, -", "-, a"))
def rows_to_columns(x):
    """An all-to-all was priced as an all-gather and one more."""
    return x


@moves("pytorch/pytorch#169439", "Three axes", "a=2 b=2 c=2", (((16, 16), F),), ("b, -", "-, a.c"))
def three_axes(x):
    """Prices break the triangle inequality: a detour is cheaper."""
    return x


@moves("huggingface/transformers#48802", "The order of two axes", "a=2 b=4", (((64, 8), F),), ("a.b, -", "b.a, -"))
def order_of_axes(x):
    """Two all-gathers one after the other are called suboptimal."""
    return x


@moves("meta-pytorch/autoparallel#125", "Columns gathered", "a=8", (((64, 64), F),), ("-, a", "-, -"))
def columns_gathered(x):
    """Gathering along dim 1 has a hidden copy, priced by a factor."""
    return x


@moves("NVIDIA/Fuser#4188", "An axis goes, another comes", "a=2 b=4", (((64, 64), F),), ("a, -", "-, b"))
def goes_and_comes(x):
    """A redistribution with additions and deletions of axes cannot be split up."""
    return x
