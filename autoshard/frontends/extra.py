"""Whether the packages that a frontend needs are there."""

from __future__ import annotations

from importlib.util import find_spec

from autoshard.util.errors import RuntimeSetupError


def need_jax(what: str) -> None:
    """Check that JAX is installed.

    Raises:
        RuntimeSetupError: it is not; the message says how to get it.
    """
    missing = [name for name in ("jax", "jaxlib") if find_spec(name) is None]
    if missing:
        raise RuntimeSetupError(
            f"{what} needs {' and '.join(missing)}, which the extra jax brings: pip install 'autoshard[jax]'"
        )
