"""The arguments of `plan()` that name what to plan for: mesh, devices, hardware, search; each resolved or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.layout.mesh import Mesh
from autoshard.runtime.world import world_size
from autoshard.util.checks import positive
from autoshard.util.errors import PlanError
from costmodel import Hardware, preset


def chosen_mesh(mesh: Mesh | str | None, devices: int | None) -> Mesh:
    """The mesh that is given, or one axis over the devices (default: those of the job).

    Raises:
        PlanError: both are given and disagree, or one is no mesh, no number of devices.
    """
    chosen = None if mesh is None else known_mesh(mesh)
    if devices is not None and positive(devices) is None:
        raise PlanError(f"plan: devices is {devices!r}; it must be a whole number of at least 1")
    if chosen is not None and devices not in (None, chosen.devices):
        raise PlanError(
            f"plan: mesh '{chosen}' has {chosen.devices} devices, but devices is {devices}; give one of both"
        )
    return chosen or Mesh.flat(int(devices or world_size()))


def known_mesh(mesh: Any) -> Mesh:
    """The mesh that is given, or that a text says.

    Raises:
        PlanError: neither a mesh nor text.
        MeshError: the text says none.
    """
    found = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    if not isinstance(found, Mesh):
        raise PlanError(
            f"plan: mesh is {mesh!r}; give a Mesh or its text, such as 'dp=2 tp=4', or '8' for a number of devices"
        )
    return found


def check_request(search: Any, options: Any) -> None:
    """Check the search and its options.

    Raises:
        PlanError: no name, or no options by name.
    """
    if search is not None and (not isinstance(search, str) or not search):
        raise PlanError(f"plan: search is {search!r}; it is the name of a mode, or the FILE.json of a saved plan")
    if not isinstance(options, Mapping):
        raise PlanError(
            f"plan: options is {options!r}; give a dict by the options' names, such as {{'time_limit': 30}}"
        )


def joined_hardware(hardware: Hardware, mesh: Mesh) -> Hardware:
    """The hardware as the devices of a mesh meet it.

    Raises:
        PlanError: its links join fewer devices.
    """
    found = hardware.for_ranks(mesh.devices)
    most = found.topology.levels[-1][0]
    if most is not None and most < mesh.devices:
        raise PlanError(
            f"hardware {found.name!r} joins {most} devices at most, and mesh '{mesh}' has {mesh.devices}; take "
            "fewer, or give it a further link that joins more (in Python a level whose span is None joins any number)"
        )
    return found


def known_hardware(name: Any) -> Hardware:
    """The hardware of that name: a preset of costmodel, "calibrated", a FILE.json or a FILE.toml.

    Raises:
        PlanError: there is none.
    """
    try:
        return preset(name)
    except (KeyError, ValueError, TypeError) as error:
        raise PlanError(f"hardware {name!r}: {error.args[0] if error.args else error}") from None
