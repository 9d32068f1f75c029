"""Sequences packed by their lengths: rows that a mask selects, and recurrent modules that leave out the others.

torch lays the steps of packed sequences one behind the other, as many as the lengths say, which a run alone knows.
Those are the rows `x[mask]`, the mask being True where a sequence has a step; so they are imported (see `selected`).
A recurrent module goes over all steps; where a sequence has none its state stays. Padded again they have as many steps
as were packed; torch makes as many as the longest sequence has, and those beyond are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any


class _Longest(int):
    """How many steps were packed, asked for as those of the longest sequence."""


def packed_functions() -> dict[Any, Callable]:
    """What stands for packing, for going over what is packed, and for padding it again."""
    import torch

    functions: Any = torch._VF
    cells = {"lstm": _lstm, "gru": _gru, "rnn_tanh": partial(_rnn, torch.tanh), "rnn_relu": partial(_rnn, torch.relu)}
    return {
        functions._pack_padded_sequence: _packed,
        functions._pad_packed_sequence: _padded,
        torch.Tensor.__getitem__: _taken,
        torch.Tensor.size: _size,
        **{getattr(functions, name): _over_steps(getattr(functions, name), cell) for name, cell in cells.items()},
    }


@cache
def _masks() -> Any:
    """Where the sequences have a step [steps, sequences], by torch's tensor of how many have each step."""
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()


def _mask(counts: Any) -> Any:
    """None: nothing was packed so."""
    import torch

    return _masks().get(counts) if isinstance(counts, torch.Tensor) else None


def _packed(input: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    import torch

    steps = input.transpose(0, 1) if batch_first else input
    mask = torch.arange(steps.shape[0], device=steps.device)[:, None] < lengths.to(steps.device)[None]
    counts = mask.sum(1)
    _masks()[counts] = mask
    return steps[mask], counts


def _taken(tensor: Any, place: Any) -> Any:
    """All sequences have a first step."""
    mask = _mask(tensor)
    return tensor[place] if mask is None or not isinstance(place, int) or place else mask.shape[1]


def _size(tensor: Any, *args: Any, **options: Any) -> Any:
    found = tensor.size(*args, **options)
    return found if _mask(tensor) is None or not isinstance(found, int) else _Longest(found)


def _padded(data: Any, counts: Any, batch_first: bool, padding: float, length: int) -> tuple[Any, Any]:
    import torch

    mask = _mask(counts)
    found = _placed(data, mask, padding)
    if isinstance(length, _Longest) and data.is_floating_point():
        # Steps that torch does not make: who counts them is to see it.
        made = (counts > 0).reshape(-1, *(1,) * (found.dim() - 1))
        found = torch.where(made, found, math.nan)
    if length > len(found):
        found = torch.cat([found, found.new_full((length - len(found), *found.shape[1:]), padding)])
    return found.transpose(0, 1) if batch_first else found, mask.sum(0)


def _placed(data: Any, mask: Any, padding: float = 0.0) -> Any:
    """All steps of all sequences."""
    found = data.new_full((*mask.shape, *data.shape[1:]), padding)
    found[mask] = data
    return found


def _over_steps(own: Callable, cell: Callable) -> Callable:
    """A recurrent function that takes what is packed; `own` takes the others."""
    import torch

    def over_steps(data: Any, counts: Any, *given: Any) -> Any:
        mask = _mask(counts)
        if mask is None:
            return own(data, counts, *given)
        states, weights, biases, layers, dropout, train, both = given
        states, x, last = states if isinstance(states, tuple | list) else (states,), _placed(data, mask), []
        each = len(weights) // (layers * (1 + both))
        for layer in range(layers):
            found = []
            for i in range((1 + both) * layer, (1 + both) * (layer + 1)):
                numbers = _Weights(weights[i * each : (i + 1) * each], biases)
                outputs, state = _run(cell, numbers, x, mask, [one[i] for one in states], backward=both and i % 2 == 1)
                found.append(outputs)
                last.append(state)
            x = torch.cat(found, -1)
            if dropout and layer + 1 < layers:
                x = torch.nn.functional.dropout(x, dropout, train)
        return x[mask], *(torch.stack(one) for one in zip(*last, strict=True))

    return over_steps


class _Weights:
    """Of a layer in one direction, in torch's order."""

    def __init__(self, given: Sequence[Any], biases: bool) -> None:
        self.of_input, self.of_state = given[:2]
        self.input_bias, self.state_bias = given[2:4] if biases else (None, None)
        further = given[4 if biases else 2 :]
        self.projection = further[0] if further else None


def _run(
    cell: Callable, weights: _Weights, x: Any, mask: Any, state: Sequence[Any], backward: bool
) -> tuple[Any, Sequence[Any]]:
    """What a layer makes of all steps [steps, sequences, features], and its last state."""
    import torch

    linear, outputs = torch.nn.functional.linear, {}
    inputs = linear(x, weights.of_input, weights.input_bias)
    for i in reversed(range(len(x))) if backward else range(len(x)):
        fresh = cell(inputs[i], linear(state[0], weights.of_state, weights.state_bias), state, weights)
        state = [torch.where(mask[i, :, None], new, old) for new, old in zip(fresh, state, strict=True)]
        outputs[i] = state[0]
    return torch.stack([outputs[i] for i in range(len(x))]), state


def _lstm(of_input: Any, of_state: Any, state: Sequence[Any], weights: _Weights) -> Sequence[Any]:
    enters, stays, new, leaves = (of_input + of_state).chunk(4, -1)
    inner = stays.sigmoid() * state[1] + enters.sigmoid() * new.tanh()
    outer = leaves.sigmoid() * inner.tanh()
    return (outer if weights.projection is None else outer @ weights.projection.mT), inner


def _gru(of_input: Any, of_state: Any, state: Sequence[Any], weights: _Weights) -> Sequence[Any]:
    (reset, stays, new), (of_reset, of_stays, of_new) = of_input.chunk(3, -1), of_state.chunk(3, -1)
    new = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return (new + (stays + of_stays).sigmoid() * (state[0] - new),)


def _rnn(bend: Callable, of_input: Any, of_state: Any, state: Sequence[Any], weights: _Weights) -> Sequence[Any]:
    return (bend(of_input + of_state),)
