"""Recurrent layers and their cells with MindSpore's names, arguments, defaults and results.

The steps are written out in the graph one behind the other: what they make of the input is one product for all of them.
Of padded sequences (`seq_length`) the steps beyond the end leave the state as it is, and give zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.nn.layers import Dropout
from autoshard.mindspore.ops.functional.layers import dense
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell
from autoshard.trace.initializer import Uniform, deferred
from autoshard.trace.parameter import Parameter
from autoshard.util.checks import positive
from autoshard.util.errors import ShapeError

State = tuple[Any, ...]
Step = Callable[[Any, Any, State], State]

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _lstm(of_input: Any, of_state: Any, state: State) -> State:
    enter, forget, new, out = core.split(core.add(of_input, of_state), axis=-1, output_num=4)
    kept = core.mul(core.sigmoid(forget), state[1])
    cell = core.add(kept, core.mul(core.sigmoid(enter), core.tanh(new)))
    return core.mul(core.sigmoid(out), core.tanh(cell)), cell


def _gru(of_input: Any, of_state: Any, state: State) -> State:
    (reset, update, new), (old_reset, old_update, old) = (
        core.split(one, axis=-1, output_num=3) for one in (of_input, of_state)
    )
    reset = core.sigmoid(core.add(reset, old_reset))
    new = core.tanh(core.add(new, core.mul(reset, old)))
    update = core.sigmoid(core.add(update, old_update))
    return (core.add(new, core.mul(update, core.sub(state[0], new))),)


def _tanh(of_input: Any, of_state: Any, state: State) -> State:
    return (core.tanh(core.add(of_input, of_state)),)


def _relu(of_input: Any, of_state: Any, state: State) -> State:
    return (core.relu(core.add(of_input, of_state)),)


def _elman(nonlinearity: Any, what: str) -> Step:
    steps = {"tanh": _tanh, "relu": _relu}
    if nonlinearity not in steps:
        raise ShapeError(f"{what}: nonlinearity is {nonlinearity!r}; it is 'tanh' or 'relu', given by name")
    return steps[nonlinearity]


def _check_sizes(what: str, **sizes: Any) -> None:
    for name, size in sizes.items():
        if positive(size) is None:
            raise ShapeError(f"{what}: {name} is {size!r}; it is a whole number of at least 1")


def _parameters(inputs: int, hidden: int, gates: int, has_bias: bool, dtype: Any) -> dict[str, Parameter]:
    """Of a layer in one direction, even between -+1 / sqrt(hidden)."""
    shapes = ((gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
    even = Uniform(1 / math.sqrt(hidden))
    kinds = zip(_KINDS if has_bias else _KINDS[:2], shapes, strict=False)
    return {kind: Parameter(deferred(even, shape, element(dtype))) for kind, shape in kinds}


class _RecurrentLayers(Cell):
    """Layers of one kind of step, each over the results of the one before.

    Args:
        input_size, hidden_size: of an element of the sequence, and of the state.
        batch_first: x is [batch, steps, input_size], not [steps, batch, input_size]; states never are.
        dropout: the share of elements that become 0 between layers while training.
        bidirectional: a second run from the last step to the first, whose results stand behind those of the first.

    `construct(x, hx=None, seq_length=None)` gives the results of all steps and the last states [layers * directions,
    batch, hidden_size]; hx has the first states, zeros by default; seq_length how many steps each sequence has.
    """

    gates: int
    states = 1
    step: Step

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        has_bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = "f32",
    ) -> None:
        super().__init__()
        _check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        flags = {"has_bias": has_bias, "batch_first": batch_first, "bidirectional": bidirectional}
        wrong = [f"{name} is {one!r}" for name, one in flags.items() if not isinstance(one, bool)]
        if wrong or isinstance(dropout, bool) or not 0 <= dropout < 1:
            raise ShapeError(
                f"{type(self).__name__}: {', '.join([*wrong, f'dropout is {dropout!r}'])}; flags are True or False, "
                "dropout is at least 0 and below 1"
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.has_bias, self.batch_first, self.bidirectional = has_bias, batch_first, bidirectional
        self.directions = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            for direction in self.directions:
                size = input_size if layer == 0 else hidden_size * len(self.directions)
                for kind, one in _parameters(size, hidden_size, self.gates, has_bias, dtype).items():
                    setattr(self, f"{kind}_l{layer}{direction}", one)
        self.dropout = Dropout(p=float(dropout)) if dropout and num_layers > 1 else None

    def construct(self, x: Any, hx: Any = None, seq_length: Any = None) -> Any:
        self._check(x, seq_length)
        x = core.transpose(x, perm=(1, 0, 2)) if self.batch_first else x
        first = self._first_states(x, hx)
        inside = None if seq_length is None else _inside(seq_length, x.shape[0])
        last: list[State] = []
        for layer in range(self.num_layers):
            found = []
            for direction in self.directions:
                outputs, state = self._run(x, first[len(last)], f"l{layer}{direction}", inside)
                found.append(outputs)
                last.append(state)
            x = core.concat(*found, axis=2) if self.bidirectional else found[0]
            if self.dropout is not None and layer + 1 < self.num_layers:
                x = self.dropout(x)
        x = core.transpose(x, perm=(1, 0, 2)) if self.batch_first else x
        states = tuple(core.stack(*one, axis=0) for one in zip(*last, strict=True))
        return as_tensors((x, states if self.states > 1 else states[0]))

    def _run(self, x: Any, state: State, place: str, inside: Sequence[Any] | None) -> tuple[Any, State]:
        """One layer in one direction over x [steps, batch, size]: the results of all steps, and the last state."""
        of_input, of_state, *biases = (getattr(self, f"{kind}_{place}") for kind in self._kinds())
        bias, state_bias = biases or (None, None)
        parts = core.unstack(dense(x, of_input, bias), axis=0)
        parts, outputs = parts if isinstance(parts, tuple) else (parts,), {}
        order = range(len(parts))
        for i in reversed(order) if place.endswith("_reverse") else order:
            new = self.step(parts[i], dense(state[0], of_state, state_bias), state)
            outputs[i] = new[0] if inside is None else core.select(inside[i], new[0], core.zeros_like(new[0]))
            state = new if inside is None else tuple(map(core.select, (inside[i],) * len(new), new, state))
        return core.stack(*(outputs[i] for i in order), axis=0), state

    def _kinds(self) -> tuple[str, ...]:
        return _KINDS if self.has_bias else _KINDS[:2]

    def _first_states(self, x: Any, hx: Any) -> list[State]:
        """By layer and direction; x is [steps, batch, size]."""
        count = self.num_layers * len(self.directions)
        shape = (count, x.shape[1], self.hidden_size)
        if hx is None:
            zeros = core.fill(shape=shape[1:], value=0, dtype=element(x.dtype).name)
            return [(zeros,) * self.states] * count
        given = hx if isinstance(hx, tuple | list) else (hx,)
        shapes = [tuple(getattr(one, "shape", ())) for one in given]
        if shapes != [shape] * self.states:
            wanted = "a tensor" if self.states == 1 else f"a tuple of {self.states} tensors"
            raise ShapeError(
                f"{type(self).__name__}: hx has {' and '.join(map(str, shapes))}; it is {wanted} {shape}: layers times "
                "directions, batch, hidden_size"
            )
        rows = [core.unstack(one, axis=0) for one in given]
        return list(zip(*(one if isinstance(one, tuple) else (one,) for one in rows), strict=True))

    def _check(self, x: Any, seq_length: Any) -> None:
        what, dims = type(self).__name__, "[batch, steps, " if self.batch_first else "[steps, batch, "
        if len(x.shape) != 3 or x.shape[2] != self.input_size:
            raise ShapeError(f"{what}: x is {tuple(x.shape)}; it is {dims}{self.input_size}]")
        batch = x.shape[0 if self.batch_first else 1]
        given = (batch,) if seq_length is None else tuple(getattr(seq_length, "shape", ()))
        if given != (batch,):
            raise ShapeError(
                f"{what}: seq_length is {given}; it has a whole number for each of the {batch} sequences of x "
                f"{tuple(x.shape)}"
            )

    def _row(self, kind: str) -> tuple[Parameter, ...]:
        places = [f"l{layer}{direction}" for layer in range(self.num_layers) for direction in self.directions]
        return tuple(getattr(self, f"{kind}_{place}") for place in places if kind in self._kinds())

    @property
    def w_ih_list(self) -> tuple[Parameter, ...]:
        """The weights of the input, by layer and direction, as MindSpore has them in a row."""
        return self._row("weight_ih")

    @property
    def w_hh_list(self) -> tuple[Parameter, ...]:
        """The weights of the state."""
        return self._row("weight_hh")

    @property
    def b_ih_list(self) -> tuple[Parameter, ...]:
        """The biases of the input; none without `has_bias`."""
        return self._row("bias_ih")

    @property
    def b_hh_list(self) -> tuple[Parameter, ...]:
        """The biases of the state; none without `has_bias`."""
        return self._row("bias_hh")


def _inside(seq_length: Any, steps: int) -> list[Any]:
    """By step which sequences have it, [batch, 1]."""
    lengths = core.expand_dims(seq_length, axis=1)
    kind = element(seq_length.dtype)
    return [core.greater(lengths, np.asarray(step, kind.numpy)) for step in range(steps)]


class LSTM(_RecurrentLayers):
    """Layers with a hidden and a cell state (Hochreiter and Schmidhuber 1997); hx and the last states are pairs.

    i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of W_ih x + b_ih + W_hh h + b_hh; c = f c + i g; h = o tanh(c).
    """

    __doc__ = f"{__doc__}\n{(_RecurrentLayers.__doc__ or '').partition(chr(10))[2]}"
    gates, states, step = 4, 2, staticmethod(_lstm)


class GRU(_RecurrentLayers):
    """Layers with an update and a reset gate (Cho et al. 2014).

    r, z = sigmoid of W_ih x + b_ih + W_hh h + b_hh; n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h = (1 - z) n + z h.
    """

    __doc__ = f"{__doc__}\n{(_RecurrentLayers.__doc__ or '').partition(chr(10))[2]}"
    gates, step = 3, staticmethod(_gru)


class RNN(_RecurrentLayers):
    """Layers of h = tanh(W_ih x + b_ih + W_hh h + b_hh), or ReLU, as `nonlinearity` says, which is given by name."""

    __doc__ = f"{__doc__}\n{(_RecurrentLayers.__doc__ or '').partition(chr(10))[2]}"
    gates = 1

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **given: Any) -> None:
        super().__init__(*args, **given)
        self.nonlinearity, self._step = nonlinearity, _elman(nonlinearity, "RNN")

    def step(self, of_input: Any, of_state: Any, state: State) -> State:  # type: ignore[override]
        return self._step(of_input, of_state, state)


# -- one step


class _RecurrentCell(Cell):
    """One step: `construct(x, hx)` takes x [batch, input_size] and the state, and gives the next state."""

    gates: int
    states = 1
    step: Step

    def __init__(self, input_size: int, hidden_size: int, has_bias: bool = True, dtype: Any = "f32") -> None:
        super().__init__()
        _check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.has_bias = input_size, hidden_size, has_bias
        for kind, one in _parameters(input_size, hidden_size, self.gates, has_bias, dtype).items():
            setattr(self, kind, one)

    def construct(self, x: Any, hx: Any) -> Any:
        state = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        shapes, rows = [tuple(one.shape) for one in state], (x.shape[0], self.hidden_size)
        if tuple(x.shape[1:]) != (self.input_size,) or shapes != [rows] * self.states:
            raise ShapeError(
                f"{type(self).__name__}: x is {tuple(x.shape)} and hx {' and '.join(map(str, shapes))}; they are "
                f"[batch, {self.input_size}] and {'two of ' if self.states > 1 else ''}[batch, {self.hidden_size}]"
            )
        of_input, of_state, bias, state_bias = (getattr(self, kind, None) for kind in _KINDS)
        new = self.step(dense(x, of_input, bias), dense(state[0], of_state, state_bias), state)
        return as_tensors(new if self.states > 1 else new[0])


class LSTMCell(_RecurrentCell):
    """One step of an LSTM: hx and the result are (hidden state, cell state), each [batch, hidden_size]."""

    gates, states, step = 4, 2, staticmethod(_lstm)


class GRUCell(_RecurrentCell):
    """One step of a GRU: x [batch, input_size] and the state [batch, hidden_size] to the next state."""

    gates, step = 3, staticmethod(_gru)


class RNNCell(_RecurrentCell):
    """One step of an RNN: x [batch, input_size] and the state [batch, hidden_size] to the next state."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        has_bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: Any = "f32",
    ) -> None:
        super().__init__(input_size, hidden_size, has_bias, dtype)
        self.nonlinearity, self._step = nonlinearity, _elman(nonlinearity, "RNNCell")

    def step(self, of_input: Any, of_state: Any, state: State) -> State:  # type: ignore[override]
        return self._step(of_input, of_state, state)
