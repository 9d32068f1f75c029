"""`annotate`: ask of an imported model how its tensors lie and its operators are split, by patterns of qualified names.

    asks = {"layers.*.mlp.up_proj": ("tp", None), "**.down_proj.matmul": ((2, 1), (1, 4))}
    model = annotate(from_torch(net, (x,)), asks)
    planned = plan(model, mesh="dp=2 tp=4", search="factor")

In a pattern `*` stands for any part of a name without dots and `**` for any part at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from autoshard.frontends.planning import is_module
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.spec import Axis, DimSpec, Spec
from autoshard.layout.tensor_map import matrix_axes
from autoshard.trace.function import NodeAnnotation, known_trace
from autoshard.trace.specs import Specs
from autoshard.util.errors import AutoshardError, MeshError, ShardingError, StageError, UnknownNameError
from autoshard.util.files import read_json
from autoshard.util.near import nearest
from costmodel.json_door import Natural, Record

_PLACEMENT = re.compile(r"(?:S|Shard)\((?:dim=)?(-?\d+)\)|(R|Replicate\(\))")
_NEAR = 3
# What the main parameter of a module is called, in torch and in flax.
_MAIN = (".weight", ".kernel")


@dataclass(frozen=True)
class Ask:
    """What is asked by one pattern, with a priority: 0 is heeded first, None as those with 0.

    >>> import numpy as np
    >>> from autoshard import Ask, annotate, nn, trace
    >>> net = trace(nn.Dense(12, 64), np.ones((16, 12), np.float32))
    >>> asked = annotate(net, {"weight": Ask(("tp", None), priority=1)}).asked.values
    >>> [(value.name, str(spec)) for value, spec in asked.items()]
    [('weight', '[{"tp"}p1, {}]')]
    """

    given: Any
    priority: int | None = None


def annotate(
    target: Any,
    patterns: Mapping[str, Any] | None = None,
    mesh: Mesh | str | None = None,
    *,
    stages: Mapping[str, int] | None = None,
) -> Any:
    """The same model, with what the patterns ask; patterns that come later replace what earlier ones asked.

    A pattern names inputs and parameters by their qualified names, a module for its `weight` or `kernel`, or operators
    by their labels in the graph. For tensors it gives one of

    - a tuple with an entry per dim: an axis, a tuple of axes, None or "-" (whole), "?" (open), as in a PartitionSpec
      of JAX, which may be given itself; or text, `[{dp}, {tp, ?}]`; or a Sharding, Layout or Spec;
    - placements of DTensor, an entry per axis of `mesh`: `[Replicate(), Shard(0)]`, or as text `["R", "S(0)"]`;
    - MindSpore's parts of each dim, `(2, 4)`, laid over `mesh`.

    For operators it gives MindSpore's in_strategy, `((2, 1), (1, 4))`. `Ask(given, priority)` gives a priority too.
    For a model of `from_jax` there may be a pytree of PartitionSpecs instead, nested as its parameters are.

    Args:
        target: something traced, what has `traced` (a model of `from_torch` or `from_jax`, a train step), or an
            imported module.
        mesh: the mesh, which placements, parts and modules need.
        stages: the stages of a pipeline, from 0 on, of operators and parameters by patterns of their names, in which
            `{0..15}` stands for each of these numbers too; `plan_pipeline` and `--pipeline` cut the model so.

    Returns:
        A model of `from_torch` or `from_jax` again; of anything else that was traced a Traced, of a module an imported
        module.

    Raises:
        UnknownNameError: a pattern that matches nothing; the message has the nearest names.
        ShardingError: what is asked does not fit a tensor: dims, axes, placements; the message names both.
        MeshError: placements, parts or a module without a mesh.
        StageError: stages of a module, or a stage that is no whole number from 0 on.

    >>> import numpy as np
    >>> from autoshard import annotate, nn, plan, trace
    >>> net = trace(nn.SequentialCell(nn.Dense(12, 64), nn.ReLU()), np.ones((16, 12), np.float32))
    >>> net = annotate(net, {"0.matmul": ((2, 1), (4, 1))})
    >>> print(plan(net, devices=8).plan.decisions[net.graph.node("0.matmul")].strategy)
    ((2, 1), (4, 1))
    """
    over = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    if is_module(target):
        if stages:
            raise StageError("annotate: a module has no stages; they go with a model")
        return _module(target, patterns or {}, over)
    named: Mapping[str, Any] = patterns or {}
    if named and hasattr(target, "patterns"):
        named = target.patterns(named)
    traced = known_trace(target)
    if traced is None:
        raise ShardingError(f"annotate takes something traced or imported, not {type(target).__name__}; trace it first")
    values, nodes = _found(traced.graph, named, over)
    for value, spec in values.items():
        if over is not None:
            spec.on(over, value.type.rank, what=value.name)
    asked = replace(traced.asked, values={**traced.asked.values, **values})
    own = {node: NodeAnnotation(strategy) for node, strategy in nodes.items()}
    found = replace(
        traced,
        asked=_following(asked, traced.graph),
        annotations={**traced.annotations, **own},
        stages={**traced.stages, **_numbered(stages or {})},
    )
    again = getattr(target, "with_traced", None)
    return found if again is None else again(found)


def _numbered(stages: Mapping[str, int]) -> Mapping[str, int]:
    """The stages, each of which must be a number."""
    for pattern, stage in stages.items():
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise StageError(f"annotate: stage {stage!r} of {pattern!r}; stages are numbered from 0 on")
    return stages


def _following(asked: Specs, graph: Graph) -> Specs:
    """New values of parameters are to lie as the parameters do."""
    outputs = [*asked.outputs, *[None] * (len(graph.outputs) - len(asked.outputs))]
    for out, into in graph.updates.items():
        outputs[out] = asked.values.get(graph.inputs[into], outputs[out])
    return replace(asked, outputs=tuple(outputs))


def _module(target: Any, patterns: Mapping[str, Any], mesh: Mesh | None) -> Any:
    from autoshard.frontends.stablehlo.imported import Imported
    from autoshard.frontends.stablehlo.load import from_stablehlo

    imported = target if isinstance(target, Imported) else from_stablehlo(target)
    meshes = dict(imported.asked.meshes)
    name, over = next(((name, own) for name, own in meshes.items() if mesh in (None, own)), ("mesh", mesh))
    if over is None:
        raise MeshError("annotate: the module names no mesh; give one, mesh='dp=2,tp=4'")
    if name == "mesh" and meshes.get(name, over) is not over:
        raise MeshError(f"annotate: the module is written for the mesh '{meshes[name]}', not for '{over}'")
    values, nodes = _found(imported.graph, patterns, over)
    if nodes:
        raise ShardingError(
            f"annotate: operators of a module take no strategies ({next(iter(nodes)).label}); ask of its inputs"
        )
    own = {value: spec.on(over, value.type.rank, name, what=value.name) for value, spec in values.items()}
    asked = ShardingAnnotations({**meshes, name: over}, {**imported.asked.values, **own}, imported.asked.outputs)
    return replace(imported, asked=asked)


# -- which names a pattern means


def _found(
    graph: Graph, patterns: Mapping[str, Any], mesh: Mesh | None
) -> tuple[dict[Value, Spec], dict[Node, tuple[Any, ...]]]:
    if not isinstance(patterns, Mapping):
        raise ShardingError(
            f"annotate takes a dict from patterns to what they ask, such as {{'layers.*.up': ('tp', None)}}, not "
            f"{patterns!r} ({type(patterns).__name__})"
        )
    tensors = {value.name: value for value in graph.inputs}
    operators = {node.label: node for node in walk(graph.nodes)}
    values: dict[Value, Spec] = {}
    nodes: dict[Node, tuple[Any, ...]] = {}
    for pattern, given in patterns.items():
        ask = given if isinstance(given, Ask) else Ask(given)
        if _is_strategy(ask.given):
            for name in _matching(pattern, operators, "operator"):
                nodes[operators[name]] = _strategy(ask.given, operators[name])
            continue
        for name in _matching(pattern, tensors, "input or parameter"):
            values[tensors[name]] = _spec(ask, tensors[name], mesh)
    return values, nodes


def _matching(pattern: str, names: Mapping[str, Any], what: str) -> list[str]:
    if not isinstance(pattern, str):
        raise ShardingError(f"annotate: {pattern!r} is no pattern of names; write text, such as 'layers.*.up'")
    form = _compiled(pattern)
    found = [name for name in names if form.fullmatch(name)]
    found = found or [name for name in names if name.endswith(_MAIN) and form.fullmatch(name.rpartition(".")[0])]
    if not found:
        near = nearest(pattern, names, _NEAR)
        raise UnknownNameError(f"pattern {pattern!r} matches no {what}; the nearest names are {near}")
    return found


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    meanings = {"**": ".*", "*": "[^.]*"}
    return re.compile("".join(meanings.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", pattern)))


# -- what is asked


def _is_strategy(given: Any) -> bool:
    """Whether it is a tuple of parts for each operand."""
    return _is_list(given) and bool(given) and all(_is_list(one) and all(_is_count(n) for n in one) for one in given)


def _is_list(given: Any) -> bool:
    return isinstance(given, tuple | list)


def _is_count(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool)


def _strategy(given: Sequence[Sequence[int]], node: Node) -> tuple[tuple[int, ...], ...]:
    ranks = [value.type.rank for value in node.operands]
    if [len(one) for one in given] != ranks:
        raise ShardingError(f"{node.label} ({node.op.name}) takes operands of {ranks} dims, which {given} does not fit")
    return tuple(map(tuple, given))


def _spec(ask: Ask, value: Value, mesh: Mesh | None) -> Spec:
    given, what = ask.given, f"{value.name} ({value.type})"
    if _is_placements(given):
        spec = _of_placements(given, value, _needed(mesh, given))
    elif _is_list(given) and given and all(map(_is_count, given)):
        spec = _of_parts(given, value, _needed(mesh, given))
    else:
        spec = Spec.of(_plain(given, value.type.rank), what)
    spec.check_rank(value.type.rank, what)
    if ask.priority is None:
        return spec
    dims = (dim._replace(priority=ask.priority) if dim.axes or not dim.closed else dim for dim in spec.dims)
    return replace(spec, dims=tuple(dims))


def _needed(mesh: Mesh | None, given: Any) -> Mesh:
    if mesh is None:
        raise MeshError(
            f"annotate: {given!r} says something for each mesh axis or device; give the mesh, mesh='dp=2 tp=4'"
        )
    return mesh


def _plain(given: Any, rank: int) -> Any:
    """Entries per dim as `Spec.of` takes them; a PartitionSpec may be shorter than the tensor."""
    if isinstance(given, str | Spec) or not hasattr(given, "__iter__"):
        return given
    entries = [None if one == "-" else "?" if _is_jax(one) else one for one in given]
    if _is_jax(given):
        entries += [None] * (rank - len(entries))
    return tuple(entries)


def _is_jax(one: Any) -> bool:
    """Whether it is JAX's own: a PartitionSpec, or among its entries UNCONSTRAINED."""
    return type(one).__module__.partition(".")[0] == "jax"


def _is_placements(given: Any) -> bool:
    return _is_list(given) and bool(given) and all(_placement(one) for one in given)


def _placement(one: Any) -> re.Match[str] | None:
    """A placement, given as its text or as DTensor's own, whose text this is too."""
    text = one if isinstance(one, str) else str(one) if hasattr(one, "is_shard") else ""
    return _PLACEMENT.fullmatch(text)


def _of_placements(given: Sequence[Any], value: Value, mesh: Mesh) -> Spec:
    if len(given) != len(mesh.axes):
        raise ShardingError(
            f"{value.name}: {len(given)} placements {[*map(str, given)]} for the {len(mesh.axes)} axes of mesh "
            f"'{mesh}'; give one per axis"
        )
    dims: list[list[Axis]] = [[] for _ in range(value.type.rank)]
    for one, name in zip(given, mesh.names, strict=True):
        match = _placement(one)
        if match is None or match[1] is None:
            continue
        dim = int(match[1])
        if not -value.type.rank <= dim < value.type.rank:
            raise ShardingError(
                f"{value.name} ({value.type}) cannot be placed as {one} along {name!r}: it has {value.type.rank} dims"
            )
        dims[dim].append(Axis(name))
    return Spec(tuple(DimSpec(tuple(axes)) for axes in dims))


def _of_parts(parts: Sequence[int], value: Value, mesh: Mesh) -> Spec:
    if len(parts) != value.type.rank:
        raise ShardingError(
            f"{value.name} ({value.type}) has {value.type.rank} dims, which the parts {parts} do not fit"
        )
    try:
        return Spec.of(Layout(mesh, matrix_axes(mesh, parts)), value.name)
    except AutoshardError as error:
        raise ShardingError(f"{value.name} ({value.type}) cannot be split into {tuple(parts)}: {error}") from None


# -- files


_Entry = str | Natural | tuple[str | Natural, ...] | None
_Given = str | tuple[_Entry, ...]


class AskRecord(Record, frozen=True):
    """What is asked by one pattern, with a priority."""

    given: _Given
    priority: Natural | None = None


class AnnotationFile(Record, frozen=True):
    """Patterns of names, and what they ask."""

    format: Literal["autoshard annotations 1"]
    annotations: dict[str, _Given | AskRecord]


def load_annotations(path: str | Path) -> dict[str, Any]:
    """The patterns in a JSON file, as `annotate` takes them.

    The file is {"format": "autoshard annotations 1", "annotations": {pattern: given}}, where given is a list or text,
    or {"given": ..., "priority": n}.

    Raises:
        ParseError: no such file, no JSON, or another format.
    """
    found = read_json(path, AnnotationFile, "file of annotations")
    return {
        pattern: Ask(given.given, given.priority) if isinstance(given, AskRecord) else given
        for pattern, given in found.annotations.items()
    }
