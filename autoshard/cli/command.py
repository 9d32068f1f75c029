"""What all commands have: -q and -v, progress, and defaults from a file of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from autoshard.cli.progress import shown_progress
from autoshard.cli.target import in_script, is_module
from autoshard.util.errors import ContextError

Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Nothing but what was asked for, and errors: no progress, no notes.")
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Also tell, on the standard error output, what takes how long.")
]
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Commands(typer.Typer):
    """An application or a group, each command of which has what all have."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Callable], Callable]:
        register = super().command(*arguments, **settings)

        def add(function: Callable) -> Callable:
            register(with_common(function))
            return function

        return add


def with_common(function: Callable) -> Callable:
    """A command that also takes -q and -v, and shows its progress; groups of options (dataclasses) are spread out."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = inspect.signature(function).parameters.values()
    own = [each for one in parameters for each in _spread(one, hints[one.name])]
    takes_context = "context" in hints
    defaults = {one.name: one.default for one in own}

    @wraps(function)
    def command(context: typer.Context, quiet: bool, verbose: bool, **given: Any) -> Any:
        if quiet and verbose:
            raise ContextError("-q says less and -v more; give one of both")
        given |= {name: defaults[name] for name in _overruled(context, given)}
        given |= {name: _gathered(group, given) for name, group in groups.items()}
        with shown_progress(quiet, verbose):
            return function(**given, **({"context": context} if takes_context else {}))

    added = [one for one in own if one.name != "context"]
    added += [_parameter("context", typer.Context), _parameter("quiet", Quiet, False)]
    added += [_parameter("verbose", Verbose, False)]
    command.__signature__ = inspect.Signature(added)  # pyright: ignore[reportAttributeAccessIssue]
    command.__annotations__ = {one.name: one.annotation for one in added}
    del command.__wrapped__  # its annotations would be taken for those of the command
    return command


def _gathered(group: Any, given: dict[str, Any]) -> Any:
    """A group of options out of what is given, from which they are taken."""
    return group(**{one.name: given.pop(one.name) for one in fields(group)})


def _spread(one: inspect.Parameter, hint: Any) -> list[inspect.Parameter]:
    """The parameters that stand for one: itself, or the fields of a group."""
    if not is_dataclass(hint):
        return [_parameter(one.name, hint, one.default)]
    hints = get_type_hints(hint, include_extras=True)
    return [_parameter(each.name, hints[each.name], each.default) for each in fields(hint)]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, _KEYWORD, annotation=annotation, default=default)


def _overruled(context: typer.Context, given: Mapping[str, Any]) -> list[str]:
    """Options from the file of settings that do not go with what was given on the command line."""
    settled = [name for name in given if getattr(context.get_parameter_source(name), "name", "") == "DEFAULT_MAP"]
    target = next((given[name] for name in ("target", "targets", "script") if name in given), None)
    first = str(target[0] if isinstance(target, list) else target)
    if "script" in given and not in_script(first) and not is_module(first):
        return settled  # a script plans itself
    devices = "devices" if "devices" in given else "ranks"
    over = {name for name in ("mesh", devices) if given.get(name) and name not in settled}
    gone = {"mesh", "devices"} if over or is_module(first) else set()
    if any(given.get(name) for name in ("as_json", "full", "alternatives")):
        gone |= {"top", "sort", "pattern", "columns"}
    return [name for name in settled if name in gone]
