"""A plan for JAX: PartitionSpecs of inputs, outputs and products, as data and as a jitted function that obeys them.

    told = jax_shardings(planned)
    params = jax.device_put(params, told.tree(params))      a pytree of NamedShardings, by qualified names
    logits = jit_model(model, planned)(params, tokens)

Where layouts use sub-axes, the JAX mesh has an axis for each piece. JAX wants parts to divide a dim: where they do not,
the minor axes that are in the way are left out there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.exporters.pieces import Pieces, pieces_of
from autoshard.frontends.jax.trees import named_leaves
from autoshard.ir.graph import Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Plan
from autoshard.util.errors import PlanError, RuntimeSetupError
from autoshard.util.near import nearest

if TYPE_CHECKING:
    from autoshard.frontends.jax.model import JaxModel

# What JAX lowers each of its products to; one of ragged groups is a product with masked rows.
_PRODUCT = {
    "dot_general": "DotGeneral", "ragged_dot_general": "DotGeneral", "conv_general_dilated": "Convolution",
}  # fmt: skip


@dataclass(frozen=True)
class JaxShardings:
    """How a plan's values lie, in JAX's words.

    Attributes:
        pieces: the mesh, without sub-axes.
        inputs: a PartitionSpec per input of the graph; for a function of `from_jax` these are the leaves of the
            arguments.
        outputs: one per output.
        values: one for each value that an operator makes, by name.
        names: what the inputs are called; of a model's parameters their qualified names.
    """

    pieces: Pieces
    inputs: tuple[PartitionSpec, ...]
    outputs: tuple[PartitionSpec, ...]
    values: dict[str, PartitionSpec] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @property
    def named(self) -> dict[str, PartitionSpec]:
        """The PartitionSpecs of the inputs by name."""
        return dict(zip(self.names, self.inputs, strict=True))

    def tree(self, tree: Any, prefix: str = "", devices: Sequence[Any] | None = None) -> Any:
        """A NamedSharding for each leaf of a pytree whose leaves are inputs of the plan, by their names.

        Args:
            tree: such as the parameters that a model was imported with.
            prefix: what the plan's names have before those of the leaves: "optimizer" for the state of optax's.
            devices: as for `mesh`.

        Raises:
            PlanError: a leaf that the plan does not know, or with another number of dims.
            RuntimeSetupError: too few devices.
        """
        mesh, known = self.mesh(devices), self.named
        found = []
        for name, leaf in named_leaves(tree):
            full = ".".join(filter(None, (prefix, name)))
            if full not in known:
                raise PlanError(f"the plan has no input {full!r}; the nearest are {nearest(full, known)}")
            if len(known[full]) != np.ndim(leaf):
                raise PlanError(f"the plan has {full} with {len(known[full])} dims, but it has {np.ndim(leaf)}")
            found.append(NamedSharding(mesh, known[full]))
        return jax.tree.unflatten(jax.tree.structure(tree), found)

    def mesh(self, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        """The JAX mesh over these devices, by default JAX's first ones.

        Raises:
            RuntimeSetupError: there are too few.
        """
        ranks = self.pieces.ranks
        given = list(jax.devices() if devices is None else devices)
        if len(given) < ranks.size:
            raise RuntimeSetupError(
                f"the plan is for {ranks.size} devices (mesh '{self.pieces.mesh}'), but JAX has {len(given)}; on CPUs "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={ranks.size} makes them"
            )
        placed = np.empty(ranks.shape, object)
        for position, rank in np.ndenumerate(ranks):
            placed[position] = given[rank]
        return jax.sharding.Mesh(placed, self.pieces.names)

    def to_data(self) -> dict[str, Any]:
        """The same as plain data for JSON; an entry per dim: null, an axis, or a list of axes."""

        def shown(spec: PartitionSpec) -> list[Any]:
            return [list(one) if isinstance(one, tuple) else one for one in spec]

        return {
            "format": "autoshard partition specs 1",
            "mesh": dict(self.pieces.axes),
            "devices": self.pieces.ranks.tolist(),
            "names": list(self.names),
            "inputs": list(map(shown, self.inputs)),
            "outputs": list(map(shown, self.outputs)),
            "values": {name: shown(spec) for name, spec in self.values.items()},
        }


def jax_shardings(plan: Any) -> JaxShardings:
    """The PartitionSpecs of a Plan, or of what `autoshard.plan` returned.

    Raises:
        PlanError: layouts cut a mesh axis in ways that no finer mesh can say.
    """
    plan = _plan(plan)
    pieces, graph = pieces_of(plan), plan.graph
    return JaxShardings(
        pieces,
        tuple(_spec(plan.layouts[value], value, pieces) for value in graph.inputs),
        tuple(_spec(layout, value, pieces) for layout, value in zip(plan.outputs, graph.outputs, strict=True)),
        {value.name: _spec(plan.layouts[value], value, pieces) for node in graph.nodes for value in node.results},
        tuple(value.name for value in graph.inputs),
    )


def _plan(plan: Any) -> Plan:
    return getattr(plan, "plan", plan)


def _spec(layout: Layout, value: Value, pieces: Pieces) -> PartitionSpec:
    """How a value lies; nothing is said of terms of sums, which JAX keeps to itself."""
    sizes = pieces.sizes
    entries: list[Any] = []
    for size, axes in zip(value.type.shape, pieces.dims(layout), strict=True):
        fitting: list[str] = []
        for axis in axes:
            if size % sizes[axis]:
                break
            size //= sizes[axis]
            fitting.append(axis)
        entries.append(None if not fitting else fitting[0] if len(fitting) == 1 else tuple(fitting))
    return PartitionSpec(*entries)


def jit(function: Callable, plan: Any, *args: Any, devices: Sequence[Any] | None = None, **kwargs: Any) -> Callable:
    """The function as JAX runs it with the plan: inputs and outputs lie as the plan says, and so does what its products
    (dot_general, convolutions) outside of loops make.

    Args:
        function: what `from_jax` read, a plain function of pytrees.
        plan: for what `from_jax` returned of it.
        args: the same arguments, or their shapes; also those by name.
        devices: the devices, by default JAX's first ones.

    Raises:
        PlanError: the plan is for another function: other inputs, outputs or products.
        RuntimeSetupError: too few devices.
    """
    plan = _plan(plan)
    specs = jax_shardings(plan)
    mesh = specs.mesh(devices)
    leaves, structure = jax.tree.flatten((args, kwargs))
    _check_leaves(leaves, plan)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    outputs, returned = jax.tree.flatten(shapes)
    if len(outputs) != len(specs.outputs):
        raise PlanError(f"the plan is for {len(specs.outputs)} outputs, but the function returns {len(outputs)}")
    compiled = _compiled(closed, plan, specs, mesh, specs.inputs)

    def call(*args: Any, **kwargs: Any) -> Any:
        flat, given = jax.tree.flatten((args, kwargs))
        if given != structure:
            raise PlanError(f"the plan is for arguments {structure}, but got {given}")
        return jax.tree.unflatten(returned, compiled(*flat))

    return call


def jit_model(model: JaxModel, plan: Any, devices: Sequence[Any] | None = None) -> Callable:
    """`function(params, *args, **kwargs)`: a model of `from_jax` as JAX runs it with the plan, as `jit` does.

    Args:
        model: the model that was planned, no step of training; what it changes in its variables is not returned.
        plan: for it.
        devices: the devices, by default JAX's first ones.

    Raises:
        PlanError: the plan is for another model, or for a step of training.
        RuntimeSetupError: too few devices.
    """
    plan = _plan(plan)
    specs = jax_shardings(plan)
    mesh, known = specs.mesh(devices), specs.named
    closed, shape = jax.make_jaxpr(model.result, return_shape=True)(*model.leaf_shapes)
    unknown = [name for name in model.leaf_names if name not in known]
    if unknown:
        raise PlanError(f"the plan is for another model: it has no input {unknown[0]!r}")
    returned = jax.tree.structure(shape)
    compiled = _compiled(closed, plan, specs, mesh, [known[name] for name in model.leaf_names])
    return lambda params, *args, **kwargs: jax.tree.unflatten(
        returned, compiled(*model.leaves(params, *args, **kwargs))
    )


def _compiled(closed: Any, plan: Plan, specs: JaxShardings, mesh: jax.sharding.Mesh, inputs: Sequence[Any]) -> Any:
    """A jaxpr as `jax.jit` gives it, whose inputs lie as said, and outputs and products as the plan says."""
    jaxpr = _live(closed.jaxpr)
    wanted = [None if spec is None else NamedSharding(mesh, spec) for spec in _products(jaxpr, plan, specs)]

    def run(*flat: Any) -> list[Any]:
        return _run(jaxpr, closed.consts, flat, iter(wanted))

    entering = [NamedSharding(mesh, spec) for spec in inputs]
    leaving = [NamedSharding(mesh, spec) for spec in specs.outputs[: len(jaxpr.outvars)]]
    return jax.jit(run, in_shardings=entering, out_shardings=leaving)


def _check_leaves(leaves: Sequence[Any], plan: Plan) -> None:
    given = [tuple(np.shape(one)) if not hasattr(one, "shape") else tuple(one.shape) for one in leaves]
    wanted = [value.type.shape for value in plan.graph.inputs]
    if given != wanted:
        raise PlanError(f"the plan is for inputs of shapes {wanted}, but the arguments have {given}")


# -- products: in the jaxpr and in the graph they stand in one order, as JAX lowers equation by equation


def _products(jaxpr: Any, plan: Plan, specs: JaxShardings) -> list[PartitionSpec | None]:
    """Per product of a jaxpr what its result is split by; None for the two that the plan has as one attention."""
    equations = list(_equations(jaxpr))
    own = [(_PRODUCT[eqn.primitive.name], tuple(eqn.outvars[0].aval.shape)) for eqn, _ in equations]
    nodes = [node for node in plan.graph.nodes if node.op.name in _PRODUCT.values()]
    theirs = [(node.op.name, node.results[0].type.shape) for node in nodes]
    attentions = sum(node.op.name == "Attention" for node in plan.graph.nodes)
    found, left = [], list(nodes)
    for product in own:
        same = bool(left) and product == (left[0].op.name, left[0].results[0].type.shape)
        found.append(specs.values[left.pop(0).results[0].name] if same else None)
    missing = [is_reached for spec, (_, is_reached) in zip(found, equations, strict=True) if spec is None]
    # Of turns that are written out JAX's compiler drops what the last one makes for no other.
    if left or not missing.count(True) <= 2 * attentions <= len(missing):
        raise PlanError(
            f"the plan is for another function: it has the products {theirs} and {attentions} attentions, "
            f"the function {own}"
        )
    return [spec for spec, (_, is_reached) in zip(found, equations, strict=True) if is_reached]


def _live(jaxpr: Any) -> Any:
    """Without what no output needs: plans are for graphs that have none of it."""
    from jax.interpreters.partial_eval import dce_jaxpr

    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


# Primitives that only call a function, and where they hold it.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
# It holds a plain jaxpr, and stays what it is: it says what is computed again for the backward pass.
_REMAT = ("checkpoint", "remat2")
# These also say how the function is differentiated, and stay what they are unless there are products inside.
_CUSTOM = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def _called(eqn: Any) -> Any:
    """The function (a closed jaxpr) that an equation calls and that is to be looked into; None if it calls none."""
    name = eqn.primitive.name
    if name in _CALLS:
        return eqn.params[_CALLS[name]]
    inner = eqn.params.get(_CUSTOM[name]) if name in _CUSTOM else None
    return inner if inner is not None and any(_equations(inner.jaxpr)) else None


def _equations(jaxpr: Any) -> Iterator[tuple[Any, bool]]:
    """The products of a jaxpr, those in functions that it calls included, and whether `_run` comes to each: it does not
    to what JAX writes out of a loop, which is in the plan's graph."""
    for eqn in jaxpr.eqns:
        inner = _called(eqn)
        if inner is not None:
            yield from _equations(inner.jaxpr)
        elif eqn.primitive.name in _REMAT:
            yield from _equations(eqn.params["jaxpr"])
        elif eqn.primitive.name == "scan":
            once = [(product, False) for product, _ in _equations(eqn.params["jaxpr"].jaxpr)]
            yield from once * _written_out(**eqn.params)
        elif eqn.primitive.name in _PRODUCT:
            yield eqn, True


def _written_out(length: int, unroll: int, **_: Any) -> int:
    """How many turns of a scan JAX writes behind its loop, which takes `unroll` of them at once: what is left, or all
    where it would turn once."""
    turns, left = divmod(length, unroll) if unroll else (0, length)
    return length if unroll != 1 and turns == 1 and not left else left


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], wanted: Iterator[NamedSharding | None]) -> list[Any]:
    """Evaluate a jaxpr, every product constrained to the next of the shardings, if that is one."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for eqn in jaxpr.eqns:
        operands = [one.val if hasattr(one, "val") else known[one] for one in eqn.invars]
        inner = _called(eqn)
        if inner is not None:
            found = _run(inner.jaxpr, inner.consts, operands, wanted)
        elif eqn.primitive.name in _REMAT:
            body = jax.make_jaxpr(partial(_run, eqn.params["jaxpr"], (), wanted=wanted))(operands)
            found = eqn.primitive.bind(*operands, **{**eqn.params, "jaxpr": body.jaxpr})
        else:
            found = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            found = list(found) if eqn.primitive.multiple_results else [found]
        if eqn.primitive.name in _PRODUCT and (sharding := next(wanted)) is not None:
            found = [jax.lax.with_sharding_constraint(found[0], sharding)]
        known.update(zip(eqn.outvars, found, strict=True))
    return [one.val if hasattr(one, "val") else known[one] for one in jaxpr.outvars]
