"""`from_stablehlo`: a module as it comes (text, a file, bytecode, what JAX lowered) as a graph.

>>> imported = from_stablehlo("model.mlir")  # doctest: +SKIP
>>> evaluate(imported.graph, [x, w])  # doctest: +SKIP
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.engines.extras import need
from autoshard.frontends.stablehlo.nesting import BYTECODE
from autoshard.util.errors import ParseError

if TYPE_CHECKING:
    from autoshard.frontends.stablehlo.imported import Imported

_PORTABLE = b"StableHLO_v"
# What XLA writes sdy's attributes as where the dialect itself may not appear, and the pass that reads them back.
_ROUND_TRIP = "xla.sdy.meshes"
_ROUND_TRIP_IMPORT = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"


def from_stablehlo(source: Any, *, dynamic: bool = False) -> Imported:
    """A StableHLO module as a graph that can be planned and run, with the shardings that it asks for.

    Args:
        source: MLIR text; the path of a file that ends in .mlir (text or bytecode); bytecode; what
            `jax.jit(f).lower(...)` or `jax.export.export(...)(...)` return; or an MLIR module. Bytecode is read by
            MLIR alone, which trusts it: take text from strangers.
        dynamic: take tensors of dynamic size, too; such a graph can be propagated over, but neither planned nor run.

    Raises:
        RuntimeSetupError: jax is not installed.
        ParseError: MLIR cannot read it, or it is nothing of the above.
        ShapeError: dynamic shapes where they are not taken, or types that are no tensors.

    >>> import autoshard
    >>> text = '''
    ... func.func @main(%x: tensor<16x12xf32>) -> tensor<16x12xf32> {
    ...   %0 = stablehlo.tanh %x : tensor<16x12xf32>
    ...   return %0 : tensor<16x12xf32>
    ... }'''
    >>> [node.op.name for node in autoshard.from_stablehlo(text).graph.nodes]
    ['Tanh']
    """
    need("jax", "reading a StableHLO module")
    from autoshard.frontends.stablehlo.reader import read_module

    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        path = Path(source)
        return read_module(_parsed(_contents(path), str(path)), str(path), dynamic=dynamic)
    if isinstance(source, str | bytes):
        return read_module(_parsed(source, ""), dynamic=dynamic)
    return read_module(_module_of(source), dynamic=dynamic)


def _is_path(text: str) -> bool:
    return "\n" not in text and text.endswith((".mlir", ".mlirbc", ".bc"))


def _contents(path: Path) -> str | bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ParseError(f"cannot read {path}: {error.strerror or error}") from None
    if data.startswith(BYTECODE):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ParseError(f"cannot read {path} as a StableHLO module: it is neither text nor MLIR bytecode") from None


def _parsed(data: str | bytes, file: str) -> Any:
    from autoshard.frontends.stablehlo.reader import parse_module

    if isinstance(data, bytes) and _PORTABLE in data[:32]:
        return _with_sdy(_portable(data, file))
    return _with_sdy(parse_module(data, file))


def _portable(data: bytes, file: str) -> Any:
    """The module of a portable artifact, StableHLO's serialized form that outlives versions."""
    from jax.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    from autoshard.frontends.stablehlo.locations import mlir_reason

    with make_ir_context() as context:
        # As when text is parsed: threads that report errors can deadlock with the interpreter's lock.
        context.enable_multithreading(False)
        try:
            return stablehlo.deserialize_portable_artifact(context, data)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            reason = mlir_reason(error, file)
            raise ParseError(f"cannot read {file or 'this'} as a StableHLO artifact: {reason}") from None


def _module_of(source: Any) -> Any:
    """The MLIR module that JAX's objects hold.

    Raises:
        ParseError: the object is none of them.
    """
    from jaxlib.mlir import ir

    if isinstance(source, ir.Module):
        return _with_sdy(source)
    if hasattr(source, "compiler_ir"):
        return _with_sdy(source.compiler_ir("stablehlo"))
    if hasattr(source, "mlir_module_serialized"):
        return _parsed(bytes(source.mlir_module_serialized), "")
    raise ParseError(
        f"cannot import a {type(source).__name__}: give MLIR text, the path of a .mlir file, bytecode, an MLIR module, "
        "or what jax.jit(f).lower(...) or jax.export.export(f)(...) return"
    )


def _with_sdy(module: Any) -> Any:
    """The module itself, or a copy with sdy attributes where it has them as frontend attributes."""
    from jaxlib.mlir import ir, passmanager

    attributes = module.operation.attributes
    frontend_attributes = (
        str(attributes["mhlo.frontend_attributes"]) if "mhlo.frontend_attributes" in attributes else ""
    )
    if _ROUND_TRIP not in frontend_attributes:
        return module
    with module.context:
        copy = ir.Module.parse(str(module))
        passmanager.PassManager.parse(_ROUND_TRIP_IMPORT).run(copy.operation)
    return copy
