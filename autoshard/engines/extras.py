"""Whether the packages that an extra of autoshard brings are there."""

from __future__ import annotations

from importlib.util import find_spec

from autoshard.util.errors import RuntimeSetupError

_PACKAGES = {"torch": ("torch", "ml_dtypes"), "jax": ("jax", "jaxlib"), "viz": ("pydot",)}


def need(extra: str, what: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        RuntimeSetupError: one is not; the message says how to get it.
    """
    missing = [name for name in _PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise RuntimeSetupError(
            f"{what} needs {' and '.join(missing)}, which the extra {extra} brings: pip install 'autoshard[{extra}]'"
        )
