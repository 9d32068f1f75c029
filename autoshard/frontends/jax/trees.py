"""Pytrees of JAX: the names of their leaves, their arrays as numpy's, and what they hold in plain containers.

`{"params": {"up": {"kernel": ...}}}` has the leaf `params.up.kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.frontends import results
from autoshard.trace.initializer import Deferred
from autoshard.util.errors import RuntimeSetupError


def is_array(part: Any) -> bool:
    """Whether a leaf is a tensor: an array of JAX or numpy, or what only says shape and type."""
    return hasattr(part, "shape") and hasattr(part, "dtype")


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """The leaves of a tree in order, each with its dotted name; variables of flax nnx are called what holds them."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [(".".join(_words(path)), leaf) for path, leaf in found]


def _words(path: Sequence[Any]) -> list[str]:
    words = [jax.tree_util.keystr((key,), simple=True) for key in path]
    # The boxes of flax hold their array in an attribute of that name.
    return words[:-1] if len(words) > 1 and words[-1] == "value" and hasattr(path[-1], "name") else words


def type_of_leaf(leaf: Any) -> TensorType:
    """The type of a tensor as JAX computes with it."""
    return TensorType.of(leaf.shape, np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype)))


def array_of(leaf: Any) -> np.ndarray:
    """The numbers of a tensor, copied, in the type that JAX computes in.

    Raises:
        RuntimeSetupError: it has none.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        _no_numbers("this tensor")
    leaf = bare(leaf)
    return np.array(leaf, np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype)))


def values_of(leaf: Any, name: str) -> np.ndarray | Deferred:
    """What a Parameter of the name takes: the numbers, or of a shape alone a type that has none."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return Deferred(type_of_leaf(bare(leaf)), lambda: _no_numbers(name))
    return array_of(leaf)


def is_key(leaf: Any) -> bool:
    """Whether it is a key of random numbers of the kind that is no plain array."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bare(leaf: Any) -> Any:
    """The leaf, of a key its numbers."""
    if not is_key(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)


def clad(numbers: Any, like: Any) -> Any:
    """The other way: the numbers as a key if `like` is one."""
    return jax.random.wrap_key_data(numbers, impl=_kind(like)) if is_key(like) else numbers


def _kind(key: Any) -> Any:
    return jax.random.key_impl(key) if not isinstance(key, jax.ShapeDtypeStruct) else key.dtype._impl.name


def _no_numbers(what: str) -> NoReturn:
    raise RuntimeSetupError(
        f"{what} is a jax.ShapeDtypeStruct: it has a type but no numbers, so the model can be planned and priced, but "
        "not run; give arrays to run it"
    )


def plain(part: Any) -> Any:
    """The same in tuples, lists and dicts, in the place of all other containers that JAX knows; leaves stay."""
    return results.plain(part, _opened)


def _opened(part: Any) -> Any:
    inside, structure = jax.tree_util.tree_flatten_with_path(part, is_leaf=lambda one: one is not part)
    if jax.tree_util.treedef_is_leaf(structure) or part is None:
        return part
    return {jax.tree_util.keystr(path, simple=True): plain(one) for path, one in inside}
