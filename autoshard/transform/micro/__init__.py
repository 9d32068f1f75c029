"""A training step cut in time: the batch in m parts, one after the other, gradients added up.

A micro batch is what a rank of a mesh axis of size m would hold if the axis lay in time. So the rules of the operators
say everything: which values have the batch dim, what a part of it leaves partial (a gradient: its parts are summed),
and which operators need the whole batch (those are refused).

`forms` has the forms of values, `classify` finds the form of each value of a step, `body` writes what is done for one
micro batch, `accumulate` puts it into a loop with what is done once before and after.
"""

from autoshard.transform.micro.accumulate import accumulate

__all__ = ["accumulate"]
