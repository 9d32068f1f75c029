"""Translators of operations of shape and position, of constants, and of collectives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from autoshard.core.tensortype import TensorType
from autoshard.frontends.stablehlo.attributes import array_of, attribute, tensor_type
from autoshard.frontends.stablehlo.bodies import read_body
from autoshard.frontends.stablehlo.constants import constant_value
from autoshard.frontends.stablehlo.table import Translation, plain, translates
from autoshard.ops.attributes import Literal

plain({"stablehlo.replica_id": "ReplicaId", "stablehlo.partition_id": "PartitionId"})


def _result(op: Any) -> TensorType:
    return tensor_type(str(op.results[0].type))


# -- values from nothing


@translates("stablehlo.constant", "sdy.constant")
def _(op: Any) -> Translation:
    of, value = _result(op), constant_value(op)
    if value.shape == of.shape and of.shape:
        return "Constant", {"value": Literal(value)}
    number = value.item()
    # One object for NaN, so that equal attributes are found equal.
    number = math.nan if isinstance(number, float) and math.isnan(number) else number
    return "Fill", {"shape": of.shape, "value": number, "dtype": of.dtype.name}


@translates("stablehlo.iota")
def _(op: Any) -> Translation:
    of = _result(op)
    return "Iota", {"shape": of.shape, "dim": attribute(op, "iota_dimension"), "dtype": of.dtype.name}


@translates("stablehlo.get_dimension_size")
def _(op: Any) -> Translation:
    dim = attribute(op, "dimension")
    return "GetDimensionSize", {"dim": dim, "size": tensor_type(str(op.operands[0].type)).shape[dim]}


# -- shapes


@translates("stablehlo.broadcast_in_dim")
def _(op: Any) -> Translation:
    return "BroadcastInDim", {"shape": _result(op).shape, "dims": attribute(op, "broadcast_dimensions")}


@translates("stablehlo.reshape")
def _(op: Any) -> Translation:
    return "Reshape", {"shape": _result(op).shape}


@translates("stablehlo.transpose")
def _(op: Any) -> Translation:
    return "Transpose", {"perm": attribute(op, "permutation")}


@translates("stablehlo.reverse")
def _(op: Any) -> Translation:
    return "ReverseV2", {"axis": attribute(op, "dimensions")}


@translates("stablehlo.pad")
def _(op: Any) -> Translation:
    names = {"low": "edge_padding_low", "high": "edge_padding_high", "interior": "interior_padding"}
    return "HloPad", {ours: attribute(op, theirs) for ours, theirs in names.items()}


@translates("stablehlo.slice")
def _(op: Any) -> Translation:
    names = {"start": "start_indices", "limit": "limit_indices", "strides": "strides"}
    return "Slice", {ours: attribute(op, theirs) for ours, theirs in names.items()}


@translates("stablehlo.concatenate")
def _(op: Any) -> Translation:
    return "Concatenate", {"dim": attribute(op, "dimension"), "of_slices": _joins_slices(op)}


def _joins_slices(op: Any) -> bool:
    """Whether all operands are slices, or all are one value or slices of it and some of them slices (Shardy)."""
    sources = [_sliced(operand) for operand in op.operands]
    if all(source is not None for source in sources):
        return True
    origins = [operand if source is None else source for operand, source in zip(op.operands, sources, strict=True)]
    return any(source is not None for source in sources) and all(one == origins[0] for one in origins)


def _sliced(value: Any) -> Any:
    """The value that this one is a slice of, if it is."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    owner = owner.operation
    return owner.operands[0] if owner.name == "stablehlo.slice" else None


# -- collectives


def _types(op: Any) -> tuple[TensorType, ...]:
    return tuple(tensor_type(str(result.type)) for result in op.results)


def _rows(op: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """The table of process numbers; -1 fills rows up, for groups of unequal size."""
    table = np.asarray(array_of(op.attributes[name]))
    return tuple(tuple(int(one) for one in row if one >= 0) for row in table)


def _grouped(op: Any) -> dict[str, Any]:
    return {"types": _types(op), "groups": _rows(op, "replica_groups")}


def _channel(op: Any) -> int:
    """The channel's number, 0 if the processes are numbered by replica alone."""
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle if "channel_handle" in op.attributes else 0


def _numbered(op: Any) -> dict[str, Any]:
    ids = "use_global_device_ids" in op.attributes
    return {**_grouped(op), "channel": _channel(op), "global_ids": ids}


@translates("stablehlo.all_reduce")
def _(op: Any) -> Translation:
    return "AllReduce", {**_numbered(op), "body": read_body(op.regions[0])}


@translates("stablehlo.all_gather")
def _(op: Any) -> Translation:
    return "AllGather", {**_numbered(op), "dim": attribute(op, "all_gather_dim")}


@translates("stablehlo.reduce_scatter")
def _(op: Any) -> Translation:
    dim = attribute(op, "scatter_dimension")
    return "ReduceScatter", {**_numbered(op), "dim": dim, "body": read_body(op.regions[0])}


@translates("stablehlo.all_to_all")
def _(op: Any) -> Translation:
    names = {"split": "split_dimension", "concat": "concat_dimension", "count": "split_count"}
    attrs = {ours: attribute(op, theirs) for ours, theirs in names.items()}
    return "AllToAll", {**_grouped(op), "channel": _channel(op), **attrs}


@translates("stablehlo.collective_permute")
def _(op: Any) -> Translation:
    return "CollectivePermute", {
        "types": _types(op),
        "pairs": _rows(op, "source_target_pairs"),
        "channel": _channel(op),
    }


@translates("stablehlo.collective_broadcast")
def _(op: Any) -> Translation:
    return "CollectiveBroadcast", {**_grouped(op), "channel": _channel(op)}


@translates("stablehlo.cross-replica-sum")
def _(op: Any) -> Translation:
    return "CrossReplicaSum", _grouped(op)
