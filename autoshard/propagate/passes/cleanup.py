"""What is left to do at the end: operations that nobody needs any more."""

from __future__ import annotations

from autoshard.propagate.mutable_ir import Block, MutableModule, Operation
from autoshard.propagate.passes.edit import is_pure, is_used

_STRUCTURE = {"Function", "Return", "Yield"}


def drop_dead(module: MutableModule) -> None:
    """Erase operations without effects whose results nobody uses, and what then is unused.

    With `cancel_sums` this is Shardy's last pass, canonicalize with the patterns of sdy-collective, as far as these
    apply to the collectives that the passes before it make.
    """
    for function in module.op.blocks[0]:
        _sweep(function.blocks[0])


def _sweep(block: Block) -> None:
    """Backwards, so that users go before what they use; what a block holds goes after what holds it."""
    op = block.last
    while op is not None:
        before = op.prev
        if _is_dead(op):
            op.erase()
        else:
            for inner in op.blocks:
                _sweep(inner)
        op = before


def _is_dead(op: Operation) -> bool:
    return not is_used(op) and op.operator.name not in _STRUCTURE and is_pure(op)
