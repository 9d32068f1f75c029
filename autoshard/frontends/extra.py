"""Whether the packages that an extra of autoshard brings are there."""

from __future__ import annotations

from importlib.util import find_spec

from autoshard.util.errors import RuntimeSetupError


def need_jax(what: str) -> None:
    """Check that JAX is installed.

    Raises:
        RuntimeSetupError: it is not; the message says how to get it.
    """
    need(what, "jax", "jax", "jaxlib")


def need(what: str, extra: str, *packages: str) -> None:
    """Check that packages are installed which `extra` brings.

    Raises:
        RuntimeSetupError: one is not; the message says how to get it.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise RuntimeSetupError(
            f"{what} needs {' and '.join(missing)}, which the extra {extra} brings: pip install 'autoshard[{extra}]'"
        )
