"""`from_jax`: a JAX function or flax module as a graph, or as a model whose parameters have names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from autoshard.engines.extras import need
from autoshard.frontends.stablehlo.load import from_stablehlo
from autoshard.frontends.training import check_loss
from autoshard.util.errors import GraphError

if TYPE_CHECKING:
    from autoshard.frontends.jax.model import JaxModel
    from autoshard.frontends.stablehlo.imported import Imported


def from_jax(
    function: Any,
    *args: Any,
    params: Any = None,
    loss: str | Callable | None = None,
    optimizer: Any = None,
    gradients: str = "autoshard",
    name: str | None = None,
    donate_argnums: int | Sequence[int] | Mapping[int, int | str] = (),
    **kwargs: Any,
) -> Imported | JaxModel:
    """Import a JAX function or a flax module.

        model = ash.from_jax(module, tokens, params=module.init(key, tokens))         flax linen
        model = ash.from_jax(module, images)                                          flax nnx
        model = ash.from_jax(function, x, params=params)                              function(params, x)
        model = ash.from_jax(step, params, state, x, donate_argnums=(0, 1))           a step that updates both
        planned = ash.plan(model, mesh="dp=2 tp=4")

    With `params`, or for a module, the result is a model: the leaves of the pytree are parameters with their dotted
    names (`params.layers_0.attn.query.kernel`), and what the function changes in its variables (linen: `mutable=`;
    nnx: all that are no Param) becomes their update. Without, it is a StableHLO module as `from_stablehlo` returns
    it: inputs are the leaves of (args, kwargs) in order, named after the arguments (`params['w1']`), those that the
    function does not use as well.

    Args:
        function: a function, or what jax.jit made of one; a flax linen or nnx module.
        args: arrays or jax.ShapeDtypeStruct; pytrees of them; anything else is fixed. Of a model they follow the
            parameters, which are the function's first argument.
        kwargs: the same by name.
        params: the pytree of parameters, of arrays or jax.ShapeDtypeStruct; of a linen module its variables.
        loss: a path into the result, such as "loss" or "0", "output" for all of it; or a function `loss(result, *args,
            **kwargs)` of JAX arrays. The sum of the loss is differentiated.
        optimizer: makes an optimizer of autoshard.optim of a list of parameters, for example `lambda params:
            optim.Adam(params, 1e-3)`, or is one of optax; the model is then a step of training. It needs a loss.
        gradients: whose gradients the step takes: "autoshard" (those of its operators) or "jax" (JAX differentiates,
            and the graph holds what it made; for loops, and functions with a derivative of their own).
        donate_argnums: of a function that is a step of training (it differentiates by `jax.grad` or
            `jax.value_and_grad`, and updates): the arguments that it returns new values of, as of `jax.jit`. They are
            what is trained, and its states, and called after the arguments (`params.w1`); the devices keep them from
            run to run, and what is left of the result is returned. New values are found by the structure of the
            arguments, several of one structure in their order, in a dict by the arguments' names; or a dict says where
            they are: `{0: 0, 1: 1, 2: "scale"}` for parts 0 and 1, and the part "scale"; "1.scale" is inside of one.
        name: what the graph is called; by default the function or the module's class.

    Raises:
        RuntimeSetupError: jax is not installed.
        ShapeError: the function's shapes are not all known.
        GraphError: an optimizer without a loss; a loss or an optimizer of another kind; parameters that are missing,
            or given twice; donated arguments that it returns no new values of, or more than one of each.

    >>> import jax.numpy as jnp
    >>> import autoshard
    >>> model = autoshard.from_jax(lambda p, x: x @ p["w"], jnp.ones((16, 12)), params={"w": jnp.ones((12, 64))})
    >>> model.traced.graph.roles
    ('data', 'parameter')
    """
    need("jax", "importing a JAX function")
    from autoshard.frontends.jax.sources import is_module

    donated = _donated(donate_argnums)
    if donated:
        if params is not None or loss is not None or optimizer is not None or is_module(function):
            raise GraphError(
                "from_jax: donate_argnums is for a function that differentiates and updates itself; leave out params, "
                "loss and optimizer, or donate_argnums"
            )
        return _step(function, args, kwargs, donated, gradients, name)
    if params is None and not is_module(function):
        if loss is not None or optimizer is not None:
            raise GraphError("from_jax: a loss or an optimizer needs the parameters; give params=, the first argument")
        return _lowered(function, args, kwargs)
    return _model(function, args, kwargs, params, loss, optimizer, gradients, name)


def _donated(given: Any) -> dict[int, str]:
    """The numbers of donated arguments, and where their new values are, '' where nobody says it."""
    several = given if isinstance(given, Collection) and not isinstance(given, str) else (given,)
    paths = given if isinstance(given, Mapping) else dict.fromkeys(several, "")
    if not all(isinstance(one, Integral) for one in paths):
        raise GraphError(
            f"from_jax: donate_argnums is {given!r}; give numbers of arguments, as in (0, 1) or {{0: 0, 1: 'state'}}"
        )
    return {int(one): str(path) for one, path in paths.items()}


def _lowered(function: Any, args: tuple, kwargs: dict[str, Any]) -> Imported:
    import jax

    lowering = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
    return from_stablehlo(lowering.lower(*args, **kwargs))


def _model(
    function: Any,
    args: tuple,
    kwargs: dict[str, Any],
    params: Any,
    loss: str | Callable | None,
    optimizer: Any,
    gradients: str,
    name: str | None,
) -> JaxModel:
    from autoshard.frontends.jax.model import JaxModel
    from autoshard.frontends.jax.sources import source_of

    check_loss(loss, optimizer, "from_jax")
    _check_gradients(gradients)
    return JaxModel(source_of(function, params), args, kwargs, loss, optimizer, gradients, name)


def _step(
    function: Any, args: tuple, kwargs: dict[str, Any], donated: dict[int, str], gradients: str, name: str | None
) -> JaxModel:
    from autoshard.frontends.jax.model import JaxModel
    from autoshard.frontends.jax.steps import step_source

    _check_gradients(gradients)
    source, others = step_source(function, args, donated)
    return JaxModel(source, others, kwargs, gradients=gradients, name=name)


def _check_gradients(gradients: str) -> None:
    from autoshard.frontends.jax.model import GRADIENTS

    if gradients not in GRADIENTS:
        raise GraphError(f"from_jax: gradients is {gradients!r}; it can be {' or '.join(map(repr, GRADIENTS))}")
