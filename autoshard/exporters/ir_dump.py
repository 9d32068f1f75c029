"""IR dumps in the form of MindSpore's: a plan's graph with global shapes, and the program that one rank runs.

`save_graphs(plan, program, folder)` writes rank_<r>/step_parallel_begin_<nnnn>.ir (strategies decided, shapes
global), step_parallel_end_<nnnn>.ir and <nn>_validate_<nnnn>.ir (local shapes, collectives). Texts are the
same in every run. Parameters are read by Load at their first use; Assign stores an update.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoshard.core.strategy import Parts
from autoshard.core.tensortype import DType, TensorType
from autoshard.exporters.ir_parse import (
    Attr,
    Dump,
    DumpBody,
    DumpNode,
    DumpParameter,
    DumpReturn,
    DumpSource,
    DumpType,
    ListedValue,
    Operand,
    show_dump,
)
from autoshard.exporters.ir_steps import REDUCTIONS, Attrs, number_of, primitive, ranks_of, step_attrs
from autoshard.ir.graph import DATA, Node, Source, Value
from autoshard.ops.attributes import Literal, resolve
from autoshard.partition.program import Bundle, Collective, Compute, Instruction, Nest, Program, Start, Wait
from autoshard.plan.plan import CONFIGURED, Plan
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

MONAD = DumpType("UMonad")
INDENT = " " * 8


def dump_begin(plan: Plan) -> str:
    """The graph with its decided strategies and global shapes (`step_parallel_begin`)."""
    graph = plan.graph
    writer = DumpWriter(graph.name)
    for i, (value, role) in enumerate(zip(graph.inputs, graph.roles, strict=True)):
        writer.parameter(value, value.name, value.type, role != DATA or i in graph.updates.values())
    write_nodes(writer, graph.nodes, plan)
    writer.finish(graph.outputs, graph.inputs, graph.updates)
    return show_dump(writer.dump())


def write_nodes(writer: DumpWriter, nodes: Iterable[Node], plan: Plan | None) -> None:
    """Append nodes with whole shapes, and the strategies of a plan; without one nothing is split."""
    for node in nodes:
        bodies = []
        for region in node.regions:
            with writer.inside(node, region.args, region.captured, region.outputs) as title:
                write_nodes(writer, region.nodes, plan)
            bodies.append(title)
        unsplit = tuple((1,) * of.rank for of in node.operand_types)
        strategy = plan.strategy(node).in_strategy if plan else unsplit
        writer.compute(node, node.operands, node.results, node.result_types, node.attrs, strategy, plan, bodies)


def dump_program(program: Program, rank: int, plan: Plan | None = None, title: str | None = None) -> str:
    """What one rank runs: local shapes, the rank's groups, rank-dependent attributes as numbers.

    Args:
        plan: tells which inputs are parameters and which operators are configured; without it only inputs
            that the program updates are taken for parameters.
        title: the dump's name, by default the program's.

    Raises:
        PlanError: there is no such rank.
    """
    if not 0 <= rank < program.mesh.devices:
        last = program.mesh.devices - 1
        raise PlanError(f"program {program.name!r} has no rank {rank} to dump; its ranks are 0..{last}")
    writer = DumpWriter(title or program.name)
    roles = plan.graph.roles if plan else (DATA,) * len(program.inputs)
    for i, (register, role) in enumerate(zip(program.inputs, roles, strict=True)):
        stored = role != DATA or i in program.updates.values()
        writer.parameter(register, register.name, register.local, stored)
    write_program(writer, program.instructions, rank, plan)
    writer.finish(program.outputs, program.inputs, program.updates)
    return show_dump(writer.dump())


def write_program(
    writer: DumpWriter,
    instructions: Iterable[Instruction],
    rank: int,
    plan: Plan | None,
    world: Sequence[int] | None = None,
) -> None:
    """Append what a rank of a mesh runs.

    Args:
        world: which of all ranks each rank of the mesh is; None: the same.
    """
    for one in instructions:
        if isinstance(one, Collective):
            writer.collective(one, rank, world=world)
            continue
        if isinstance(one, Bundle):
            writer.bundle(one, rank, world)
            continue
        if isinstance(one, Start):
            write_program(writer, (one.of,), rank, plan, world)
        if isinstance(one, Start | Wait):
            continue
        if isinstance(one, Compute) and one.op is not one.node.op:
            writer.beside(one, rank)
            continue
        bodies = []
        for body in one.bodies if isinstance(one, Nest) else ():
            with writer.inside(one.node, body.args, body.captured, body.outputs) as title:
                write_program(writer, body.instructions, rank, plan, world)
            bodies.append(title)
        given = one.attrs if isinstance(one, Compute) else one.node.attrs
        attrs = {name: resolve(value, rank) for name, value in given.items()}
        operands = one.entering if isinstance(one, Nest) else one.operands
        strategy = tuple(register.layout.parts for register in operands)
        types = [register.local for register in one.results]
        writer.compute(one.node, operands, one.results, types, attrs, strategy, plan, bodies)


def save_graphs(
    plan: Plan, program: Program, folder: Path | str, ranks: Iterable[int] | None = None, serial: int = 0
) -> tuple[Path, ...]:
    """Write the three dumps of each rank under `folder`; returns the files.

    Args:
        ranks: which ranks, by default all.
        serial: the number in the first file's name; the other two count on, as MindSpore's dumps do.

    Raises:
        MeshError: all of more ranks than can be listed.
    """
    begin = dump_begin(plan)
    paths: list[Path] = []
    for rank in program.mesh.listed("write dumps") if ranks is None else ranks:
        paths += write_dumps(Path(folder), rank, (begin,), dump_program(program, rank, plan), serial)
    return tuple(paths)


def write_dumps(folder: Path, rank: int, begin: Sequence[str], local: str, serial: int = 0) -> list[Path]:
    """Write the dumps of one rank: of what is split as it was before, and twice of what the rank runs; the files.

    Args:
        serial: the number in the first file's name; the others count on.
    """
    place = folder / f"rank_{rank}"
    last = serial + len(begin)
    names = [f"step_parallel_begin_{number:04d}.ir" for number in range(serial, last)]
    names += [f"step_parallel_end_{last:04d}.ir", f"{last + 1:02d}_validate_{last + 1:04d}.ir"]
    for name, text in zip(names, (*begin, local, local), strict=True):
        write_atomically(place / name, text, PlanError, durable=False, folders=True)
    return [place / name for name in names]


class DumpWriter:
    """Collects the lines of a dump, and knows how each value, register or other key is referred to."""

    def __init__(self, title: str) -> None:
        self.title = clean(title)
        self.parameters: list[DumpParameter] = []
        self.body: list[DumpNode | DumpReturn] = []
        self.references: dict[Hashable, tuple[str, DumpType]] = {}
        self.stored: dict[Hashable, DumpParameter] = {}
        self.subgraphs: dict[str, DumpBody | None] = {}
        self.count = 0
        self.arguments = 0
        self.bundles = 0

    def dump(self) -> Dump:
        subgraphs = tuple(one for one in self.subgraphs.values() if one is not None)
        return Dump(self.title, tuple(self.parameters), tuple(self.body), subgraphs)

    @contextmanager
    def inside(self, node: Node, args: Sequence, captured: Sequence, outputs: Sequence) -> Iterator[str]:
        """Write what follows into a subgraph of its own: a body of `node`; its title.

        Args:
            args: what it starts from: values or registers.
            captured: what it uses from outside; parameters among it are loaded before.
            outputs: what it returns.
        """
        for one in captured:
            self.read(one)
        with self.subgraph(node.label, args, outputs) as title:
            yield title

    @contextmanager
    def subgraph(self, label: str, args: Sequence, outputs: Sequence) -> Iterator[str]:
        """Write what follows into a subgraph of its own; its title."""
        title = f"{clean(label)}_{len(self.subgraphs)}"
        self.subgraphs[title] = None  # outer bodies stand before inner ones
        around, self.body = self.body, []
        parameters = tuple(map(self.argument, args))
        yield title
        read = [self.read(one) for one in outputs]
        self.body.append(DumpReturn(tuple(reference for reference, _ in read), tuple(of for _, of in read)))
        self.subgraphs[title] = DumpBody(title, parameters, tuple(self.body))
        self.body = around

    def argument(self, one: Any) -> DumpParameter:
        """Enter what a body starts from."""
        self.arguments += 1
        of = tensor_type(one.type if isinstance(one, Value) else one.local)
        name = f"arg{self.arguments}_{clean(one.name)}"
        self.references[one] = (f"%{name}", of)
        return DumpParameter(name, of)

    def parameter(self, key: Hashable, name: str, of: TensorType, stored: bool) -> None:
        """Enter an input; a stored one (a parameter or a state) is read by Load."""
        full_name = f"para{len(self.parameters) + 1}_{clean(name)}"
        if not stored:
            self.parameters.append(DumpParameter(full_name, tensor_type(of)))
            self.references[key] = (f"%{full_name}", tensor_type(of))
            return
        place = DumpParameter(full_name, DumpType(f"Ref[Tensor({of.dtype.name.upper()})]", of.shape))
        self.parameters.append(place)
        self.stored[key] = place

    def read(self, key: Hashable) -> tuple[str, DumpType]:
        """How to refer to a value, and its type; a parameter is loaded at its first use."""
        if key not in self.references:
            stored = self.stored[key]
            of = stored.type.tensor
            assert of is not None, "parameters are tensors"
            name = stored.name.partition("_")[2]
            self.add(name, "Load", [f"%{stored.name}", "U"], [stored.type, MONAD], [(key, tensor_type(of))])
        return self.references[key]

    def add(
        self,
        name: str,
        op: str,
        operands: Sequence[Operand],
        operand_types: Sequence[DumpType],
        results: Sequence[tuple[Hashable, DumpType]],
        **more: Any,
    ) -> None:
        """Append a node and enter its results."""
        types = tuple(of for _, of in results)
        node = DumpNode(self.count, name, op, tuple(operands), tuple(operand_types), types, **more)
        self.body.append(node)
        for i, (key, of) in enumerate(results):
            place = f"[{i}]" if len(results) > 1 else ""
            self.references[key] = (f"%{self.count}{place}", of)
        self.count += 1

    def compute(
        self,
        node: Node,
        operands: Sequence,
        results: Sequence,
        types: Sequence[TensorType],
        attrs: Mapping[str, Any],
        strategy: Parts,
        plan: Plan | None,
        bodies: Sequence[str] = (),
    ) -> None:
        """An operator, and the titles of its bodies; operands and results are values or registers."""
        read = [self.read(one) for one in operands]
        self.add(
            ", ".join(clean(one.name) for one in results),
            node.op.name,
            [reference for reference, _ in read],
            [of for _, of in read],
            [(one, tensor_type(of)) for one, of in zip(results, types, strict=True)],
            instance=clean(node.name) if node.name else None,
            attrs=(*_primitive_attrs(node, attrs, strategy, plan), *_bodies(bodies)),
            in_strategy=strategy,
            source=_source(node.source),
        )

    def beside(self, one: Compute, rank: int) -> None:
        """An operator that lowering put before one of the graph: what masks padding."""
        read = [self.read(register) for register in one.operands]
        names = (("input_names", ListedValue(one.op.operand_names)), ("output_names", ListedValue(("output",))))
        attrs = ((name, _attr(resolve(value, rank))) for name, value in one.attrs.items())
        self.add(
            ", ".join(clean(register.name) for register in one.results),
            one.op.name,
            [reference for reference, _ in read],
            [of for _, of in read],
            [(register, tensor_type(register.local)) for register in one.results],
            instance=clean(one.node.name) if one.node.name else None,
            attrs=(*names, *attrs),
            source=_source(one.node.source),
        )

    def bundle(self, bundle: Bundle, rank: int, world: Sequence[int] | None = None) -> None:
        """Collectives done as one: each by itself with a common number, as MindSpore marks what it fuses."""
        self.bundles += 1
        for one in bundle.parts:
            self.collective(one, rank, self.bundles, world)

    def collective(self, one: Collective, rank: int, fusion: int = 0, world: Sequence[int] | None = None) -> None:
        """A step of a redistribution. `fusion` and `world` are as for `step_attrs`."""
        reference, of = self.read(one.operand)
        step, name = one.step, primitive(one.step)
        operands: list[Operand] = [reference]
        types = [of]
        if step.kind == "slice":
            cut = _cut(one, rank)
            operands += cut
            types += [DumpType(f"Tuple[Int64*{len(numbers)}]") for numbers in cut]
        purpose = "forward_op" if step.kind in REDUCTIONS else "redistribution_op"
        suffix = name if step.kind == "slice" else ""
        number = number_of(step.kind, ranks_of(step, rank, world), one.operand.name, one.result.name)
        self.add(
            clean(one.result.name),
            name,
            operands,
            types,
            [(one.result, tensor_type(one.result.local))],
            instance=f"{purpose}_{number}{suffix}",
            attrs=(*step_attrs(step, rank, one.of.shape, fusion, world), ("axes", str(step.groups))),
        )

    def finish(self, outputs: Sequence, inputs: Sequence, updates: Mapping[int, int]) -> None:
        """Store the updates, return the other outputs."""
        read = [self.read(one) for one in outputs]  # before any Assign: an output may be an old value
        for out, into in updates.items():
            reference, of = read[out]
            target = self.stored[inputs[into]]
            name = target.name.partition("_")[2]
            types = [target.type, of, MONAD]
            self.add(name, "Assign", [f"%{target.name}", reference, "U"], types, [(object(), of)])
        left = [one for i, one in enumerate(read) if i not in updates]
        self.body.append(DumpReturn(tuple(reference for reference, _ in left), tuple(of for _, of in left)))


def tensor_type(of: TensorType) -> DumpType:
    """A tensor's type in the dump's words."""
    return DumpType(f"Tensor[{of.dtype.long_name}]", of.shape)


def clean(name: str) -> str:
    """A name without the marks that the form is made of."""
    return re.sub(r"[^\w.\-/]", "_", name)


def _source(source: Source | None) -> DumpSource | None:
    return source and DumpSource(source.file, source.line, INDENT + " ".join(source.text.splitlines()))


def _primitive_attrs(node: Node, attrs: Mapping[str, Any], strategy: Parts, plan: Plan | None) -> Attrs:
    """Names of operands and results, the operator's attributes, strategies where a user configured them."""
    count = len(node.results)
    outputs = ("output",) if count == 1 else tuple(f"output{i}" for i in range(count))
    names = tuple(f"x{i}" for i in range(len(node.operands))) if node.op.variadic else node.op.operand_names
    pairs: list[tuple[str, Attr]] = [("input_names", ListedValue(names)), ("output_names", ListedValue(outputs))]
    pairs += [(name, _attr(value)) for name, value in attrs.items()]
    decision = plan.decisions.get(node) if plan else None
    if plan and decision and decision.cause.kind == CONFIGURED:
        left = tuple(plan.layouts[value] for value in node.results)
        asked = tuple(layout.parts for layout in left) if left != decision.strategy.result_layouts else None
        pairs += [("in_strategy", strategy), ("out_strategy", asked)]
    return tuple(pairs)


def _bodies(titles: Sequence[str]) -> Attrs:
    return (("bodies", ListedValue(tuple(titles))),) if titles else ()


def _attr(value: Any) -> Attr:
    if isinstance(value, tuple | list):
        return tuple(map(_attr, value))
    if isinstance(value, Literal):
        return f"Tensor{list(value.array.shape)}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.name if isinstance(value, DType) else str(value)


def _cut(one: Collective, rank: int) -> list[tuple[int, ...]]:
    """begin, end and strides of the piece that the rank keeps of its block."""
    sizes, dim = one.operand.local.shape, one.step.dim
    kept = one.result.local.shape
    begin = tuple(one.step.groups.position(rank) * kept[i] if i == dim else 0 for i in range(len(sizes)))
    begin = tuple(map(min, begin, sizes))  # behind a dim that does not divide there is only padding
    end = tuple(min(start + size, last) for start, size, last in zip(begin, kept, sizes, strict=True))
    return [begin, end, (1,) * len(sizes)]
