"""One action of a rank of a pipeline, and its text: `2F0` is the forward of stage 2 for micro batch 0.

The text is that of `torch.distributed.pipelining` (2.13): stage, kind, micro batch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from autoshard.util.errors import ScheduleError, shortened
from autoshard.util.text import natural

FORWARD, BACKWARD = "F", "B"
INPUT_GRADIENT, WEIGHT_GRADIENT = "I", "W"
SEND_FORWARD, RECEIVE_FORWARD = "SEND_F", "RECV_F"
SEND_BACKWARD, RECEIVE_BACKWARD = "SEND_B", "RECV_B"

COMPUTE = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BACKWARD)
"""Kinds that occupy a rank. A backward is an input gradient and a weight gradient in one."""
SENDS = {SEND_FORWARD: RECEIVE_FORWARD, SEND_BACKWARD: RECEIVE_BACKWARD}
"""Kinds that send, and the kind that receives what they send."""
RECEIVES = {receive: send for send, receive in SENDS.items()}
MOST_INDEX = 2**20
"""Stages, and micro batches, of a schedule at most: a file cannot ask for more."""

_TEXT = re.compile(r"(\d+)([A-Z_]+?)(\d+)")


class Action(NamedTuple):
    """What is done once: `kind` is one of COMPUTE, of SENDS, or of RECEIVES.

    SEND_F of stage s sends what its forward made to stage s + 1, SEND_B what its input gradient made to stage s - 1;
    a receive bears the stage that receives.

    >>> Action.parse("2F0")
    Action(kind='F', stage=2, micro=0)
    >>> str(Action("SEND_B", 3, 1))
    '3SEND_B1'
    """

    kind: str
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro}"

    @property
    def computes(self) -> bool:
        """Whether it occupies its rank."""
        return self.kind in COMPUTE

    @property
    def pieces(self) -> tuple[str, ...]:
        """The kinds of pieces of its stage that it runs: of a whole backward both gradients."""
        return (INPUT_GRADIENT, WEIGHT_GRADIENT) if self.kind == BACKWARD else (self.kind,)

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read `2F0`, `0SEND_F3`.

        Raises:
            ScheduleError: it is of another form, or of a kind that a schedule does not hold.
        """
        found = _TEXT.fullmatch(text)
        if found is None or found[2] not in (*COMPUTE, *SENDS, *RECEIVES):
            raise ScheduleError(
                f"{shortened(repr(text), 80)} is no action; write stage, kind, micro batch, such as '2F0', where the "
                f"kind is one of {', '.join((*COMPUTE, *SENDS, *RECEIVES))}"
            )
        stage, micro = natural(found[1], ScheduleError), natural(found[3], ScheduleError)
        if max(stage, micro) >= MOST_INDEX:
            raise ScheduleError(f"action {text}: stages and micro batches are numbered below {MOST_INDEX}")
        return cls(found[2], stage, micro)
