"""Named plans beside the formulas of their papers: bytes that a device holds and sends, formula and figure.

    python -m benchmarks.plan_formulas [--models gpt2 llama ...] [--plans zero3 megatron ...]
                                       [--json | --table] [--rows FILE ...]

Each model of `model_zoo.py` is imported once and planned by each named plan on the mesh that it is for; a plan that
does not fit says why. The formulas (`paper_formulas.py`) know the model's sizes (`paper_sizes.py` and
`paper_activations.py`: parameters, layers, tokens, width) and nothing of the plan. Where a model has operators that no
paper has, or is no training step, a row says so.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

MESHES = {
    "data_parallel": "dp=8", "zero1": "dp=8", "zero2": "dp=8", "zero3": "dp=8", "zero3_keep": "dp=8",
    "hsdp": "dp=2 fsdp=4", "megatron": "dp=2 tp=4", "megatron_sp": "dp=2 tp=4", "megatron_sp_keep": "dp=2 tp=4",
    "fsdp_tp": "dp=2 tp=4", "context_parallel": "dp=2 cp=4", "context_parallel_keep": "dp=2 cp=4",
    "ulysses": "dp=2 cp=4", "expert_parallel": "ep=8", "zero1_ep": "dp=2 ep=4", "fsdp_ep": "dp=2 ep=4",
}  # fmt: skip
OFF = 0.05
PASSES = ("zero1", "zero1_ep")
"""Plans whose reduce-scatter is what passes over the program make of an all-reduce; of others no pass is done, which
would find something to save."""
Row = dict[str, Any]


def measure(name: str, plans: list[str]) -> list[Row]:
    """The rows of one model: for each plan what it says, by formula and as planned."""
    import autoshard as ash
    from autoshard.util.errors import AutoshardError
    from benchmarks.model_zoo import ZOO
    from benchmarks.paper_formulas import FORMULAS

    made = ZOO[name]()
    traced, inputs = made if isinstance(made, tuple) else (made, ())
    rows: list[Row] = []
    for plan in plans:
        try:
            passes = plan in PASSES
            planned = ash.plan(traced, inputs, mesh=MESHES[plan], search=plan, hardware="h100", passes=passes)
        except AutoshardError as error:
            rows.append({"model": name, "plan": plan, "refused": str(error)})
            continue
        facts, row = Facts(planned), {"model": name, "plan": plan}
        if not facts.updates:
            rows.append({**row, "none": "no training step: nothing is updated from a gradient"})
            continue
        for what, formula, figure in FORMULAS[plan](facts):
            says = {"none": formula} if isinstance(formula, str) else {"formula": formula, "figure": figure}
            rows.append({**row, "what": what, **says})
    return rows


class Facts:
    """What a plan of a model holds and sends, beside the model's sizes."""

    def __init__(self, planned: Any) -> None:
        from autoshard.partition.program import Collective, ManualCollective, timed
        from autoshard.search.flat import flat
        from autoshard.search.named.structure import Structure
        from autoshard.transform.recompute import backward_begins
        from autoshard.transform.simplify import merge_equal, prune
        from autoshard.transform.unroll import unrolled
        from benchmarks.paper_activations import Activations

        self.plan, self.program, self.mesh = planned.plan, planned.program, planned.plan.mesh
        structure, self.loops = Structure(planned.graph), Structure(flat(planned.graph).graph)
        forward = structure.forward_nodes
        self.backward = set(planned.graph.nodes[backward_begins(planned.graph) :])
        graph = merge_equal(prune(unrolled(planned.traced.graph)))
        self.size = Activations(graph, self.mesh.axes[-1][1])
        self.sent: dict[tuple[str, str], float] = defaultdict(float)
        self.backward_sent: dict[str, float] = defaultdict(float)
        self.for_operators: dict[tuple[str, str], float] = defaultdict(float)
        for one, times in timed(self.program.instructions):
            if isinstance(one, Collective | ManualCollective) and one.step.communicates:
                size, over = times * one.nbytes_moved, str(one.step.groups)
                self.sent[one.step.kind, over] += size
                name = one.serves.op.name if one.serves is not None else ""
                self.for_operators[name, over] += size
                self.backward_sent[name] += size if one.serves not in forward else 0
        self.updates = [one for one in structure.updates if one.owner is not None]

    def local(self, value: Any) -> int:
        from autoshard.cost.blocks import local_nbytes

        return local_nbytes(value.type, self.plan.layouts[value])

    @property
    def held_parameters(self) -> int:
        return sum(self.local(one.parameter) for one in self.updates if one.parameter is not None)

    @property
    def held_states(self) -> int:
        return sum(self.local(state) for one in self.updates for state in one.states)

    @property
    def held_gradients(self) -> int:
        """As they wait for the update; where it is made in several steps, for the first."""
        first = {one.owner: one.gradient for one in reversed(self.updates) if one.gradient is not None}
        return sum(map(self.local, first.values()))

    @property
    def in_loops_of_layers(self) -> int:
        """Bytes of the parameters that are stacks of layers, of which each turn of a loop takes one."""
        parameters = (one.parameter for one in self.updates if one.parameter is not None)
        return sum(one.type.nbytes for one in parameters if self.loops.dims_of_turns(one))

    @property
    def kept(self) -> int:
        """Bytes of the blocks that are there when the backward pass begins, for what the forward pass leaves to it:
        with copies in another layout, if they are kept."""
        steps = self.program.instructions
        first = next(i for i, step in enumerate(steps) if getattr(step, "node", None) in self.backward)
        made = {block: step for step in steps[:first] for block in step.results}
        needed = {block for step in steps[first:] for block in step.operands}
        fed = {value.name for value in self.size.structure.fed}
        kept = {_base(block, made) for block in made if block in needed and _stem(block.name) in fed}
        return sum(block.local.nbytes for block in kept if block in made)

    def over(self, axes: str, *kinds: str) -> float:
        """Bytes that a device sends over mesh axes, by the collectives of these kinds (all by default)."""
        return sum(size for (kind, of), size in self.sent.items() if of == axes and (not kinds or kind in kinds))

    def by_attention(self, axes: str) -> float:
        """Bytes that a device sends over mesh axes for attention and its gradients."""
        return sum(size for (op, of), size in self.for_operators.items() if of == axes and op.startswith("Attention"))

    @property
    def exchanged(self) -> float:
        """Bytes that a device sends to be at other experts, over all mesh axes."""
        return sum(size for (kind, _), size in self.sent.items() if kind == "all_to_all")

    @property
    def for_weights(self) -> float:
        """Bytes that a device sends in the backward pass and behind it, but not for attention and windows of
        convolutions."""
        others = ("Attention", "Convolution")
        return sum(size for op, size in self.backward_sent.items() if not op.startswith(others))

    @property
    def in_loops(self) -> str:
        """Why there is no formula for activations, where layers are the turns of a loop; empty elsewhere."""
        from autoshard.partition.program import timed

        loops = "layers are turns of a loop, in which what is passed on and kept is not counted by layers"
        return loops if any(times > 1 for _, times in timed(self.program.instructions)) else ""

    @cached_property
    def across_samples(self) -> list[Any]:
        """Operators that work on samples of other ranks."""
        from benchmarks.paper_scope import across_samples

        return across_samples(self.size.graph, self.size.structure)

    @cached_property
    def statistics_over_tokens(self) -> list[Any]:
        """Operators that take means of a stream over all tokens, beside which it and its weights lie by channels."""
        from autoshard.search.named.streams import Streams

        return list(Streams(self.size.graph, self.size.structure, self.size.pairs).statistics)

    @cached_property
    def across_tokens(self) -> list[Any]:
        """Operators of a stream that do not work on each token by itself."""
        from benchmarks.paper_scope import across_tokens

        return across_tokens(self.size.graph, self.size.structure, self.size.pairs)

    @property
    def all_sent(self) -> float:
        return sum(self.sent.values())


def _base(block: Any, made: Mapping[Any, Any]) -> Any:
    """The block that a block is a view of."""
    while (node := getattr(made.get(block), "node", None)) is not None and node.op.view and made[block].operands:
        block = made[block].operands[0]
    return block


def _stem(name: str) -> str:
    """The name of the value that a block is of."""
    return re.sub(r"(\.\d+)+$", "", name)


def show(rows: list[Row], off: float = OFF) -> None:
    """A line for each formula, with its ratio to the figure; a mark where they are further apart than `off`."""
    from benchmarks.formula_table import ratio
    from costmodel import format_bytes

    for row in rows:
        head = f"{row['model']:<28} {row['plan']:<17}"
        if "refused" in row:
            print(f"{head} does not fit: {row['refused'].partition(': ')[2] or row['refused']}"[:200])
            continue
        if "none" in row:
            print(f"{head} {row.get('what', ''):<27} no formula: {row['none']}"[:200])
            continue
        found = ratio(row)
        mark = "" if abs(found - 1) <= off else " *"
        sizes = f"{format_bytes(row['formula']):>12} {format_bytes(row['figure']):>12}"
        print(f"{head} {row['what']:<27} {sizes} {found:7.3f}{mark}")


def summary(rows: list[Row], off: float = OFF) -> str:
    """How many formulas hold, and how many plans fit."""
    from benchmarks.formula_table import ratio

    known = [row for row in rows if "formula" in row]
    near = [row for row in known if abs(ratio(row) - 1) <= off]
    refused = sum("refused" in row for row in rows)
    none = sum("none" in row for row in rows)
    return (
        f"{len(near)} of {len(known)} figures within {100 * off:.0f} % of their formula; no formula for {none}; "
        f"{refused} plans do not fit"
    )


def main(arguments: list[str]) -> int:
    """Measure each model in a process of its own. The exit code."""
    from benchmarks.formula_table import markdown
    from benchmarks.fresh import measured, tell
    from benchmarks.model_zoo import ZOO

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=list(ZOO))
    parser.add_argument("--plans", nargs="+", choices=list(MESHES), default=list(MESHES))
    parser.add_argument("--off", type=float, default=OFF, help="how far a figure may be from its formula, as a share")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of lines")
    parser.add_argument("--table", action="store_true", help="a table of all models in Markdown instead of lines")
    parser.add_argument("--rows", nargs="+", type=Path, default=[], help="files of --json to go by, instead of models")
    options = parser.parse_args(arguments)
    rows: list[Row] = [row for path in options.rows for row in json.loads(path.read_text(encoding="utf-8"))]
    for name in options.models if not rows else ():
        (found,) = measured(measure, [(name, options.plans)], name)
        rows += found
        if not options.json and not options.table:
            show(found, options.off)
            sys.stdout.flush()
    if options.table:
        print("\n".join(markdown(rows, options.off)))
    elif options.json or options.rows:
        tell(rows, options.json, show)
    print(summary(rows, options.off), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
