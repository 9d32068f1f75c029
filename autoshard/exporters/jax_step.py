"""A plan as a function of JAX, with exactly the plan's collectives: what `planned.to_jax()` returns.

    step = planned.to_jax()
    state = step.state()                        parameters and states of the optimizer, as the plan splits them
    loss, state = step(state, tokens)
    variables = step.tree(state, variables)     as the pytree that they came in

Other than `jax_sharding.jit`, which leaves collectives to XLA, it is the program of the ranks itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from autoshard.engines.xla_engine import compiler_options
from autoshard.engines.xla_whole import XlaStep, given_in_pieces
from autoshard.frontends.jax.trees import named_leaves
from autoshard.ir.graph import DATA
from autoshard.partition.program import Register
from autoshard.runtime.array import array_dtype
from autoshard.runtime.padded import fit
from autoshard.search.planned import PlannedData
from autoshard.trace.structure import Leaf, flatten
from autoshard.util.errors import PlanError, RuntimeSetupError

State = dict[str, jax.Array]
"""By name; dims that the plan's parts do not divide are padded at their end."""


class JaxStep:
    """A planned model, or step of training, on JAX's devices.

    Args:
        planned: what `autoshard.plan` returned.
        devices: a device for each rank, by default JAX's first ones.

    Raises:
        PlanError: an operator that the engine xla lacks, or layouts that JAX's shardings cannot say.
        RuntimeSetupError: too few devices.
    """

    def __init__(self, planned: PlannedData, devices: Sequence[Any] | None = None) -> None:
        self.planned, self._whole = planned, XlaStep(given_in_pieces(planned.program))
        self.mesh = _mesh(self._whole, devices)
        """The mesh, with an axis for each piece of an axis that some layout splits by."""
        self.grid = self._whole.text.grid
        """Which rank stands at each position of the mesh."""
        registers, values = planned.program.inputs, planned.graph.inputs
        self._data = tuple(i for i, role in enumerate(planned.graph.roles) if role == DATA)
        self._held = {value.name: i for i, value in enumerate(values) if i not in self._data}
        self._registers = {name: registers[i] for name, i in self._held.items()}
        self._last: tuple[jax.Array, ...] = ()

    @cached_property
    def shardings(self) -> dict[str, NamedSharding]:
        """How each entry of the state lies."""
        return {name: self._sharding(i) for name, i in self._held.items()}

    @cached_property
    def _returned(self) -> tuple[int, ...]:
        """The outputs that the model returns; the others are the state's new entries alone."""
        leaves, _ = flatten(self.planned.traced.results, lambda part: isinstance(part, Leaf))
        return tuple(dict.fromkeys(leaf.index for _, leaf in leaves))

    def _sharding(self, i: int) -> NamedSharding:
        return NamedSharding(self.mesh, self._whole.in_specs[i])

    # -- the state

    def state(self) -> State:
        """The present values of parameters and of the optimizer's states."""
        given = self.planned.traced.parameters
        values = {value.name: one for value, one in given.items()}
        return self.placed({name: values[name].asnumpy() for name in self._held})

    def placed(self, arrays: Mapping[str, Any]) -> State:
        """A state out of whole arrays by name, such as another plan's (`whole`), on any number of devices.

        Raises:
            RuntimeSetupError: names or shapes that are not the state's.
        """
        if set(arrays) != set(self._held):
            other = sorted(set(arrays) ^ set(self._held))
            raise RuntimeSetupError(f"missing of the state's {len(self._held)} entries, or unknown: {', '.join(other)}")
        with jax.enable_x64(True):
            given = {name: self._fitted(np.asarray(arrays[name]), i) for name, i in self._held.items()}
            return {name: jax.device_put(one, self.shardings[name]) for name, one in given.items()}

    def whole(self, state: State) -> dict[str, np.ndarray]:
        """The state as whole arrays of numpy, without padding."""
        return {name: fit(np.asarray(state[name]), self._registers[name].true.shape) for name in self._held}

    def tree(self, state: State, like: Any, prefix: str = "") -> Any:
        """A pytree with the structure of `like`, whose leaves are entries of the state, by their names.

        Args:
            like: such as the parameters that a model was imported with, or the state of an optimizer of optax.
            prefix: what the state's names have before those of the leaves: "optimizer" for the state of optax's.

        Raises:
            PlanError: a leaf that the state has not.
        """
        found = []
        for name, _ in named_leaves(like):
            full = ".".join(filter(None, (prefix, name)))
            if full not in state:
                raise PlanError(f"the state has no {full!r}; it has {', '.join(list(state)[:5])}, ...")
            size = self._registers[full].true.shape
            found.append(state[full] if state[full].shape == size else state[full][tuple(map(slice, size))])
        return jax.tree.unflatten(jax.tree.structure(like), found)

    def _fitted(self, array: np.ndarray | jax.Array, i: int) -> np.ndarray | jax.Array:
        """An array of the input's type, padded; one of JAX as the plan splits it, where it does not lie so already."""
        register, sharding = self.planned.program.inputs[i], self._input_shardings[i]
        if array.shape != register.true.shape:
            raise RuntimeSetupError(f"{register.name} has shape {list(register.true.shape)}, not {list(array.shape)}")
        kind, shape = array_dtype(register.whole.dtype), register.whole.shape
        if isinstance(array, jax.Array):
            kept = array if array.dtype == kind else array.astype(kind)
            if kept.shape != shape:
                kept = jnp.pad(kept, [(0, new - old) for old, new in zip(kept.shape, shape, strict=True)])
            return kept if kept.sharding == sharding else jax.device_put(kept, sharding)
        return fit(np.asarray(array, kind), shape)

    @cached_property
    def _input_shardings(self) -> tuple[NamedSharding, ...]:
        return tuple(map(self._sharding, range(len(self._whole.in_specs))))

    # -- the step

    @cached_property
    def jitted(self) -> Any:
        """The function `(state, data) -> (outputs, state)` as `jax.jit` gives it. The state that goes in is used up.

        Outputs are those that the model returns, by their numbers. XLA copies what leaves a program twice.
        """
        inside = self._whole.over(self.mesh)
        updates, names = self.planned.program.updates, {i: name for name, i in self._held.items()}

        def run(state: State, data: tuple) -> tuple[dict[int, jax.Array], State]:
            given = {**{i: state[name] for name, i in self._held.items()}, **dict(zip(self._data, data, strict=True))}
            made = inside(*(given[i] for i in range(len(given))))
            new = {names[into]: made[out] for out, into in updates.items()}
            return {i: made[i] for i in self._returned}, {**state, **new}

        options = compiler_options(self._whole.program, self._whole.text, self.mesh.devices.flat[0].platform)
        # Arrays of numpy go to the devices in the call itself, which takes less time than `device_put` before it.
        shardings = self.shardings, tuple(self._input_shardings[i] for i in self._data)
        return jax.jit(run, in_shardings=shardings, donate_argnums=0, compiler_options=options)

    def __call__(self, state: State, *data: Any) -> tuple[Any, State]:
        """What the model returns for its arguments, and the state after it. The state that goes in is used up."""
        self._check(state)
        arrays = self._arrays(data)
        self._wait(state)
        with jax.enable_x64(True):
            made, new = self.jitted(state, arrays)
        self._last = _one_of(made)
        registers = self.planned.program.outputs
        outputs = [_cut(made[i], register) if i in made else None for i, register in enumerate(registers)]
        return self.planned.traced.unpack(outputs), new

    def _wait(self, state: State) -> None:
        """Until the step before is done, on devices of the host: their collectives wait in threads of one pool, and
        steps that begin meanwhile may take all of these, so that none goes on. What a step makes is ready together."""
        if self._on_host:
            for one in (*_one_of(state), *self._last):
                if not one.is_deleted():
                    one.block_until_ready()

    @cached_property
    def _on_host(self) -> bool:
        return self.mesh.devices.flat[0].platform == "cpu"

    def _check(self, state: State) -> None:
        """That a state lies on this mesh as planned.

        Raises:
            RuntimeSetupError: names that the plan has not, or an array that lies another way.
        """
        if state.keys() != self._held.keys():
            other = sorted(state.keys() ^ self._held.keys())
            raise RuntimeSetupError(f"missing of the state, or unknown to the plan: {', '.join(other[:5])}")
        for name, i in self._held.items():
            found, wanted = state[name].sharding, self._input_shardings[i]
            if found != wanted and not found.is_equivalent_to(wanted, state[name].ndim):
                raise RuntimeSetupError(
                    f"{name} lies as {found}, but the plan has {wanted}; a state of another mesh or plan comes over by "
                    "step.placed(other.whole(state))"
                )

    def lower(self, state: State, *data: Any) -> Any:
        """What `jax.jit(...).lower` gives: StableHLO, and by `.compile()` the compiled program, its cost and memory."""
        with jax.enable_x64(True):
            return self.jitted.lower(state, self._arrays(data))

    @cached_property
    def _exact(self) -> list[tuple[type, tuple[int, ...], np.dtype]] | None:
        """Class, shape and dtype of arguments that are taken as they come: arrays of numpy, none of them nested or
        padded. (To look closer at them takes 10 us, while devices wait.)"""
        one_by_one = tuple(Leaf(i) for i in range(len(self._data)))
        inputs = [self.planned.program.inputs[i] for i in self._data]
        if self.planned.traced.arguments != one_by_one or any(one.size is not None for one in inputs):
            return None
        return [(np.ndarray, one.whole.shape, array_dtype(one.whole.dtype)) for one in inputs]

    def _arrays(self, data: tuple) -> tuple[np.ndarray | jax.Array, ...]:
        """The tensors among the arguments, as the step takes them; arrays of JAX stay on their devices."""
        if [(type(one), getattr(one, "shape", None), getattr(one, "dtype", None)) for one in data] == self._exact:
            return data
        on_devices: dict[int, jax.Array] = {}

        def standing_for(one: Any) -> Any:
            if not isinstance(one, jax.Array):
                return one
            stand_in = np.broadcast_to(np.zeros((), one.dtype), one.shape)
            on_devices[id(stand_in)] = one
            return stand_in

        if any(isinstance(one, jax.Array) for one in jax.tree.leaves(data)):
            data = jax.tree.map(standing_for, data)
        arrays = self.planned.traced.data(*data)
        return tuple(self._fitted(on_devices.get(id(one), one), i) for one, i in zip(arrays, self._data, strict=True))


def _one_of(arrays: Mapping[Any, jax.Array]) -> tuple[jax.Array, ...]:
    """One of them, if there are any."""
    return tuple(itertools.islice(arrays.values(), 1))


def _cut(one: jax.Array, register: Register) -> jax.Array:
    size = register.true.shape
    return one if one.shape == size else one[tuple(map(slice, size))]


def _mesh(whole: XlaStep, devices: Sequence[Any] | None) -> Mesh:
    grid = whole.text.grid
    given = list(jax.devices() if devices is None else devices)
    if len(given) < grid.size:
        raise RuntimeSetupError(
            f"the plan is for {grid.size} devices (mesh '{whole.program.mesh}'), but JAX has {len(given)}; on CPUs "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={grid.size} makes them"
        )
    placed = np.array(given[: grid.size], dtype=object)[list(grid.ranks)]
    return Mesh(placed.reshape([size for _, size in grid.axes]), grid.names)
