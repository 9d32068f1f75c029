"""propagate(): spread the shardings that a module or a traced model asks for over all of it, by rules alone.

spread = propagate("model.mlir")              # or an imported module, or a model with propagate(model, mesh=...)
print(spread.report())
spread.save("model_sharded.mlir")
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.frontends.propagated import PropagatedData
from autoshard.layout.mesh import Mesh
from autoshard.propagate.edges import add_edges, sink_edges
from autoshard.propagate.levels import Level
from autoshard.propagate.mutable_ir import MutableModule, from_graph
from autoshard.propagate.pipeline import EXPORT, IMPORT
from autoshard.propagate.record import PropagationRecord
from autoshard.propagate.run import Log, Options
from autoshard.propagate.run import propagate as spread_work
from autoshard.propagate.traced import mutable_module
from autoshard.trace.function import Traced, known_trace, trace
from autoshard.util.errors import AutoshardError, ContextError, PlanError, RuntimeSetupError
from autoshard.util.files import write_atomically
from autoshard.util.gc_paused import gc_paused

if TYPE_CHECKING:
    from autoshard.frontends.stablehlo.imported import Imported

_Pass = Callable[[MutableModule], None]
# Which priorities a pass goes by, and how it decides.
_OPTIONS: dict[str, dict[str, Any]] = {
    "basic": {"strategy": "basic", "op_priority": False, "user_priority": False},
    "aggressive": {"op_priority": False, "user_priority": False},
    "op-priority": {"user_priority": False},
    "user-priority": {},
    "full": {},
}
PASSES = tuple(_OPTIONS)


@dataclass(frozen=True, eq=False)
class Propagated(PropagatedData):
    """What propagation made of a module or a traced model, and what reads it; attributes as `PropagatedData` has them.

    >>> import numpy as np
    >>> from autoshard import ops, propagate
    >>> asked = lambda x: ops.tanh(ops.sharding_constraint(x, '[{"dp"}, {?}]'))
    >>> spread = propagate(asked, (np.ones((16, 12)),), mesh="dp=2 tp=4")
    >>> spread.which, str(spread.shardings[spread.graph.outputs[0]])
    ('full', '<@mesh, [{"dp"}, {}]>')
    """

    def report(self, *, width: int | None = None) -> str:
        """The shardings of all values, conflicts and operators without a rule, as plain text."""
        from autoshard.report.propagation import report

        return report(self) if width is None else report(self, width=width)

    def explain(self, value: str) -> str:
        """Where the sharding of a value came from, step by step, as plain text.

        Args:
            value: the name of a value, an argument or an operator instance; or what MLIR calls it: `%3`, `%arg0`, and
                `f/%3` inside the function f; or `output 0`.

        Raises:
            UnknownNameError: there is no such value; the message lists near ones.
        """
        from autoshard.report.explain_propagation import explain

        return explain(self, value)

    def to_mlir(self, *, keep_rules: bool = False) -> str:
        """The module with its shardings, as text.

        Args:
            keep_rules: also write the sharding rule of each operation.

        Raises:
            PlanError: the graph did not come from a StableHLO module.
        """
        if self.imported is None:
            raise PlanError(f"{self.graph.name!r} was not read from a StableHLO module, so it cannot be written as one")
        from autoshard.exporters.sdy import to_module

        return str(to_module(self.module, self.imported, rules=keep_rules, full=self.which == "full"))

    def save(self, path: str | Path, *, keep_rules: bool = False) -> None:
        """Write `to_mlir` to a file, whole or not at all.

        Raises:
            RuntimeSetupError: the file cannot be written.
            PlanError: the graph did not come from a StableHLO module.
        """
        write_atomically(path, self.to_mlir(keep_rules=keep_rules), RuntimeSetupError)


def propagate(
    target: Any,
    inputs: Any = (),
    mesh: Mesh | str | None = None,
    *,
    which: str = "full",
    conservative: bool = False,
    order: tuple[Level, ...] | None = None,
) -> Propagated:
    """Spread the shardings that are asked for over the whole program.

    Args:
        target: the path or text of a StableHLO module, an Imported, a jax Lowered; or a model, a function or a Traced.
        inputs: example arguments of a model or function.
        mesh: the devices that a traced model's shardings refer to.
        which: one of PASSES: the Shardy pass of that name, or "full", Shardy's whole pipeline.
        conservative: never split unevenly or by parts of axes.
        order: levels of operator priority instead of Shardy's.

    Raises:
        ContextError: no such pass, or an option that it does not have.
        AutoshardError: what reading, tracing or a sharding's verification finds wrong.

    >>> import numpy as np
    >>> from autoshard import ops, propagate
    >>> asked = lambda x, w: ops.matmul(ops.sharding_constraint(x, '[{"dp"}, {?}]'), w)
    >>> spread = propagate(asked, (np.ones((16, 12)), np.ones((12, 20))), mesh="dp=2 tp=4")
    >>> for value, sharding in spread.shardings.items():
    ...     print(value.name, sharding)
    x <@mesh, [{"dp"}, {}]>
    w None
    sharding_constraint <@mesh, [{"dp"}, {}]>
    matmul <@mesh, [{"dp"}, {}]>
    """
    options = options_of(which, conservative=conservative, order=order)
    read = _read(target, inputs, mesh)
    imported, traced = (None, read) if isinstance(read, Traced) else (read, None)
    record = PropagationRecord()
    with gc_paused():
        module = _traced_work(read, mesh) if isinstance(read, Traced) else _imported_work(read)
        started = time.perf_counter()
        log = _run(module, which, options, record)
        seconds = time.perf_counter() - started
    file = _file_of(target)
    return Propagated(read.graph, which, options, module, log, record, imported, traced, file, seconds)


def options_of(which: str, *, order: tuple[Level, ...] | None = None, **settings: Any) -> Options:
    """The options of a pass.

    Raises:
        ContextError: no such pass, or an order of operator priority for a pass that has none.
    """
    if which not in PASSES:
        raise ContextError(f"unknown propagation pass {which!r}; known are {', '.join(PASSES)}")
    # The rules are kept because conflicts are told by them.
    options = Options(**_OPTIONS[which], **settings, order=order, keep_rules=True)
    if order is not None and not options.op_priority:
        raise ContextError(f"an order of operator priority was given, but the pass {which!r} has none")
    return options


def _run(module: MutableModule, which: str, options: Options, record: PropagationRecord) -> Log:
    before: tuple[_Pass, ...] = IMPORT if which == "full" else (add_edges,)
    after: tuple[_Pass, ...] = EXPORT if which == "full" else (sink_edges,)
    record.opened(module)
    for one in before:
        one(module)
    record.started(module)
    log = spread_work(module, options)
    record.ended(module, log.groups)
    for one in after:
        one(module)
    return log


def _read(target: Any, inputs: Any, mesh: Mesh | str | None) -> Imported | Traced:
    traced = known_trace(target)
    if traced is None and callable(target):
        args = inputs if isinstance(inputs, tuple | list) else (inputs,)
        traced = trace(target, *args)
    if isinstance(traced, Traced):
        if mesh is None:
            raise PlanError(f"propagate: {traced.graph.name!r} is a traced model; give the mesh, such as 'dp=2 tp=4'")
        return traced
    if mesh is not None:
        raise PlanError("propagate: a StableHLO module names its own meshes; leave mesh out")
    from autoshard.frontends import from_stablehlo
    from autoshard.frontends.stablehlo.imported import Imported as Known

    if isinstance(target, Known):
        return target
    try:
        return from_stablehlo(target, dynamic=True)
    except AutoshardError as error:
        file = _file_of(target)
        if file in str(error):
            raise
        raise type(error)(f"cannot read {file}: {error}") from None


def _file_of(target: Any) -> str:
    """The file that a target is in, '' if it is none: paths are told from text by their one line."""
    text = str(target) if isinstance(target, os.PathLike | str) else ""
    return "" if "\n" in text else text


def _traced_work(traced: Traced, mesh: Mesh | str | None) -> MutableModule:
    return mutable_module(traced, mesh if isinstance(mesh, Mesh) else Mesh.parse(mesh or ""))


def _imported_work(imported: Imported) -> MutableModule:
    module = from_graph(imported.graph, imported.asked, imported.order, imported.public)
    for function in module.functions:
        function.attrs["public"] = function.attrs["name"] in imported.public
    return module
