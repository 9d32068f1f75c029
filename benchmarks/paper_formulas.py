"""Formulas of the papers on named plans, from sizes of a model: bytes that a device holds, keeps and sends.

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
  their columns, and scattered behind, are tokens once for each expert, as where products combine their rows.
- Ulysses (Jacobs et al. 2023, 2309.14509, section 3.2): queries, keys, values and results of attention change from
  sequences to heads and back, forward and backward.
- Ring attention (Liu et al. 2023, 2310.01889, section 3): keys and values go round forward, and backward again with
  their gradients; or for these the queries and the results' gradients, which they come from, if that is less.
- Experts (Lepikhin et al. 2020, 2006.16668, section 3): tokens go to their experts and back, forward and backward, if
  these have gradients; weights of experts lie in parts, by experts. Together with ZeRO (Rajbhandari et al. 2022,
  2201.05596, section 5) they are one of several copies.
- Several together: ZeRO-3 over one axis and copies over another (Zhao et al. 2023, 2304.11277, section 3.2.2), whose
  gradients are summed; ZeRO-3 of what Megatron leaves to each rank, where gradients of what lies on all tensor ranks
  are scattered over the others first.

Norms, biases behind rows and tables whose rows do not divide (the papers pad them) lie on all ranks; losses of a split
vocabulary sum three numbers for each token; of tables of positions the rows that are looked up are gathered and have
gradients, unless positions are in parts. Masks that all heads share lie with all of them. What is kept is counted in
the plan's program: the blocks that are there when the backward pass begins, with copies in another layout: with
attention by heads, its own of queries, keys and values. Sequences that do not divide lie whole. Where an operator does
what no paper has, the formula of what is sent is left out, and the operator named (`paper_scope.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from autoshard.ir.graph import Node, Value
from benchmarks.paper_scope import named

Says = Iterator[tuple[str, "float | str", float]]
"""What is counted, the formula or why there is none, and the plan's figure."""


def _zero(stage: int, keep: bool = False) -> Callable[[Any], Says]:
    def says(of: Any) -> Says:
        n, size = of.mesh.devices, of.size
        yield from _held(of, n if stage == 3 else 1, n if stage >= 2 else 1, n if stage else 1)
        gathered = {0: size.gradients, 1: size.parameters, 2: size.parameters}.get(
            stage, size.gradients + (0 if keep else size.used_back)
        )
        sent = (n - 1) / n * (size.gradients + gathered + 4 * size.statistics)
        yield "sent", _unless(of.across_samples, sent), of.all_sent

    return says


def _hybrid(of: Any) -> Says:
    copies, parts = (size for _, size in of.mesh.axes)
    n, size = of.mesh.devices, of.size
    yield from _held(of, parts, parts, parts)
    weights = (parts - 1) / parts * (2 * size.gradients + size.used_back)
    sent = weights + 2 * (copies - 1) / copies * size.gradients / parts + 4 * (n - 1) / n * size.statistics
    yield "sent", _unless(of.across_samples, sent), of.all_sent


def _held(of: Any, parameters: int, gradients: int, states: int) -> Says:
    yield "parameters held", of.size.parameters / parameters, of.held_parameters
    left = of.size.parameters - of.in_loops_of_layers  # what loops collect is scattered in each turn, in all stages
    held = left / gradients + of.in_loops_of_layers / (gradients if gradients > 1 else states)
    yield "gradients held", held, of.held_gradients
    yield "states held", of.size.states / states, of.held_states


def _unless(nodes: list[Node], formula: float) -> float | str:
    """The formula, or which operators it does not have."""
    return f"the paper has no {named(nodes)}" if nodes else formula


def _megatron(sequence: bool, keep: bool = False, zero: bool = False) -> Callable[[Any], Says]:
    def says(of: Any) -> Says:
        (data, tensor), size = (parts for _, parts in of.mesh.axes), of.size
        inside = [one for one in size.trained if size.in_parts(one) or sequence and size.by_tokens(one)]
        outside = [one for one in size.trained if one not in inside]
        held = _bytes(inside) / tensor + _bytes(outside)
        by_channels = of.statistics_over_tokens if sequence else []
        yield "parameters held", _unless(by_channels, held / (data if zero else 1)), of.held_parameters
        without = of.across_samples + (of.across_tokens if sequence else [])
        split, whole = (sum(map(size.gradient, some)) for some in (inside, outside))
        shards = 2 * (tensor - 1) / tensor * whole / data if zero else 0
        loops = of.in_loops
        yield "sent over tp", loops or _unless(without, _sums(of, sequence, keep) + shards), of.over("tp")
        few = [one for one in outside if 2 * size.gradient(one) <= one.type.nbytes] if sequence else []
        rows = sum(map(size.gradient, few))  # of positions: each rank sums its own up, which are then gathered
        split, whole = split + (0 if zero else rows), whole - (0 if zero else rows)
        every = data * tensor if sequence and not zero else data
        sums = 2 * (data - 1) / data * (split / tensor + 2 * size.statistics_in_parts)
        sums += 2 * (every - 1) / every * whole
        if zero:
            back = sum(one.type.nbytes for one in inside if size.is_used_back(one)) / tensor
            back += sum(one.type.nbytes for one in outside if size.is_used_back(one))
            sums = sums / 2 + (data - 1) / data * (split / tensor + whole + back)
        yield "sent for weights", _unless(without, sums), of.over("dp") + of.over("dp.tp")
        if sequence:
            yield "kept for the backward pass", loops or _unless(without, _kept_by_tokens(of, keep)), of.kept

    return says


def _bytes(values: Iterable[Value]) -> int:
    return sum(one.type.nbytes for one in values)


def _sums(of: Any, sequence: bool, keep: bool) -> float:
    """Bytes that a device sends for f and g, and what they come to with split sequences."""
    (data, tensor), size = (parts for _, parts in of.mesh.axes), of.size
    sums = size.leaving + size.entering + size.scores
    if sequence:
        again = 0 if keep else size.entering
        sums += (size.returning - size.leaving + again + _bytes(size.beginnings)) / 2
        sums += (1 if keep else 1.5) * size.dispatched + size.combined
    return (2 * (tensor - 1) / tensor * sums + size.misplaced) / data


def _kept_by_tokens(of: Any, keep: bool) -> float:
    (data, tensor), size = (parts for _, parts in of.mesh.axes), of.size
    whole = _bytes(size.before | size.masks | (size.taken if keep else set()))
    return _kept(of, size.saved) + (tensor - 1) / tensor * whole / data


def _context(heads: bool, keep: bool = False) -> Callable[[Any], Says]:
    def says(of: Any) -> Says:
        (data, parts), size = (parts for _, parts in of.mesh.axes), of.size
        share = (parts - 1) / parts / data
        if heads:
            moved = sum(2 * ends + 2 * keys for ends, keys in size.attentions) / parts
            yield "sent by attention", moved * share, of.over("cp", "all_to_all")
        else:
            ring = sum((1 if keep else 2) * keys + min(keys, ends) for ends, keys in size.attentions)
            yield "sent by attention", ring * share, of.by_attention("cp")
        n = of.mesh.devices
        sent = 2 * (n - 1) / n * size.parameters
        yield "sent for weights", _unless(of.across_samples, sent), of.for_weights
        kept = _kept(of, size.saved_by_heads if heads else size.saved_but_keys if keep else size.saved)
        kept += share * (sum(map(size.sequence_that_is_whole, size.saved)) + (_bytes(size.masks) if heads else 0))
        kept += sum(keys for _, keys in size.attentions) / data if keep else 0
        yield "kept for the backward pass", _unless(of.across_samples, kept), of.kept

    return says


def _kept(of: Any, saved: Iterable[Value]) -> float:
    return _bytes(saved) / of.mesh.devices


def _experts(zero: int) -> Callable[[Any], Says]:
    def says(of: Any) -> Says:
        sizes, size, n = dict(of.mesh.axes), of.size, of.mesh.devices
        parts = math.gcd(sizes["ep"], size.number_of_experts)
        data = n // parts
        experts, states = size.of_experts
        others = size.parameters - experts
        yield "parameters held", size.parameters / n if zero == 3 else others + experts / parts, of.held_parameters
        yield "states held", size.states / n if zero else size.states - states + states / parts, of.held_states
        moved = size.exchanged / n * (parts - 1) / parts
        yield "tokens sent to experts", _unless(of.across_samples, moved), of.exchanged
        back = (0, 0) if zero != 3 else size.used_back_by_experts
        weights = (n - 1) / n * (2 * others + back[0]) + (data - 1) / data * (2 * experts + back[1]) / parts
        yield "sent for weights", _unless(of.across_samples, weights), of.all_sent - of.exchanged

    return says


FORMULAS: dict[str, Callable[[Any], Says]] = {
    "data_parallel": _zero(0), "zero1": _zero(1), "zero2": _zero(2), "zero3": _zero(3), "zero3_keep": _zero(3, True),
    "hsdp": _hybrid, "megatron": _megatron(False), "megatron_sp": _megatron(True),
    "megatron_sp_keep": _megatron(True, True), "fsdp_tp": _megatron(True, zero=True),
    "context_parallel": _context(False), "context_parallel_keep": _context(False, True), "ulysses": _context(True),
    "expert_parallel": _experts(0), "zero1_ep": _experts(1), "fsdp_ep": _experts(3),
}  # fmt: skip
"""What each plan is said to hold, keep and send, from what is known of a plan (`plan_formulas.Facts`)."""
