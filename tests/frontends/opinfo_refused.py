"""Float operators of torch's list that autoshard refuses, and why; those that a comparison cannot be made of."""

_DATA = "the size of the result, or whether the program goes on, depends on the data"
_LDL = "LDL factors are in a form that only LAPACK reads"
_CHUNKED = "a fused operator of torch's that computes its own gradient; use cross_entropy of linear"

REFUSALS = {
    "allclose": _DATA,
    "argwhere": _DATA,
    "as_strided_scatter": "its gradient goes by how tensors lie in torch's memory",
    "_batch_norm_with_update": "an operator that torch's own passes make; use batch_norm",
    "chalf": "there is no complex number of two halves",
    "combinations": _DATA,
    "equal": _DATA,
    "hash_tensor": "a hash of all bits in the order of memory",
    "histogram": "edges and weights are laid out by the data",
    "item": _DATA,
    "linalg.ldl_factor": _LDL,
    "linalg.ldl_factor_ex": _LDL,
    "linalg.ldl_solve": _LDL,
    "linalg.lstsq": _DATA,
    "linalg.lstsq/grad_oriented": _DATA,
    "masked_select": _DATA,
    "max_pool2d_with_indices_backward": "a gradient that torch makes itself; it is made here of max_pool2d",
    "narrow": "the place to begin at is a tensor: torch.export cannot tell the size",
    "nextafter": "it has no gradient, in torch neither",
    "nn.functional.fractional_max_pool2d": "windows are placed by random numbers",
    "nn.functional.fractional_max_pool3d": "windows are placed by random numbers",
    "nn.functional.linear_cross_entropy/chunked": _CHUNKED,
    "nn.functional.linear_cross_entropy/chunked_none": _CHUNKED,
    "nonzero": _DATA,
    "nonzero_static": "which elements it finds is a matter of the whole tensor",
    "resize_as_": "the memory behind a tensor is read under another shape",
    "_segment_reduce/lengths": "segments are data",
    "_segment_reduce/offsets": "segments are data",
    "tensor_split": "the places to split at are a tensor: the sizes depend on the data",
    "unique": _DATA,
    "unique_consecutive": _DATA,
}
NOT_COMPARED = {
    "resize_": "reads memory that torch leaves as it finds it",
    "broadcast_shapes": "takes and returns sizes, no tensors",
}
SLOW = {
    "histogramdd": "torch's samples take minutes",
}
"""Left to the whole list in `benchmarks/opinfo.py`."""
