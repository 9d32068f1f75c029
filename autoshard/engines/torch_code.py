"""An operator's meaning on torch as the text of a function: torch's own operators, as tracing finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from autoshard.core.tensortype import TensorType
from autoshard.engines.literals import is_short, packed
from autoshard.engines.torch_library import to_numpy, torch_dtype

_SAME = ("aten.detach.default", "aten.lift_fresh_copy.default", "aten.alias.default")
"""Operators that give their operand."""
_SHAPES = ("aten.view.default", "aten.expand.default", "aten.reshape.default", "aten._unsafe_view.default")
_AS_CALLED = {"aten.view.default": "aten.reshape", "aten._unsafe_view.default": "aten.reshape"}
"""Shapes of what was traced may be views where those of what comes at run time, of other strides, are none."""
_DEFAULTS = ("device", "pin_memory", "layout", "memory_format")


def function_text(name: str, call: Callable, operands: Sequence[TensorType]) -> str:
    """`def name(x0, x1): ...`, which computes what `call` does of operands of these types."""
    examples = [torch.empty(of.shape, dtype=torch_dtype(of.dtype.numpy)) for of in operands]
    graph = make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    return _TorchText(graph).function(name)


class _TorchText:
    def __init__(self, graph: Any) -> None:
        self.graph, self.names = graph, {}
        self.lines: list[str] = []

    def function(self, name: str) -> str:
        graph: Any = self.graph.graph
        graph.eliminate_dead_code()
        inputs = []
        for node in graph.nodes:
            if node.op == "placeholder":
                self.names[node] = f"x{len(inputs)}"
                inputs.append(self.names[node])
            elif node.op == "get_attr":
                self.names[node] = f"c{len(self.names)}"
                self.lines.append(f"{self.names[node]} = {_constant(getattr(self.graph, node.target))}")
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                made = node.args[0]
                self.lines.append(f"return {self.value(made[0] if len(made) == 1 else tuple(made))}")
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def {name}({', '.join(inputs)}):\n{body}"

    def _call(self, node: Any) -> None:
        target = str(node.target)
        if target in _SAME or _changes_nothing(node, target):
            self.names[node] = self.names[node.args[0]]
            return
        self.names[node] = f"y{len(self.names)}"
        if getattr(node.target, "__name__", "") == "getitem":
            self.lines.append(f"{self.names[node]} = {self.value(node.args[0])}[{node.args[1]}]")
            return
        if not target.startswith("aten."):
            raise NotImplementedError(f"{target} is none of torch's own operators")
        called = _called(node, target)
        args = [self.value(one) for one in node.args]
        args += [f"{key}={self.value(one)}" for key, one in node.kwargs.items() if key not in _DEFAULTS]
        self.lines.append(f"{self.names[node]} = {called}({', '.join(args)})")

    def value(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self.names[value]
        if isinstance(value, list | tuple):
            inside = ", ".join(map(self.value, value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
        if isinstance(value, float) and value - value != 0:
            return f"float({str(value)!r})"
        if isinstance(value, torch.dtype):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        raise NotImplementedError(f"{value!r} has no text")


def _called(node: Any, target: str) -> str:
    """How the text calls an operator: those that make tensors of no other by torch's function, which makes them on the
    device that is the default one when the text runs."""
    if "device" in node.kwargs and not node.all_input_nodes:
        return f"torch.{target.split('.')[1]}"
    return _AS_CALLED.get(target) or (target.removesuffix(".default") if target.count(".") > 1 else target)


def _changes_nothing(node: Any, target: str) -> bool:
    """Whether it only says again what shape its operand has, or turns no dims."""
    if target == "aten.permute.default":
        return list(node.args[1]) == sorted(node.args[1])
    if target not in _SHAPES or not isinstance(node.args[0], torch.fx.Node):
        return False
    before, after = (one.meta.get("val") for one in (node.args[0], node))
    return before is not None and after is not None and before.shape == after.shape


def _constant(raw: torch.Tensor) -> str:
    array = to_numpy(raw)
    if is_short(array):
        return f"torch.tensor({array.tolist()!r}, dtype={raw.dtype})"
    return packed(array)
