"""Named plans beside the formulas of their papers: bytes that a device holds and sends, formula and figure.

    python -m benchmarks.plan_formulas [--models gpt2 llama ...] [--plans zero3 megatron ...] [--json] [--off 0.05]

Each model of `model_zoo.py` is imported once and planned by each named plan on the mesh that it is for; a plan that
does not fit says why. The formulas know the model's sizes (parameters, layers, tokens, width) and nothing of the plan:

- ZeRO (Rajbhandari et al. 2019, arXiv 1910.02054, sections 5 and 7), P bytes of parameters over n devices: parameters,
  gradients and optimizer states in n parts from the stage on that splits them; 2 (n - 1)/n P sent, in stage 3 half
  more (but for tables of words, which the backward pass does not need).
- Megatron (Shoeybi et al. 2019, 1909.08053, section 3): weights in t parts; in each layer two all-reduces of the
  tokens forward and two backward, one for the embedding and one for the head. With split sequences (Korthikanti et al.
  2022, 2205.05198, section 4) as much is sent, and what is kept for the backward pass is in t parts, too. The paper
  lays fused columns (queries, keys and values in one weight) out by heads; a model that has them one behind the other
  sends what the rank that lacks most of them lacks, forward and backward. With split sequences each rank sends its own
  tokens to experts: what is then gathered for their columns, and scattered behind, are tokens once for each expert.
- Ulysses (Jacobs et al. 2023, 2309.14509, section 3.2): queries, keys, values and results of attention change from
  sequences to heads and back, forward and backward.
- Ring attention (Liu et al. 2023, 2310.01889, section 3): keys and values go round forward, and backward again with
  their gradients; or backward the queries and the results' gradients, which these come from, if that is less.
- Experts (Lepikhin et al. 2020, 2006.16668): tokens go to their experts and back, forward and backward.

Vectors (biases, norms) and tables whose rows do not divide (the papers pad them) lie on all ranks; losses of a split
vocabulary sum three numbers for each token.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
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
        facts = _Facts(planned, name)
        for what, formula, figure in FORMULAS[plan](facts):
            rows.append({"model": name, "plan": plan, "what": what, "formula": formula, "figure": figure})
    return rows


class _Facts:
    """Sizes of a model, and what a plan of it holds and sends."""

    def __init__(self, planned: Any, name: str) -> None:
        from autoshard.search.named.structure import Structure
        from benchmarks import model_zoo

        self.plan, self.graph, self.mesh = planned.plan, planned.graph, planned.plan.mesh
        self.structure = Structure(self.graph)
        self.sent: Counter[tuple[str, str]] = Counter()
        for one in planned.program.collectives:
            self.sent[one.step.kind, str(one.step.groups)] += one.nbytes_moved
        self.trained = [update for update in self.structure.updates if update.parameter is not None]
        kinds = (*model_zoo.DECODERS, *model_zoo.ENCODERS)
        self.layers = 2 if name in kinds else 0
        self.is_vocabulary_model = bool(self.layers)
        width, tokens = model_zoo.WIDTH, model_zoo.BATCH * model_zoo.LENGTH
        self.stream = 4 * tokens * width
        self.tokens = 4 * tokens

    # -- of the model alone

    @property
    def parameters(self) -> int:
        return sum(one.parameter.type.nbytes for one in self.trained if one.parameter is not None)

    @property
    def looked_up(self) -> int:
        """Bytes of tables that rows are looked up in, and no product uses: the backward pass does not need them."""
        tables = {node.operands[0] for node, _ in self.structure.lookups}
        trained = [one.parameter for one in self.trained if one.parameter is not None and one.parameter in tables]
        return sum(one.type.nbytes for one in trained if len(self._forward_users(one)) == 1)

    def _forward_users(self, value: Any) -> list[Any]:
        forward = set(self.structure.forward)
        return [user for user, _ in self.graph.users[value] if user in forward]

    @property
    def states(self) -> int:
        return sum(state.type.nbytes for one in self.trained for state in one.states)

    def matrices(self, parts: int) -> tuple[float, float]:
        """Bytes of parameters that are matrices, in so many parts; and of what lies whole: vectors, kernels of
        convolutions, and tables (also of positions, that are just added) whose rows so many parts do not divide."""
        known = [one.parameter for one in self.trained if one.parameter is not None and one.parameter.type.rank > 1]
        split = [one for one in known if self._is_factor(one) or not self._rows_of(one) % parts]
        some = sum(one.type.nbytes for one in split)
        return some / parts, self.parameters - some

    def _is_factor(self, value: Any) -> bool:
        """Whether a parameter, or another form of it (cast, turned), is a factor of a product."""
        users = self._forward_users(value)
        known = {use.node for use in self.structure.weight_uses}
        forms = [node.results[0] for node in users if len(node.operands) == 1 and node.results]
        return any(node in known and "Conv" not in node.op.name for node in users) or any(map(self._is_factor, forms))

    def _rows_of(self, value: Any) -> int:
        """The rows of a table; 1 of a kernel."""
        if any("Conv" in node.op.name for node in self._forward_users(value)):
            return 1
        return next((size for size in value.type.shape if size > 1), 1)

    @property
    def attentions(self) -> list[tuple[int, int]]:
        """Bytes of the queries and results, and of the keys and values, of each attention of the forward pass."""
        found = [(node.results[0], *node.operands) for node in self.structure.forward if node.op.name == "Attention"]
        return [
            (query.type.nbytes + made.type.nbytes, key.type.nbytes + value.type.nbytes)
            for made, query, key, value, *_ in found
        ]

    @property
    def rows(self) -> list[int]:
        """Bytes of the tokens that go to experts, by layer."""
        return [node.results[0].type.nbytes for node in self.structure.forward if node.op.name == "DispatchTokens"]

    def misplaced(self, parts: int) -> float:
        """Bytes of columns of fused products (queries, keys and values beside each other in one weight) that ranks
        lack of their own, forward and backward: they have as many columns of all, but not their part of each."""
        return sum(
            _lacking([piece.type.shape[-1] for piece in node.results], parts) * node.operands[0].type.nbytes
            for node in self.structure.forward
            if node.op.name == "Split" and self._is_cut_behind(node)
        )

    @staticmethod
    def _is_cut_behind(node: Any) -> bool:
        whole = node.operands[0].type.shape
        return all(piece.type.shape[:-1] == whole[:-1] for piece in node.results)

    # -- of the plan

    def local(self, value: Any, layout: Any = None) -> int:
        from autoshard.cost.blocks import local_nbytes

        return local_nbytes(value.type, layout or self.plan.layouts[value])

    @property
    def held_parameters(self) -> int:
        return sum(self.local(one.parameter) for one in self.trained)

    @property
    def held_states(self) -> int:
        return sum(self.local(state) for one in self.trained for state in one.states)

    @property
    def held_gradients(self) -> int:
        """As they wait for the update."""
        return sum(self.local(one.gradient) for one in self.trained if one.gradient is not None)

    @property
    def saved(self) -> tuple[int, int]:
        """Bytes that the forward pass leaves for the backward one, but for what is made of parameters or of nothing:
        of all devices, and of one."""
        forward = set(self.structure.forward)
        values = [
            value for node in self.structure.forward for value in node.results
            if value in self.structure.fed and not node.op.view
            and any(user not in forward for user, _ in self.graph.users[value])
        ]  # fmt: skip
        return sum(value.type.nbytes for value in values), sum(map(self._kept, values))

    def _kept(self, value: Any) -> int:
        """Bytes of a value as it is left or, where that is less, as all take it that use it."""
        taken = {self.plan.strategy(user).operand_layouts[i] for user, i in self.graph.users[value]}
        return min([self.local(value), *(self.local(value, one) for one in taken if len(taken) == 1)])

    def over(self, axes: str, *kinds: str) -> float:
        """Bytes that a device sends over mesh axes, by the collectives of these kinds (all by default)."""
        return sum(size for (kind, of), size in self.sent.items() if of == axes and (not kinds or kind in kinds))

    @property
    def all_sent(self) -> float:
        return sum(self.sent.values())


def _lacking(pieces: list[int], parts: int) -> float:
    """Of columns in contiguous parts, the share of all that a rank has to get to have its part of each piece (of each
    the rank that lacks most), and then to have its part of all again (the rank that lacks most of that)."""
    total, start, forward, backward = sum(pieces), 0, 0.0, [0.0] * parts
    for size in pieces:
        mine = [(start + rank * size / parts, start + (rank + 1) * size / parts) for rank in range(parts)]
        own = [(rank * total / parts, (rank + 1) * total / parts) for rank in range(parts)]
        has = [_overlap(one, other) for one, other in zip(mine, own, strict=True)]
        forward += max(size / parts - one for one in has)
        for rank in range(parts):
            backward[rank] += _overlap((start, start + size), own[rank]) - has[rank]
        start += size
    return (forward + max(backward)) / total


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(min(one[1], other[1]) - max(one[0], other[0]), 0.0)


Says = Iterator[tuple[str, float, float]]


def _zero(stage: int) -> Any:
    def says(of: _Facts) -> Says:
        n = of.mesh.devices
        yield "parameters held", of.parameters / (n if stage == 3 else 1), of.held_parameters
        yield "gradients held", of.parameters / (n if stage >= 2 else 1), of.held_gradients
        yield "states held", of.states / (n if stage else 1), of.held_states
        again = of.parameters - of.looked_up if stage == 3 else 0
        yield "sent", (n - 1) / n * (2 * of.parameters + again), of.all_sent

    return says


def _megatron(sequence: bool) -> Any:
    def says(of: _Facts) -> Says:
        data, tensor = (size for _, size in of.mesh.axes)
        split, whole = of.matrices(tensor)
        yield "parameters held", split + whole, of.held_parameters
        if of.is_vocabulary_model:
            sums = (4 * of.layers + 2) * of.stream + 3 * of.tokens
            if sequence:
                sums += 2 * (sum(of.rows) - len(of.rows) * of.stream)
            moved = of.misplaced(tensor)
            yield "sent over tp", (2 * (tensor - 1) / tensor * sums + moved) / data, of.over("tp")
        every = data * tensor if sequence else data
        sent = 2 * (data - 1) / data * split + 2 * (every - 1) / every * whole
        yield "sent for gradients", sent, of.over("dp") + of.over("dp.tp")
        if sequence:
            whole, held = of.saved
            yield "kept for the backward pass", whole / (data * tensor), held

    return says


def _context(heads: bool) -> Any:
    def says(of: _Facts) -> Says:
        data, parts = (size for _, size in of.mesh.axes)
        share = (parts - 1) / parts / data
        if heads:
            moved = sum(2 * ends + 2 * keys for ends, keys in of.attentions) / parts
            yield "sent by attention", moved * share, of.over("cp", "all_to_all")
        else:
            ring = sum(keys + min(2 * keys, ends) for ends, keys in of.attentions)
            yield "sent by attention", ring * share, of.over("cp") - of.over("cp", "all_reduce")
        n = of.mesh.devices
        yield "sent for gradients", 2 * (n - 1) / n * of.parameters, of.all_sent - of.over("cp") + of.over(
            "cp", "all_reduce")  # fmt: skip
        whole, held = of.saved
        yield "kept for the backward pass", whole / n, held

    return says


def _experts(of: _Facts) -> Says:
    parts = dict(of.mesh.axes)["ep"]
    moved = 4 * sum(of.rows) / of.mesh.devices * (parts - 1) / parts
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
