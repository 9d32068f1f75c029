"""What an imported model keeps from step to step, by name: to save, to go on from elsewhere, to load into another
import of the same module (one that evaluates it, or trains other parts of it).
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.trace import Cell, Traced
from autoshard.trace.parameter import Parameter
from autoshard.transform.train import TrainStep
from autoshard.util.errors import UnknownNameError


@dataclass(frozen=True)
class Kept:
    """The parameters of a model called `name`.

    Args:
        own: parameters and buffers of its module.
        used: what its trace reads: of `own`, and the optimizer's states and counters.
    """

    name: str
    own: Sequence[Parameter]
    used: Collection[Parameter]

    def values(self) -> dict[str, np.ndarray]:
        """The present values by name."""
        return {one.name: np.array(one.data) for one in (*self.own, *self._beside)}

    @property
    def _beside(self) -> list[Parameter]:
        own = {id(one) for one in self.own}
        return [one for one in self.used if id(one) not in own]

    def take(self, state: Mapping[str, Any], plain: Callable[[Any], np.ndarray]) -> None:
        """Give them values by name; others are passed over. The optimizer's states and counters stay as they are where
        there is a value for none of them, and so does what the trace does not read.

        Args:
            plain: makes an array of numpy of a value, copied.

        Raises:
            UnknownNameError: there is no value for one.
            ShapeError: one is of another shape or kind. Nothing is taken then.
        """
        used, beside = {id(one) for one in self.used}, self._beside
        further = beside if any(one.name in state for one in beside) else []
        own = [one for one in self.own if id(one) in used or one.name in state]
        missing = [one.name for one in (*own, *further) if one.name not in state]
        if missing:
            raise UnknownNameError(_says(self.name, missing, state, any(one.name == missing[0] for one in own)))
        taken = [(one, one.checked(plain(state[one.name]))) for one in (*own, *further)]
        for one, array in taken:
            one.set_data(array)


def _says(name: str, missing: list[str], state: Mapping[str, Any], is_own: bool) -> str:
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    text = f"load_state of {name!r}: there is no {missing[0]}{more} among the {len(state)} values given"
    if not is_own:
        return (
            f"{text}, but others of its optimizer's states; leave all of them out (state()) to keep those that it has"
        )
    ends = [one for one in state if one.endswith(f".{missing[0]}") or missing[0].endswith(f".{one}")]
    near = ends or difflib.get_close_matches(missing[0], list(state), n=3)
    has = f", which has {', '.join(near[:3])}" if near else ""
    return f"{text}{has}; give values by the names of its state()"


class KeptModel(Cell):
    """An imported model, whose `traced` graph, that of its `step` if it is trained, reads its parameters and its
    optimizer's states."""

    name: str
    traced: Traced
    optimizer: Any
    step: TrainStep
    _data: dict[str, TensorType]

    @property
    def input_types(self) -> dict[str, TensorType]:
        """The tensors that it takes, by name, in order."""
        return dict(self._data)

    def with_traced(self, traced: Traced) -> Self:
        """The same model and parameters with another trace, such as one that asks for shardings."""
        changed = copy.copy(self)
        vars(changed)["traced"] = traced
        if self.optimizer is not None:
            vars(changed)["step"] = replace(self.step, traced=traced)
        return changed

    def _named(self, function: Callable) -> Callable:
        """The function with arguments called as the model's."""

        def run(*tensors: Any) -> Any:
            return function(*tensors)

        kind = inspect.Parameter.POSITIONAL_ONLY
        names = [inspect.Parameter(name, kind) for name in self._data]
        run.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        return run

    @property
    def _kept(self) -> Kept:
        return Kept(self.name, [*self.get_parameters()], self.traced.parameters.values())

    @staticmethod
    def _plain(value: Any) -> np.ndarray:
        """A copy of a value as an array of numpy."""
        return np.array(value)

    def training_state(self) -> dict[str, np.ndarray]:
        """The parameters' present values as arrays, and the optimizer's states and counters: what `load_state` goes on
        from."""
        return self._kept.values()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up tensors or arrays by name: `training_state()` to go on from, `state()` of another import, or a state
        dict of the module. Of the latter two states of the optimizer stay as they are; names it does not know are
        passed over.

        Raises:
            UnknownNameError: one of its parameters is missing, or some of its optimizer's states are.
            ShapeError: a value of another shape or kind. Nothing is taken then.

        >>> import torch
        >>> import autoshard
        >>> one, other = (autoshard.from_torch(torch.nn.Linear(6, 4), (torch.ones(2, 6),)) for _ in range(2))
        >>> other.load_state(one.state())
        >>> torch.equal(other.state()["weight"], one.state()["weight"])
        True
        """
        self._kept.take(state, self._plain)


__all__ = ["Kept", "KeptModel"]
