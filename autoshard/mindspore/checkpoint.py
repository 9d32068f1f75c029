"""Checkpoints: whole parameters by name in one safetensors file.

    save_checkpoint(net, "net.safetensors")
    load_param_into_net(net, load_checkpoint("net.safetensors"))

A file is complete at every moment: a kill while it is written leaves the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.mindspore.communication import get_rank
from autoshard.util.errors import CheckpointError
from autoshard.util.files import write_atomically


@dataclass(frozen=True)
class LoadReport:
    """What `load_param_into_net` left: names that only the network has, and that only the checkpoint has."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything is left over."""
        return bool(self.missing or self.unexpected)

    def __iter__(self) -> Iterator[list[str]]:
        """Both as lists, as MindSpore returns them."""
        return iter((list(self.missing), list(self.unexpected)))

    def __str__(self) -> str:
        parts = [f"{word}: {', '.join(names)}" for word, names in self._named() if names]
        return "; ".join(parts) or "all parameters were loaded"

    def _named(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("not in the checkpoint", self.missing), ("not in the network", self.unexpected)


def save_checkpoint(save_obj: Any, ckpt_file_name: str | os.PathLike) -> Path:
    """Write all parameters of a Cell (or a dict of arrays or Parameters) to a file; under MPI rank 0 writes.

    The file is complete at every moment: it is written beside its place and then moved there.

    Raises:
        CheckpointError: nothing to write, or the folder cannot be written to.
    """
    target = Path(ckpt_file_name)
    arrays = _arrays(save_obj)
    if get_rank() != 0:
        return target
    from safetensors.numpy import save

    data = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    return write_atomically(target, data, CheckpointError, folders=True)


def _arrays(parameters: Any) -> dict[str, np.ndarray]:
    held = parameters.parameters_dict() if hasattr(parameters, "parameters_dict") else parameters
    if not isinstance(held, Mapping) or not held:
        raise CheckpointError(
            f"save_checkpoint: {parameters!r} holds no parameters; give a Cell or a dict of arrays by name"
        )
    return {name: np.asarray(one.asnumpy() if hasattr(one, "asnumpy") else one) for name, one in held.items()}


def load_checkpoint(
    ckpt_file_name: str | os.PathLike, net: Any = None, strict_load: bool = False
) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name; a cell `net` takes them up, too, as `load_param_into_net` does.

    Raises:
        CheckpointError: no such file, or it is no safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = ckpt_file_name
    try:
        found = load(Path(path).read_bytes())
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise CheckpointError(f"cannot read checkpoint {path}: {getattr(error, 'strerror', None) or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: it is no safetensors file ({error})") from error
    if net is not None:
        load_param_into_net(net, found, strict_load)
    return found


def load_param_into_net(net: Any, parameter_dict: Mapping[str, np.ndarray], strict_load: bool = False) -> LoadReport:
    """Put arrays into the parameters of the same names; nothing is changed if any shape differs.

    Args:
        net: a Cell.
        strict_load: raise also when the network has parameters that are not there. What is there besides, such as
            states of the optimizer, is reported.

    Raises:
        CheckpointError: a shape that differs, nothing in common, or (strict_load) parameters that are not there.
    """
    held = net.parameters_dict()
    report = LoadReport(
        tuple(name for name in held if name not in parameter_dict),
        tuple(name for name in parameter_dict if name not in held),
    )
    common = {name: (one, np.asarray(parameter_dict[name])) for name, one in held.items() if name in parameter_dict}
    if not common or (strict_load and report.missing):
        raise CheckpointError(f"cannot load the checkpoint into {type(net).__name__}: {report}")
    for name, (one, array) in common.items():
        if array.shape != tuple(one.shape):
            raise CheckpointError(
                f"cannot load {name} into {type(net).__name__}: the checkpoint has shape {array.shape}, the "
                f"network {tuple(one.shape)}"
            )
    for one, array in common.values():
        one.set_data(array)
    return report
