"""Writes docs/reference/mindspore.md: MindSpore's names that are offered, their arguments, what holds their values.

python -m tests.mindspore.table
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.mindspore.cases import DOCUMENTED, LINES, RAISES
from tests.mindspore.test_names import DO, ELSEWHERE, PAGES, SIGNATURES, arguments, offered

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mindspore.md"
HEAD = """# MindSpore's names

`autoshard.mindspore` offers {count} of MindSpore's names. Each has MindSpore 2.10.0's arguments, in its order, with its
defaults (`tests/mindspore/signatures.json` is what MindSpore says of itself), and the values that MindSpore 2.10.0
gives on a CPU: MindSpore evaluated {lines} lines of code (`tests/mindspore/recorded.npz`), and the tests evaluate them
here, outside and inside of a traced model. {documented} more lines, of operators without a CPU kernel and of names that
came later, are held to the documentation's formula, and {raises} are refused by both. **Silent differences: 0.** What
is not offered raises an error that names the nearest name. `mint` is held to PyTorch (`tests/mindspore/test_mint.py`),
as are recurrent layers and attention; `dataset` has tests of its own (`tests/test_dataset.py`).

Refused, because numpy and MindSpore mean different things by it: `x.max(1)` and `x.min(1)` of a traced tensor (say
`axis=1` for the values), the mean and deviation of whole numbers (MindSpore cuts them off; cast first).

{pipelines}

## Names

The columns: arguments offered; MindSpore's further ones, which are refused by name; the number of lines whose values
are compared, or the tests that say what the name does. `python -m tests.mindspore.table` writes the table.
"""
PIPELINES = (
    (
        "in a script",
        "here",
    ),
    (
        "`set_auto_parallel_context(pipeline_stages=P)`",
        "the devices in P groups of equal size, in the order of ranks; strategies are for the devices of one "
        "group. With `mesh=` stages lie along its first axis. In stand_alone it makes no difference; "
        "data_parallel refuses it",
    ),
    (
        "`cell.pipeline_stage = s`, `nn.PipelineCell(..., stage_config=)`",
        "the stage of a cell and of all in it that bears none; what no cell names follows what it reads. "
        "Where no cell bears any, stages are made that cost alike",
    ),
    (
        "`nn.PipelineCell(network, micro_size)`",
        "micro batches, not fewer than stages. Losses, gradients and updates are those of the whole batch: "
        "MindSpore adds up the losses of the micro batches, so that a mean is `micro_size` times as large "
        "there. A batch normalization in training takes the statistics of each micro batch",
    ),
    (
        "`nn.GradAccumulationCell(network, n)`",
        "micro batches without stages, as `grad_accumulation_step=n`",
    ),
    (
        '`pipeline_config={"pipeline_scheduler": ...}`',
        '"1f1b" (default), "gpipe", "zero_bubble_v"; a name of `autoshard schedule` too. seqpipe, seqvpp and '
        "seqsmartvpp are refused",
    ),
    (
        '`"pipeline_interleave": True`, `cell.pipeline_segment = g`',
        "several stages for each group of ranks: those of segment 0, then those of segment 1, ...; in V form "
        "every other segment goes back",
    ),
    (
        "`pipeline_result_broadcast`",
        "true or not, every rank has the results",
    ),
    (
        "`dataset_strategy`, `full_batch`",
        "data is divided between the ranks of a stage, those of each stage read alike; the first stage's count",
    ),
    (
        "`enable_parallel_optimizer`, `comm_fusion`, `strategy_ckpt_load_file`, `set_algo_parameters`, "
        "`max_device_memory`",
        "as without stages, within each stage",
    ),
    (
        "`Model.train`, `fit`, `eval`, `predict`, `nn.TrainOneStepCell`, callbacks, `Model.save` and `load`",
        "as without stages; checkpoints go on in another number of stages, or none",
    ),
    (
        "`AutoParallel(...).pipeline(stages, output_broadcast, interleave, scheduler)`",
        "the same, for one network",
    ),
    (
        "`value_and_grad`, `grad`",
        "computed whole by every rank, in no stages; what `TrainOneStepCell` and `Model` do is in stages. Inside of a "
        "cell the gradient is part of the cell's graph, and split with it",
    ),
    (
        "`lazy_inline`",
        "makes no difference: equal layers are planned once",
    ),
    (
        "`save_graphs`",
        "each rank's pieces in the order of the schedule, with what it sends and receives",
    ),
    (
        "`strategy_ckpt_save_file`",
        "refused with stages",
    ),
    (
        "`nn.MicroBatchInterleaved`, `auto_pipeline`",
        "not offered",
    ),
)
"""What scripts say of pipelines, and what it means here."""
SCALES = (
    (
        "in a script",
        "here",
    ),
    (
        "`Model(..., loss_scale_manager=)`, `nn.TrainOneStepWithLossScaleCell`",
        "the scale, steps that were skipped, and what a scale's cell counts are states: in checkpoints of "
        "`Model.save`, alike on every engine and in stages. A scale that has no finite double stays",
    ),
    (
        "`LossScaleManager` of one's own",
        "the `construct(loss_scale, overflow)` of its `get_update_cell()` is part of the step; "
        "`update_loss_scale` is not called",
    ),
    (
        "a subclass of `nn.TrainOneStepCell` with a `construct`",
        "planned as written, where it returns the loss; in stand_alone, semi_auto_parallel and auto_parallel, by whole "
        "batches. Of `nn.TrainOneStepWithLossScaleCell` it is refused",
    ),
    (
        "`FixedLossScaleManager(scale, drop_overflow_update=False)`, `TrainOneStepCell(..., sens=scale)`",
        "the optimizer divides by its own `loss_scale`",
    ),
    (
        "`amp.auto_mixed_precision`, `Model(..., amp_level=)`, `amp.build_train_network`",
        'O0 to O3; "auto" is refused. Which cells and primitives are narrow is MindSpore\'s list of each; '
        "functions of `ops` are no primitives",
    ),
    (
        "`amp.DynamicLossScaler`, `amp.StaticLossScaler`, `amp.all_finite`",
        "for loops with `value_and_grad`, which every rank does whole",
    ),
    (
        "`boost_level`, `amp.custom_mixed_precision`",
        "not offered",
    ),
)
"""What scripts say of loss scales and mixed precision, and what it means here."""
COLUMNS = ("| name | arguments and defaults | not taken | values held by |", "|---|---|---|---|")


def means(pairs: tuple[tuple[str, str], ...]) -> str:
    """A table of what is said and what it means."""
    return "\n".join(f"| {said} | {here} |" for said, here in (pairs[0], ("---", "---"), *pairs[1:]))


def shown(theirs: list[list[Any]] | None) -> str:
    """Arguments as MindSpore declares them."""
    if theirs is None:
        return "anything"
    listed = [name if default is None else f"{name}={default}" for name, default, _ in theirs]
    return f"`({', '.join(listed)})`"


def held(name: str, lines: list[str], told: dict[str, str]) -> str:
    """By what the values of a name are held."""
    count = sum(bool(re.search(rf"\b{re.escape(name)}\b", line)) for line in lines)
    if count:
        return "1 line" if count == 1 else f"{count} lines"
    return f"tests/{told[name]}" if name in told else "all lines (`T`)"


def page() -> str:
    """The page as text."""
    lines = [*LINES, *RAISES, *DOCUMENTED]
    told = {name: file for file, names in DO.items() for name in names.split()}
    rows, title = [], ""
    every = sorted(set(offered()))
    for where, name in every:
        if where != title:
            title = where
            rows += ["", f"## {where}", "", *COLUMNS]
        kind = getattr(import_module(where), name)
        if isinstance(kind, type) and issubclass(kind, BaseException) or not hasattr(kind, "__module__"):
            continue
        theirs = SIGNATURES[ELSEWHERE.get(name, PAGES[where])].get(name)
        own = {one.name for one in arguments(kind)}
        taken = None if theirs is None else [one for one in theirs if one[0] in own]
        rest = [] if theirs is None else [one[0] for one in theirs if one[0] not in own]
        rows.append(f"| `{name}` | {shown(taken)} | {', '.join(rest)} | {held(name, lines, told)} |")
    pipelines = f"## Pipelines\n\n{means(PIPELINES)}\n\n## Loss scales and mixed precision\n\n{means(SCALES)}"
    counts = {"count": len(every), "lines": len(LINES), "documented": len(DOCUMENTED), "raises": len(RAISES)}
    head = HEAD.format(pipelines=pipelines, **counts)
    return "\n".join([head.rstrip(), *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
