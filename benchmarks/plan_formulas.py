"""Named plans beside the formulas of their papers: bytes that a device holds and sends, formula and figure.

    python -m benchmarks.plan_formulas [--models gpt2 llama ...] [--plans zero3 megatron ...] [--json] [--off 0.05]

Each model of `model_zoo.py` is imported once and planned by each named plan on the mesh that it is for; a plan that
does not fit says why. The formulas know the model's sizes (parameters, layers, tokens, width) and nothing of the plan:

- ZeRO (Rajbhandari et al. 2019, arXiv 1910.02054, sections 5 and 7), P bytes of parameters over n devices: parameters,
  gradients and optimizer states in n parts from the stage on that splits them; 2 (n - 1)/n P sent, in stage 3 half
  more (but for what the backward pass does not need: tables of words, biases, weights of the first layer). Statistics
  over the batch inside of a model are summed, and their gradients.
- Megatron (Shoeybi et al. 2019, 1909.08053, section 3): weights in t parts; in each layer two all-reduces of the
  tokens forward and two backward, one for the embedding and one for the head. With split sequences (Korthikanti et al.
  2022, 2205.05198, section 4.2) as much is sent, and what products by columns take is gathered once more for the
  backward pass, for which all is kept in t parts, too; not so what comes before the first layer (convolutions). What
  the paper's model has not is read as `paper_sizes.py` says. The paper lays fused columns (queries, keys and values in
  one weight) out by heads; a model that has them one behind the other sends what the rank that lacks most of them
  lacks, forward and backward. With split sequences each rank sends its own tokens to experts: what is then gathered for
  their columns, and scattered behind, are tokens once for each expert.
- Ulysses (Jacobs et al. 2023, 2309.14509, section 3.2): queries, keys, values and results of attention change from
  sequences to heads and back, forward and backward.
- Ring attention (Liu et al. 2023, 2310.01889, section 3): keys and values go round forward, and backward again with
  their gradients; or for these the queries and the results' gradients, which they come from, if that is less.
- Experts (Lepikhin et al. 2020, 2006.16668): tokens go to their experts and back, forward and backward.

Norms, biases behind rows and tables whose rows do not divide (the papers pad them) lie on all ranks; losses of a split
vocabulary sum three numbers for each token; of tables of positions the rows that are looked up have gradients, unless
positions are in parts. Masks that all heads share lie with all of them. What is kept is counted in the plan's program:
the blocks that are there when the backward pass begins, with copies in another layout.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

MESHES = {
    "data_parallel": "dp=8", "zero1": "dp=8", "zero2": "dp=8", "zero3": "dp=8", "megatron": "dp=2 tp=4",
    "megatron_sp": "dp=2 tp=4", "context_parallel": "dp=2 cp=4", "ulysses": "dp=2 cp=4", "expert_parallel": "ep=8",
    "zero1_ep": "dp=2 ep=4",
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
        facts = _Facts(planned)
        for what, formula, figure in FORMULAS[plan](facts) if facts.updates else ():
            rows.append({"model": name, "plan": plan, "what": what, "formula": formula, "figure": figure})
    return rows


class _Facts:
    """What a plan of a model holds and sends, beside the model's sizes."""

    def __init__(self, planned: Any) -> None:
        from autoshard.partition.program import Collective, ManualCollective, timed
        from autoshard.search.named.structure import Structure
        from autoshard.transform.simplify import merge_equal, prune
        from autoshard.transform.unroll import unrolled
        from benchmarks.paper_sizes import Sizes

        self.plan, self.program, self.mesh = planned.plan, planned.program, planned.plan.mesh
        structure = Structure(planned.graph)
        self.forward = set(structure.forward)
        graph = merge_equal(prune(unrolled(planned.traced.graph)))
        self.size = Sizes(graph, self.mesh.axes[-1][1])
        self.sent: Counter[tuple[str, str]] = Counter()
        for one, times in timed(self.program.instructions):
            if isinstance(one, Collective | ManualCollective) and one.step.communicates:
                self.sent[one.step.kind, str(one.step.groups)] += times * one.nbytes_moved
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
    def kept(self) -> int:
        """Bytes of the blocks that are there when the backward pass begins, for what the forward pass leaves to it:
        with copies in another layout, if they are kept."""
        steps = self.program.instructions
        nodes = [getattr(step, "node", None) for step in steps]
        first = next(i for i, node in enumerate(nodes) if node is not None and node not in self.forward)
        made = {block: step for step in steps[:first] for block in step.results}
        needed = {block for step in steps[first:] for block in step.operands}
        fed = {value.name for value in self.size.structure.fed}
        kept = {_base(block, made) for block in made if block in needed and _stem(block.name) in fed}
        return sum(block.local.nbytes for block in kept if block in made)

    def over(self, axes: str, *kinds: str) -> float:
        """Bytes that a device sends over mesh axes, by the collectives of these kinds (all by default)."""
        return sum(size for (kind, of), size in self.sent.items() if of == axes and (not kinds or kind in kinds))

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


Says = Iterator[tuple[str, float, float]]


def _zero(stage: int) -> Any:
    def says(of: _Facts) -> Says:
        n, size = of.mesh.devices, of.size
        yield "parameters held", size.parameters / (n if stage == 3 else 1), of.held_parameters
        yield "gradients held", size.parameters / (n if stage >= 2 else 1), of.held_gradients
        yield "states held", size.states / (n if stage else 1), of.held_states
        gathered = {0: size.gradients, 1: size.parameters, 2: size.parameters}.get(
            stage, size.parameters + size.used_back
        )
        yield "sent", (n - 1) / n * (size.gradients + gathered + 4 * size.statistics), of.all_sent

    return says


def _megatron(sequence: bool) -> Any:
    def says(of: _Facts) -> Says:
        (data, tensor), size = (parts for _, parts in of.mesh.axes), of.size
        inside = [one for one in size.trained if size.in_parts(one)]
        split = sum(one.type.nbytes for one in inside) / tensor
        whole = size.parameters - tensor * split
        yield "parameters held", split + whole, of.held_parameters
        sums = size.leaving + size.entering + size.scores
        if sequence:
            routed = sum(rows - tokens for tokens, rows in size.dispatched)
            begun = sum(one.type.nbytes for one in size.beginnings)
            sums += (size.returning - size.leaving + size.entering + begun) / 2 + 2.5 * routed
        yield "sent over tp", (2 * (tensor - 1) / tensor * sums + size.misplaced) / data, of.over("tp")
        every = data * tensor if sequence else data
        split = sum(map(size.gradient, inside)) / tensor
        whole = size.gradients - tensor * split
        sent = 2 * (data - 1) / data * (split + 2 * size.statistics) + 2 * (every - 1) / every * whole
        yield "sent for gradients", sent, of.over("dp") + of.over("dp.tp")
        if sequence:
            outside = sum(one.type.nbytes for one in size.saved if one in size.before)
            kept = _kept(of) + (tensor - 1) / tensor * (outside + size.masks) / data
            yield "kept for the backward pass", kept, of.kept

    return says


def _context(heads: bool) -> Any:
    def says(of: _Facts) -> Says:
        (data, parts), size = (parts for _, parts in of.mesh.axes), of.size
        share = (parts - 1) / parts / data
        if heads:
            moved = sum(2 * ends + 2 * keys for ends, keys in size.attentions) / parts
            yield "sent by attention", moved * share, of.over("cp", "all_to_all")
        else:
            ring = sum(2 * keys + min(keys, ends) for ends, keys in size.attentions)
            yield "sent by attention", ring * share, of.over("cp") - of.over("cp", "all_reduce")
        n = of.mesh.devices
        yield "sent for gradients", 2 * (n - 1) / n * size.parameters, of.all_sent - of.over("cp") + of.over(
            "cp", "all_reduce")  # fmt: skip
        kept = _kept(of) + (share * size.masks if heads else 0)
        yield "kept for the backward pass", kept, of.kept

    return says


def _kept(of: _Facts) -> float:
    return sum(value.type.nbytes for value in of.size.saved) / of.mesh.devices


def _experts(of: _Facts) -> Says:
    parts = dict(of.mesh.axes)["ep"]
    moved = 4 * sum(rows for _, rows in of.size.dispatched) / of.mesh.devices * (parts - 1) / parts
    yield "tokens sent to experts", moved, of.over("ep", "all_to_all")


FORMULAS: dict[str, Any] = {
    "data_parallel": _zero(0), "zero1": _zero(1), "zero2": _zero(2), "zero3": _zero(3), "megatron": _megatron(False),
    "megatron_sp": _megatron(True), "context_parallel": _context(False), "ulysses": _context(True),
    "expert_parallel": _experts, "zero1_ep": _experts,
}  # fmt: skip


def show(rows: list[Row], off: float = OFF) -> None:
    """A line for each formula, with its ratio to the figure; a mark where they are further apart than `off`."""
    from costmodel import format_bytes

    for row in rows:
        head = f"{row['model']:<28} {row['plan']:<17}"
        if "refused" in row:
            print(f"{head} does not fit: {row['refused'].partition(': ')[2] or row['refused']}"[:200])
            continue
        ratio = row["figure"] / row["formula"] if row["formula"] else float(row["figure"] == 0)
        mark = "" if abs(ratio - 1) <= off else " *"
        sizes = f"{format_bytes(row['formula']):>12} {format_bytes(row['figure']):>12}"
        print(f"{head} {row['what']:<27} {sizes} {ratio:7.3f}{mark}")


def summary(rows: list[Row], off: float = OFF) -> str:
    """How many formulas hold, and how many plans fit."""
    known = [row for row in rows if "formula" in row]
    near = [row for row in known if row["formula"] and abs(row["figure"] / row["formula"] - 1) <= off]
    refused = sum("refused" in row for row in rows)
    return f"{len(near)} of {len(known)} figures within {100 * off:.0f} % of their formula; {refused} plans do not fit"


def main(arguments: list[str]) -> int:
    """Measure each model in a process of its own. The exit code."""
    from benchmarks.fresh import measured, tell
    from benchmarks.model_zoo import ZOO

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=list(ZOO))
    parser.add_argument("--plans", nargs="+", choices=list(MESHES), default=list(MESHES))
    parser.add_argument("--off", type=float, default=OFF, help="how far a figure may be from its formula, as a share")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of a table")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.models:
        (found,) = measured(measure, [(name, options.plans)], name)
        rows += found
        if not options.json:
            show(found, options.off)
            sys.stdout.flush()
    if options.json:
        tell(rows, True, show)
    print(summary(rows, options.off), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
