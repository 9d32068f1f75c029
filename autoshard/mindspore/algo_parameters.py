"""`set_algo_parameters`: parameters of the search for strategies, by MindSpore's names and with its defaults."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoshard.search.algo_parameters import NAMES, SearchParameters
from autoshard.search.registry import mode_options, search_modes
from autoshard.util.errors import ContextError, PlanError

_now: dict[str, SearchParameters] = {}


def algorithm() -> SearchParameters:
    """The parameters as they are set."""
    return _now.get("algorithm", SearchParameters())


def set_algo_parameters(**kwargs: Any) -> None:
    """Set parameters of the searches "recursive_programming" and "dynamic_programming".

    Args:
        fully_use_devices: only strategies that use all devices, or split nothing (False).
        elementwise_op_strategy_follow: elementwise operators are split as those that use their results (False).
        tensor_slice_align_enable: blocks of MatMul have sizes that are multiples of `tensor_slice_align_size` (False;
            16).
        enable_algo_approxi: of an operator's strategies at most 1 / `algo_approxi_epsilon` are looked at (False; 0.1);
            of "dynamic_programming" alone.

    Raises:
        ContextError: no such parameter, or a value that it cannot have.
    """
    for name in kwargs:
        if name not in NAMES:
            raise ContextError(f"set_algo_parameters: there is no {name!r}; there are {', '.join(NAMES)}")
    try:
        _now["algorithm"] = SearchParameters.of({**asdict(algorithm()), **kwargs})
    except PlanError as error:
        raise ContextError(f"set_algo_parameters: {error}") from None


def get_algo_parameters(attr_key: str) -> Any:
    """The value of one of them.

    Raises:
        ContextError: there is none of that name.
    """
    if attr_key not in NAMES:
        raise ContextError(f"get_algo_parameters: there is no {attr_key!r}; there are {', '.join(NAMES)}")
    return getattr(algorithm(), attr_key)


def reset_algo_parameters() -> None:
    """Back to the defaults."""
    _now.clear()


def options_of(search: str) -> dict[str, Any]:
    """What is set, as options of a search mode.

    Raises:
        ContextError: the mode has no such parameter.
    """
    plain = asdict(SearchParameters())
    changed = {name: value for name, value in asdict(algorithm()).items() if value != plain[name]}
    lacking = [name for name in changed if name not in mode_options(search)]
    if lacking:
        have = [mode for mode in search_modes() if set(lacking) <= set(mode_options(mode))]
        raise ContextError(
            f"set_algo_parameters: the search mode {search!r} has no {', '.join(lacking)}; "
            f"set search_mode to {' or '.join(map(repr, have))}, or reset_algo_parameters()"
        )
    return changed
