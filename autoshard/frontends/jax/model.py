"""JaxModel: an imported JAX function, as a cell whose parameters have their qualified names.

Called with arrays it computes at once; in a trace it adds to a graph. So it can be planned, trained, or be a part of a
larger model. Gradients are autoshard's own, or JAX's, lowered together with the function.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.frontends.jax.capture import Captured, capture
from autoshard.frontends.jax.optimizers import OptaxOptimizer, is_optax
from autoshard.frontends.jax.patterns import patterns_of
from autoshard.frontends.jax.reference import InJax, run_in_jax
from autoshard.frontends.jax.replay import Replay
from autoshard.frontends.jax.sources import JaxSource, argument_names
from autoshard.frontends.jax.steps import capture_step, with_gradients_of_jax, with_own_gradients
from autoshard.frontends.jax.trees import array_of, bare, clad, is_array, named_leaves, plain, type_of_leaf, values_of
from autoshard.frontends.kept import KeptModel
from autoshard.frontends.results import check_count, picked
from autoshard.frontends.retraced import annotated_like
from autoshard.frontends.training import made_optimizer
from autoshard.ir.graph import Value
from autoshard.trace.function import Traced, trace
from autoshard.trace.parameter import Parameter, active
from autoshard.trace.tensor import TracedTensor
from autoshard.transform.along_batches import along_batches
from autoshard.transform.recompute import recompute
from autoshard.transform.rewrites import plainly_written, rewritten_trace
from autoshard.transform.train import TrainStep, train_step
from autoshard.transform.unroll import unrolled
from autoshard.util.errors import GraphError, NoGradientError

GRADIENTS = ("autoshard", "jax")


class JaxModel(KeptModel):
    """A JAX model out of a function of its parameters.

    Its arguments are the arrays among those that it was imported for, in order; all else is fixed. What it returns is
    nested as what the function returns, or is the loss, if it has one.

    Args:
        source: function and parameters.
        args: the function's example arguments after the parameters.
        kwargs: those given by name.
        loss: a path into the result, a function `loss(result, *args, **kwargs)`, or None.
        optimizer: makes an optimizer of autoshard.optim of the list of trained parameters, or is one of optax; None:
            nothing is trained.
        gradients: who differentiates, "autoshard" or "jax".
        name: what its graph is called.
    """

    framework = "JAX"

    def __init__(
        self,
        source: JaxSource,
        args: tuple,
        kwargs: Mapping[str, Any],
        loss: str | Callable | None = None,
        optimizer: Any = None,
        gradients: str = "autoshard",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.source, self.loss, self.gradients = source, loss, gradients
        self.name, self.example = name or source.name, (args, dict(kwargs))
        self.training = optimizer is not None
        pairs = named_leaves(source.params)
        self._names, self._leaves = [name for name, _ in pairs], [leaf for _, leaf in pairs]
        _check_names(self._names, self.name)
        self._parameters = {
            name: Parameter.of_values(values_of(leaf, name), name, self.training and name in source.trained)
            for name, leaf in zip(self._names, self._leaves, strict=True)
        }
        flat, self._arguments = jax.tree.flatten(self.example)
        self._flat, self._places = flat, [i for i, one in enumerate(flat) if is_array(one)]
        self._data = dict(zip(self._data_names(), (type_of_leaf(bare(one)) for one in self._arrays), strict=True))
        self.optimizer = self._made(optimizer)

    @property
    def _arrays(self) -> list[Any]:
        return [self._flat[i] for i in self._places]

    def _data_names(self) -> list[str]:
        """The names of the arrays among the arguments, each once, as Python takes them."""
        pairs = argument_names(self.source.signature, *self.example)
        found = ((f"{label}.{name}", one) for label, tree in pairs for name, one in named_leaves(tree))
        names: list[str] = []
        for name, one in found:
            if is_array(one):
                plain_name = re.sub(r"\W", "_", name.rstrip("."))
                names.append(f"{plain_name}_{len(names)}" if plain_name in names else plain_name)
        return names

    def _made(self, optimizer: Any) -> Any:
        if optimizer is None:
            return None
        if not is_optax(optimizer):
            return made_optimizer(optimizer, self.trainable_params(), "from_jax", ", or an optimizer of optax")
        inside = [self._parameters[name] for name in self.optimized]
        return OptaxOptimizer(optimizer, self.source.optimized, [one if one.requires_grad else None for one in inside])

    @property
    def optimized(self) -> list[str]:
        """The names of the leaves that an optimizer of optax is given."""
        start = f"{self.source.collection}." if self.source.collection else ""
        return [f"{start}{name}" for name, _ in named_leaves(self.source.optimized)]

    # -- the program

    @cached_property
    def captured(self) -> Captured:
        """The function lowered: of the leaves of parameters and arguments, to result, updates and gradients."""
        if self.source.is_step:
            return capture_step(lambda *leaves: self.outcome(leaves, False), self.leaf_shapes, self.gradients)
        ours = self.training and self.gradients == "autoshard"
        by_jax = self.training and not ours
        found = capture(lambda *leaves: self.outcome(leaves, by_jax), self.leaf_shapes, marked=ours)
        if ours and found.own:
            raise GraphError(
                f"from_jax: {self.name} uses functions with a derivative of their own, which only JAX knows: "
                f"{', '.join(found.own)}; give gradients='jax'"
            )
        return found

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self.captured.imported, [*self._names, *[""] * len(self._data)], self.source.top)

    def outcome(self, leaves: Sequence[Any], by_jax: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """What JAX makes of parameters and arguments: result or loss, updates by name, and gradients of the loss by
        name if it is to take them.
        """
        params, data = dict(zip(self._names, leaves, strict=False)), leaves[len(self._names) :]
        if not by_jax:
            return (*self._run(params, data), {})
        trained = {one.name: params[one.name] for one in self.trainable_params()}

        def summed(trained: dict[str, Any]) -> tuple[Any, Any]:
            loss, updates = self._run({**params, **trained}, data)
            return jnp.sum(loss), (loss, updates)

        grads, (loss, updates) = jax.grad(summed, has_aux=True)(trained)
        return loss, updates, grads

    def _run(self, params: Mapping[str, Any], data: Any) -> tuple[Any, dict[str, Any]]:
        leaves = [clad(params[name], leaf) for name, leaf in zip(self._names, self._leaves, strict=True)]
        tree = jax.tree.unflatten(jax.tree.structure(self.source.params), leaves)
        flat = list(self._flat)
        for i, one in zip(self._places, data, strict=True):
            flat[i] = clad(one, flat[i])
        args, kwargs = jax.tree.unflatten(self._arguments, flat)
        found, updates = self.source.function(tree, *args, **kwargs)
        if callable(self.loss):
            found = self.loss(found, *args, **kwargs)
        elif self.loss is not None:
            found = picked(plain(found), self.loss)
        return found, {name: bare(one) for name, one in named_leaves(updates)}

    # -- as a cell

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """The leaves of the parameters' tree, in order."""
        yield from self._parameters.values()

    def construct(self, *tensors: Any) -> Any:
        """The result for these tensors; variables that the function changes take their new values."""
        check_count(self.name, self._data, tensors)
        return self._forward(*tensors) if active() is None else self._constructed(*tensors)[0]

    def _constructed(self, *tensors: Any) -> tuple[Any, dict[str, TracedTensor]]:
        """Result and gradients."""
        made = self._replay(active(), [*self._parameters.values(), *tensors])
        found, updates, grads = jax.tree.unflatten(self.captured.returned, made)
        for name, new in updates.items():
            if name in self._parameters and not self._parameters[name].requires_grad:
                self._parameters[name].assign(new)
        return plain(found), grads

    @cached_property
    def _forward(self) -> Traced:
        if self.source.is_step:
            return self.traced
        return trace(self.construct, *self._data.values(), name=self.name)

    # -- as something to plan

    @cached_property
    def step(self) -> TrainStep:
        """One step of training: loss, gradient and update.

        Raises:
            GraphError: it has no optimizer, or its function has loops that data end, or a derivative of its own, and
                gradients are to be autoshard's.
        """
        if self.optimizer is None:
            raise GraphError(f"{self.name} is not trained; give from_jax a loss and an optimizer")
        if self.gradients == "jax":
            return self._step_by_jax()
        try:
            made = train_step(
                self._named(self.construct), self.optimizer, *self._data.values(), name=self.name,
                rewrite=lambda graph, keep: plainly_written(unrolled(graph), keep),
            )  # fmt: skip
        except NoGradientError as error:
            raise NoGradientError(f"{error}; or give from_jax gradients='jax'") from None
        again = self._replay.checkpoints.made_again(made.graph)
        return replace(made, traced=replace(made.traced, graph=recompute(made.graph, again))) if again else made

    def _step_by_jax(self) -> TrainStep:
        if self.optimizer.scaling is not None:
            raise GraphError(
                f"{self.name}: gradients='jax' are those of the loss as it is, but the optimizer was given a "
                "loss_scale; leave out gradients='jax', or loss_scale="
            )
        made: dict[Value, Value] = {}
        first: list[Value] = []

        def step(*tensors: Any) -> Any:
            recorder = active()
            loss, grads = self._constructed(*tensors)
            first.append(loss.value)
            for name, grad in grads.items():
                parameter = recorder.parameter(self._parameters[name]).value
                made[parameter] = grad.value
                recorder.builder.cotangents.setdefault(grad.value, parameter)
            self.optimizer([grads[one.name] for one in self.optimizer.parameters])
            return loss

        traced = trace(self._named(step), *self._data.values(), name=self.name)
        traced = replace(traced, graph=along_batches(traced.graph, traced.annotations))
        return TrainStep(traced, first[0], made, ())

    @cached_property
    def traced(self) -> Traced:
        """What is planned: the step of training if it has an optimizer, else the model (its loss, if it has one)."""
        if self.optimizer is not None:
            return self.step.traced
        found = trace(self._named(self.construct), *self._data.values(), name=self.name)
        if self.source.is_step:
            return self._own_step(found)
        return rewritten_trace(found, plainly_written)

    def _own_step(self, found: Traced) -> Traced:
        """A step that takes gradients itself: by those of operators, or by JAX where these have none."""
        if self.gradients == "jax":
            return with_gradients_of_jax(found, found)
        try:
            return with_own_gradients(found, self.captured, self._replay.checkpoints)
        except GraphError:
            self.gradients = "jax"
        for name in ("captured", "_replay"):
            vars(self).pop(name, None)
        again = trace(self._named(self.construct), *self._data.values(), name=self.name)
        return with_gradients_of_jax(again, found)

    @cached_property
    def cuttable(self) -> Traced:
        """Its trace in a form that can be cut into micro batches and stages: a step whose loops JAX has differentiated,
        with these written out and differentiated by autoshard, if it has no other derivative that only JAX knows.
        """
        traced = self.traced
        loops = any(node.op.name == "While" for node in traced.graph.nodes)
        if not loops or self.optimizer is None or self.gradients == "autoshard":
            return traced
        other = copy.copy(self)
        for name in ("captured", "_replay", "_forward", "step", "traced"):
            vars(other).pop(name, None)
        other.gradients = "autoshard"
        try:
            return annotated_like(other.step.traced, traced)
        except GraphError:
            return traced

    def patterns(self, given: Any) -> Mapping[str, Any]:
        """What `annotate` takes, out of a pytree of PartitionSpecs that has the structure of the parameters."""
        return patterns_of(given, self._parameters, self.name)

    # -- beside JAX

    def arrays(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The function's own arguments as the arrays that `Planned.run` takes."""
        return tuple(array_of(one) for one in jax.tree.leaves((args, kwargs)) if is_array(one))

    @property
    def example_arrays(self) -> tuple[np.ndarray, ...]:
        """The example that it was imported with.

        Raises:
            RuntimeSetupError: it has shapes only, no numbers.
        """
        return tuple(array_of(one) for one in self._arrays)

    @property
    def example_leaves(self) -> list[np.ndarray]:
        """The parameters' first values, then the arguments of the example."""
        return [array_of(one) for one in (*self._leaves, *self._arrays)]

    def reference(self) -> list[np.ndarray]:
        """What JAX itself returns for the example: all tensors in it in order, or the loss."""
        return self._in_jax.outputs

    def reference_state(self) -> dict[str, np.ndarray]:
        """The values, by name, that parameters have in JAX after one run on the example: those that the function
        changes, and in a step of training with an optimizer of optax the trained ones and its states.
        """
        return self._in_jax.state

    @cached_property
    def _in_jax(self) -> InJax:
        return run_in_jax(self)

    @property
    def random(self) -> bool:
        """Whether it draws other random numbers than JAX: its keys are arguments or parameters, so it never does."""
        return False

    @property
    def params(self) -> Any:
        """The pytree of parameters with their present values."""
        kept = zip(self._leaves, self._parameters.values(), strict=True)
        leaves = [clad(jnp.asarray(one.data), leaf) for leaf, one in kept]
        return jax.tree.unflatten(jax.tree.structure(self.source.params), leaves)

    @property
    def leaf_names(self) -> list[str]:
        """The names of all that the function is given: parameters, then arguments."""
        return [*self._names, *self._data]

    @property
    def leaf_shapes(self) -> list[Any]:
        """Their shapes and types."""
        return [bare(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)) for leaf in (*self._leaves, *self._arrays)]

    def leaves(self, params: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Parameters and the function's own arguments as a list in that order."""
        flat = [one for one in jax.tree.leaves((args, kwargs)) if is_array(one)]
        return [bare(one) if is_array(one) else one for one in (*jax.tree.leaves(params), *flat)]

    def result(self, *leaves: Any) -> Any:
        """What the function returns for such a list, or its loss; JAX can trace this."""
        return self.outcome(leaves, by_jax=False)[0]

    def state(self) -> dict[str, np.ndarray]:
        """The parameters' present values by qualified name."""
        return {name: one.data for name, one in self._parameters.items()}


def _check_names(names: Sequence[str], model: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise GraphError(f"from_jax: two parameters of {model} are called {twice[0]!r}; use keys without dots")
