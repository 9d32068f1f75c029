"""Defaults of options: the table [tool.autoshard] of a pyproject.toml, or an autoshard.toml.

    mesh = "dp=2,tp=4"        # of every command that plans
    hardware = "h100"
    [plan]                    # of one command
    top = 12

The nearest file counts, from the present folder upwards. What the command line says comes first.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from autoshard.util.errors import ContextError
from autoshard.util.near import did_you_mean

OWN, SHARED = "autoshard.toml", "pyproject.toml"
_TARGETS = {"target", "targets", "script"}


def load_settings(commands: Mapping[str, Any], start: Path | None = None) -> dict[str, Any]:
    """The defaults of each command by the names of its parameters.

    Args:
        commands: the commands by name.
        start: the folder where the search for a file begins; by default the present one.

    Raises:
        ContextError: the file is no TOML, or names an option or a command that is none.
    """
    path, table = _nearest((start or Path.cwd()).absolute())
    if path is None:
        return {}
    shared = {name: value for name, value in table.items() if not isinstance(value, dict)}
    own = {name: value for name, value in table.items() if isinstance(value, dict)}
    planning = {name: _options(one) for name, one in commands.items() if _TARGETS & {each.name for each in one.params}}
    _check(path, own, commands, "command")
    _check(path, shared, {option for options in planning.values() for option in options}, "option")
    found: dict[str, Any] = {}
    for name, given in own.items():
        options = _options(commands[name])
        _check(path, given, options, f"option of {name}")
        found[name] = {options[key.replace("_", "-")].name: value for key, value in given.items()}
    for name, options in planning.items():
        defaults = {options[key].name: _as(options[key], value) for key, value in _dashed(shared) if key in options}
        found[name] = {**defaults, **found.get(name, {})}
    return found


def _nearest(start: Path) -> tuple[Path | None, dict[str, Any]]:
    for folder in (start, *start.parents):
        if (path := folder / OWN).is_file():
            return path, _read(path)
        if (path := folder / SHARED).is_file():
            table = _read(path).get("tool", {}).get("autoshard")
            if table is not None:
                return path, table
    return None, {}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ContextError(f"cannot read the settings in {path}: {error}") from None


def _options(command: Any) -> dict[str, Any]:
    """The options of a command by their long names."""
    return {opt[2:]: one for one in command.params for opt in one.opts if opt.startswith("--")}


def _dashed(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key.replace("_", "-"), value) for key, value in table.items()]


def _as(option: Any, value: Any) -> Any:
    """A value, in a list where the option may be given several times."""
    return [value] if option.multiple and not isinstance(value, list) else value


def _check(path: Path, given: Mapping[str, Any], known: Any, what: str) -> None:
    for name in given:
        if name not in known and name.replace("_", "-") not in known:
            hint = did_you_mean(name, known, otherwise=f"; there are {', '.join(sorted(known))}")
            raise ContextError(f"{path}: {name!r} is no {what}{hint}")


def use_settings(context: typer.Context) -> None:
    """Let the commands of an application take their defaults from the settings."""
    group: Any = context.command
    context.default_map = load_settings(group.commands)
