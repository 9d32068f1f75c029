"""What a micro batch that others follow holds at most, beside the sums of gradients: `micro_batch_peak`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from autoshard.cost.program_memory import LiveRange, program_peak, program_spans
from autoshard.partition.program import Collective, Compute, Instruction, Program, Register, Start, Wait
from costmodel import live_bytes


def micro_batch_peak(
    program: Program,
    early: Collection[Instruction],
    late: Collection[Instruction],
    leaving: Collection[Register],
    stays: Collection[Register],
    copies: int = 0,
) -> int:
    """Bytes at most while a micro batch is computed, without gradients: these are added to their sums as they are made.

    Args:
        early: what only brings parameters to their users.
        late: what is done after the last micro batch.
        leaving: the gradients.
        stays: what is kept for all micro batches.
        copies: as `step_peak`.
    """
    after = [started_by(one) in late for one in program.instructions]
    end, spans = len(after) - 1, []
    for span in gathered_again(program, early, [*program_spans(program), *_more(program, copies)]):
        what = span.what
        if isinstance(what, Register) and (what in leaving or span.first <= end and after[span.first]):
            continue
        spans.append((span.first, end if what in stays else span.last, span.nbytes))
    return int(np.where(after, 0, live_bytes(spans, len(after))).max(initial=0))


def kept(program: Program, early: Collection[Instruction]) -> tuple[int, int]:
    """Bytes that lie from the forward pass to the backward: activations, and weights that `early` instructions have
    brought to their users."""
    given, brought = set(program.inputs), {of for one in program.instructions if one in early for of in one.results}
    begins = _backward(program)
    activations = weights = 0
    for span in gathered_again(program, early, list(program_spans(program))):
        if span.first < begins <= span.last and isinstance(span.what, Register) and span.what not in given:
            activations += 0 if span.what in brought else span.nbytes
            weights += span.nbytes if span.what in brought else 0
    return activations, weights


def _backward(program: Program) -> int:
    """Where the backward pass begins."""
    order = program.instructions
    return next((i for i, one in enumerate(order) if any(_is_slope(of) for of in one.results)), len(order))


def step_peak(program: Program, copies: int = 0) -> int:
    """Bytes at most while a step is computed.

    Args:
        copies: how many tensors of the size of logits the gradient of the loss takes beside its operands and result.
    """
    peak = program_peak(program)
    if not copies:
        return peak
    spans = [one[2:] for one in (*program_spans(program), *_more(program, copies))]
    return max(peak, int(live_bytes(spans, max(len(program.instructions), 1)).max(initial=0)))


def _more(program: Program, copies: int) -> Iterator[LiveRange]:
    """What the gradient of the loss takes for itself."""
    for moment, one in enumerate(program.instructions):
        of = one.composite or one.node if copies and isinstance(one, Compute) else None
        if of is not None and of.op.name == "SparseSoftmaxCrossEntropyGrad" and one.results:
            yield LiveRange(one, "scratch", moment, moment, copies * one.results[0].local.nbytes)


def gathered_again(program: Program, early: Collection[Instruction], spans: Sequence[LiveRange]) -> list[LiveRange]:
    """The spans, where activations that both passes need gathered lie in parts in between: they are gathered again
    behind other work (Korthikanti et al. 2022, section 4.2.2)."""
    order = program.instructions
    begins = _backward(program)
    parts = {}
    for one in order[:begins]:
        what = started_by(one)
        if isinstance(what, Collective) and what.step.kind == "all_gather" and what not in early:
            parts[what.result] = what.operand
    reads = {of: i for i, one in enumerate(order[:begins]) for of in one.operands if of in parts}
    last = {one.what: one.last for one in spans if one.what in parts and one.last >= begins}
    needed = {parts[of]: moment for of, moment in last.items()}
    found = []
    for one in spans:
        if one.what in last:
            read = reads.get(one.what, one.first) if isinstance(one.what, Register) else one.first
            one = one._replace(last=max(one.first, read))
        elif isinstance(one.what, Register) and one.what in needed:
            one = one._replace(last=max(one.last, needed[one.what]))
        found.append(one)
    return found


def started_by(one: Instruction) -> Instruction:
    """What an instruction begins or ends, itself if it is in one piece."""
    whole = one.start if isinstance(one, Wait) else one
    return whole.of if isinstance(whole, Start) else whole


def _is_slope(register: Register) -> bool:
    return register.name.startswith("grad.")
