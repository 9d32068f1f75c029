"""An exported program out of what people have: a module, a program, or a .pt2 file; decomposed if the table needs it.

torch.export gives a graph of ATen overloads. Decompositions make it functional and bring it to core ATen (see "IRs" in
PyTorch's documentation), but for composites that the registry has operators for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

from autoshard.frontends.torch import functions, hooks, value_checks, values
from autoshard.frontends.torch.archive import load_archive
from autoshard.frontends.torch.branches import with_branches
from autoshard.frontends.torch.eager import as_not_compiled
from autoshard.frontends.torch.experts import factor_for, tokens_to_experts
from autoshard.frontends.torch.flex import PLAIN_FLEX_ATTENTION
from autoshard.frontends.torch.functional import node_ready, nodes_at_any_depth
from autoshard.frontends.torch.inner_gradients import check_constants, takes_inner_gradients, traced_through
from autoshard.frontends.torch.instead import functions_instead
from autoshard.frontends.torch.known import KnownNumbers, check_asked
from autoshard.frontends.torch.locations import user_line
from autoshard.frontends.torch.patch import WHILE_CAPTURING
from autoshard.frontends.torch.quick import quick_capture, with_code
from autoshard.frontends.torch.quiet import quiet, without_partial_graphs
from autoshard.frontends.torch.selected_rows import has_selected, with_all_rows
from autoshard.frontends.torch.stops import with_stops
from autoshard.frontends.torch.table import load_translators
from autoshard.util.errors import ParseError, RuntimeSetupError, ShapeError, at

# Composites that stay whole: operators of the registry mean the same, or say it with fewer of them.
KEPT = (
    "linear", "matmul", "scaled_dot_product_attention", "silu", "rms_norm", "einsum", "softplus", "one_hot",
    "_safe_softmax", "index_fill", "std", "std_mean", "log_sigmoid", "binary_cross_entropy", "hardtanh", "relu6",
    "multilabel_margin_loss",
    "sinc", "special_log_ndtr", "special_ndtri", "special_erfcx", "special_airy_ai", "special_i0e", "special_i1",
    "special_i1e", "special_spherical_bessel_j0",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
)  # fmt: skip


def need_torch(what: str) -> None:
    """Check that torch is installed.

    Raises:
        RuntimeSetupError: it is not; the message says how to get it.
    """
    if find_spec("torch") is None:
        raise RuntimeSetupError(f"{what} needs torch, which the extra torch brings: pip install 'autoshard[torch]'")


def seed_torch(seed: int) -> None:
    """Start torch's random numbers anew, if torch is installed."""
    if find_spec("torch") is not None:
        import torch

        torch.manual_seed(seed)


_REPLACING = (functions, hooks, value_checks, values)
"""The modules that fill WHILE_CAPTURING."""
_WHILE_CAPTURING = (
    quiet, without_partial_graphs, quick_capture, PLAIN_FLEX_ATTENTION.active, WHILE_CAPTURING.active,
)  # fmt: skip
_CAPTURING = RLock()
"""torch.export keeps its state in globals: one thread captures at a time."""


def exported(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], capacity_factor: float | None = None) -> Any:
    """The torch.export.ExportedProgram of a module, of a program, or of a .pt2 file, decomposed if need be.

    Experts of transformers are captured with room for `capacity_factor` times their equal share of the tokens.

    Raises:
        ParseError: not one of these, a file that torch cannot read, arguments for what is exported already, or a
            module that torch.export cannot capture or decompose; the message holds torch's reason.
        ShapeError: the program has dynamic shapes; or gradients stop where it cannot be said, see `with_stops`.
    """
    with _CAPTURING, tokens_to_experts(factor_for(target, capacity_factor)):
        return _exported(target, args, kwargs)


def _exported(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    program, asked = _program(target, args, kwargs)
    check_static(program)
    load_translators()
    with quiet():
        program = with_stops(program)
    ready = all(node_ready(node) for node in nodes_at_any_depth(program.graph_module))
    if ready and not has_selected(program.graph):
        return program
    try:
        with quiet():  # torch reads the names of arguments from the code: it has to be made here
            program = program.run_decompositions(_decompositions())
    except Exception as error:  # of many kinds, as above
        raise ParseError(f"torch cannot decompose this program: {type(error).__name__}: {_message(error)}") from error
    check_asked(program, asked)
    with quiet():
        return with_all_rows(program)


def _program(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Collection[str]]:
    """The program, and the names of buffers that it was captured for the numbers of."""
    import torch

    if isinstance(target, str | os.PathLike):
        _no_arguments(args, kwargs, f"the file {os.fspath(target)}")
        return _loaded(Path(target)), ()
    if isinstance(target, torch.export.ExportedProgram):
        _no_arguments(args, kwargs, "an exported program")
        return target, ()
    if not isinstance(target, torch.nn.Module):
        raise ParseError(
            f"from_torch takes a torch.nn.Module, an ExportedProgram or a .pt2 file, not {type(target).__name__}"
        )
    try:
        try:
            return as_not_compiled(lambda: with_branches(lambda: _captured(target, args, kwargs)))
        except Exception as error:
            if not takes_inner_gradients(error):
                raise
        with traced_through(target, args, kwargs):
            return _captured(target, args, kwargs)
    except Exception as error:  # torch raises errors of many kinds for what it cannot capture
        where = at(user_line(error))
        raise ParseError(
            f"torch.export cannot capture {type(target).__name__} for these arguments{where}: "
            f"{_message(error)}{_advice(error)}"
        ) from error


def _captured(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Collection[str]]:
    import torch

    known = KnownNumbers(module)
    with ExitStack() as stack:
        for one in _WHILE_CAPTURING:
            stack.enter_context(one())
        stack.enter_context(functions_instead(known))
        found = torch.export.export(module, tuple(args), dict(kwargs))
    check_constants(found)
    return with_code(found), known.asked


def _advice(error: Exception) -> str:
    """What to do about what torch.export's users meet first."""
    message = str(error)
    return next((f"\n    {advice}" for words, advice in _ADVICE.items() if words in message), "")


_ADVICE = {
    "fake tensor in the exported program constant's list": (
        "Where the module takes a gradient inside by torch.autograd.grad, say it by torch.func.grad"
    ),
    "in output, which is not a known type": (
        "The module has to return tensors, or tuples, lists and dicts of them; a model of transformers returns its "
        "cache unless `config.use_cache = False` or kwargs={'use_cache': False}"
    ),
    "data-dependent": (
        "The module asks for a tensor's values (if, bool(), item(), a size): say it by torch.where or torch.cond, with "
        "fixed sizes"
    ),
}


_FOR_TORCH_DEVELOPERS = (
    "consider using data-dependent friendly APIs",
    "Caused by: (",
    "For more information, run with TORCH_LOGS",
    "For extended logs when",
    "If you suspect the guard",
    "For more debugging help",
    "For C++ stack trace",
    "The error above occurred when calling",
)
"""How lines of torch's messages begin that help to find errors of torch.export, not of a module."""


def _message(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    lines = [line for line in lines if not line.strip().startswith(_FOR_TORCH_DEVELOPERS)]
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"how large the results of {lines[0]} are depends on the data; say it with other functions of torch"
    return "\n    ".join(lines[:12]) or type(error).__name__


def _no_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> None:
    if len(args) or kwargs:
        raise ParseError(f"from_torch: {what} was exported with its example arguments; leave args and kwargs out")


def _loaded(path: Path) -> Any:
    if not path.is_file():
        raise ParseError(f"cannot read {path}: there is no such file")
    try:
        with quiet():
            return load_archive(path)
    except ParseError:
        raise
    except Exception as error:  # whatever the zip archive or its contents are wrong in
        raise ParseError(f"cannot read {path} as an exported program (.pt2): {_message(error)}") from error


def _decompositions() -> Any:
    import torch

    table = torch.export.default_decompositions()
    for name in KEPT:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table


def check_static(program: Any) -> None:
    """Raises ShapeError if a size is not a number: every layout is of known shapes."""
    import torch

    found = []
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            found.append(f"input {node.name} is a number that is not fixed ({value})")
        for dim, size in enumerate(getattr(value, "shape", ())):
            if isinstance(size, torch.SymInt):
                found.append(f"dim {dim} of input {node.name} ({_range(program, size)})")
    if found:
        raise ShapeError(
            f"cannot import a program with dynamic shapes: {'; '.join(found)}. Export it without dynamic_shapes, for "
            "the sizes that it is to be planned for"
        )


def _range(program: Any, size: Any) -> str:
    limits = program.range_constraints.get(size.node.expr)
    return str(size) if limits is None else f"{size}, {limits.lower} to {limits.upper}"
