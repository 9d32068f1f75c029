"""TorchModel: an imported PyTorch model, as a cell whose parameters have their qualified names.

Called with arrays it computes at once; in a trace it adds to a graph. So it can be planned, trained by `train_step`, or
be a part of a larger model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.frontends.kept import KeptModel
from autoshard.frontends.results import check_count, picked, plain
from autoshard.frontends.retraced import annotated_like
from autoshard.frontends.torch.importer import Importer
from autoshard.frontends.torch.reference import outputs_in_torch, state_in_torch
from autoshard.frontends.torch.table import lifted
from autoshard.frontends.torch.tensors import array_of, tensor_of, type_of_tensor, values_of
from autoshard.frontends.training import made_optimizer
from autoshard.trace.function import Traced, trace
from autoshard.trace.parameter import Parameter
from autoshard.transform.rewrites import plainly_written, rewritten_trace
from autoshard.transform.train import TrainStep, train_step
from autoshard.util.errors import GraphError, ShapeError, UnknownNameError


class TorchModel(KeptModel):
    """A PyTorch model out of an exported program.

    Its arguments are the tensors among those that it was exported for, in order; all else is fixed. What it returns is
    nested as what the module returns, a ModelOutput as a dict.

    Args:
        program: the decomposed ExportedProgram.
        name: what its graph is called.
        loss: what to take out of the result as the loss, a path such as "loss" or "output.loss"; None: all is returned.
        optimizer: makes an optimizer of autoshard.optim of the list of trained parameters; None: nothing is trained.
        wrapped: a prefix of qualified names to leave out.
    """

    framework = "PyTorch"

    def __init__(
        self,
        program: Any,
        name: str,
        loss: str | None = None,
        optimizer: Callable[[list[Parameter]], Any] | None = None,
        wrapped: str = "",
    ) -> None:
        super().__init__()
        self.program, self.name, self.loss, self.wrapped = program, name, loss, wrapped
        self.training = optimizer is not None
        self.dropped = Parameter(np.zeros((), np.int32), name="dropout.counter", requires_grad=False)
        self._inputs: dict[str, Parameter | np.ndarray | None] = {}
        self._data: dict[str, TensorType] = {}
        self._written: dict[int, Parameter] = {}
        self._tokens: set[int] = set()
        # What it came from, to compare with: a torch module and the arguments of an example.
        self.module: Any = None
        self.example: tuple[tuple, dict[str, Any]] = program.example_inputs or ((), {})
        self.imported_by_expert: Callable[[], TorchModel] | None = None
        self.recomputes: tuple[str, ...] = ()  # paths of modules that a step makes again for their gradients
        self._read_signature()
        self.optimizer = None
        if optimizer is not None:
            self.optimizer = made_optimizer(optimizer, self.trainable_params(), "from_torch")

    # -- the signature

    def _read_signature(self) -> None:
        from torch.export.graph_signature import InputKind, OutputKind

        signature = self.program.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        seen: dict[tuple, Parameter] = {}
        fakes = {node.name: node.meta.get("val") for node in self.program.graph.nodes if node.op == "placeholder"}
        for spec in signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                if hasattr(fakes.get(spec.arg.name), "dtype"):
                    self._data[spec.arg.name] = type_of_tensor(fakes[spec.arg.name])
                else:
                    self._inputs[spec.arg.name] = getattr(spec.arg, "value", None)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                tensor = self._held(spec.target)
                trained = spec.kind is InputKind.PARAMETER and tensor.requires_grad
                fixed = spec.kind is InputKind.CONSTANT_TENSOR or spec.persistent is False
                if fixed and spec.target not in changed and tensor.device.type != "meta":
                    self._inputs[spec.arg.name] = array_of(tensor)
                else:
                    self._inputs[spec.arg.name] = self._parameter(spec.target, tensor, trained, seen)
            elif spec.kind is InputKind.TOKEN:
                self._inputs[spec.arg.name] = None
            else:
                raise ShapeError(f"cannot import this program: its input {spec.arg.name} is a {spec.kind.name}")
        for place, spec in enumerate(signature.output_specs):
            if spec.kind is OutputKind.BUFFER_MUTATION or self._changes_frozen(spec):
                self._written[place] = self._by_target(spec.target)
            elif spec.kind is OutputKind.TOKEN:
                self._tokens.add(place)
            elif spec.kind is not OutputKind.USER_OUTPUT:
                raise ShapeError(
                    f"cannot import this program: its output {place} is a {spec.kind.name} ({spec.target}); modules "
                    "may change their buffers, and parameters that need no gradient, but not their inputs or other "
                    "parameters"
                )

    def _changes_frozen(self, spec: Any) -> bool:
        """Whether an output is what becomes of a parameter that is not trained, such as a mean of trained ones."""
        from torch.export.graph_signature import OutputKind

        return spec.kind is OutputKind.PARAMETER_MUTATION and not self._held(spec.target).requires_grad

    def _held(self, target: str) -> Any:
        """The tensor behind a name."""
        for held in (self.program.state_dict, self.program.constants):
            if target in held:
                return held[target]
        raise UnknownNameError(f"the exported program has no tensor for {target!r}")

    def _parameter(self, target: str, tensor: Any, trained: bool, seen: dict[tuple, Parameter]) -> Parameter:
        """The parameter of a name; tensors that are one in torch are one here, under the first name."""
        # Tied weights may come as several views of one tensor, and different tensors as parts of one: what says that
        # two are the same is where their elements lie.
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in seen:
            name = target.removeprefix(f"{self.wrapped}.") if self.wrapped else target
            seen[key] = Parameter.of_values(values_of(tensor, name), name, trained)
        return seen[key]

    def _by_target(self, target: str) -> Parameter:
        for spec in self.program.graph_signature.input_specs:
            found = self._inputs.get(spec.arg.name) if spec.target == target else None
            if isinstance(found, Parameter):
                return found
        raise UnknownNameError(f"the exported program changes {target!r}, which is none of its buffers")

    # -- as a cell

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Parameters and buffers, in torch's order."""
        found = {id(one): one for one in self._inputs.values() if isinstance(one, Parameter)}
        yield from found.values()

    def construct(self, *tensors: Any) -> Any:
        """What the module returns for these tensors; buffers that it changes take their new values."""
        check_count(self.name, self._data, tensors)
        importer = Importer(self.program, self._counted, self.training, self.wrapped)
        given = dict(zip(self._data, tensors, strict=True))
        outputs = importer.run({**self._inputs, **given})
        for place, parameter in self._written.items():
            parameter.assign(outputs[place])
        returned = [lifted(one) for i, one in enumerate(outputs) if i not in self._written and i not in self._tokens]
        return plain(_unflattened(returned, self.program.call_spec.out_spec))

    def _counted(self) -> Any:
        """The number of uses of dropout so far; every use has its own."""
        from autoshard import ops

        count = ops.identity(self.dropped)
        self.dropped.assign(ops.scalar_add(self.dropped, addend=1))
        return count

    # -- as something to plan

    @cached_property
    def step(self) -> TrainStep:
        """One step of training: loss, gradient and update.

        Raises:
            GraphError: it has no optimizer, or no loss.
        """
        if self.optimizer is None:
            raise GraphError(f"{self.name} is not trained; give from_torch a loss and an optimizer")
        return train_step(
            self._named(self._objective), self.optimizer, *self._data.values(), name=self.name, leave_unreached=True,
            rewrite=plainly_written, recompute=self.recomputes or None,
        )  # fmt: skip

    @cached_property
    def traced(self) -> Traced:
        """What is planned: the step of training if it has an optimizer, else the model (its loss, if it has one)."""
        if self.optimizer is not None:
            return self.step.traced
        found = trace(self._named(self._objective), *self._data.values(), name=self.name)
        return rewritten_trace(found, plainly_written)

    def _objective(self, *tensors: Any) -> Any:
        """The loss, or the whole result."""
        found = self.construct(*tensors)
        return found if self.loss is None else picked(found, self.loss)

    # -- beside torch

    def arrays(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The module's own arguments as the arrays that `Planned.run` takes."""
        from torch.utils import _pytree as pytree

        flat = pytree.tree_leaves((tuple(args), kwargs))
        return tuple(array_of(one) for one in flat if hasattr(one, "dtype"))

    @property
    def example_arrays(self) -> tuple[np.ndarray, ...]:
        """The example that it was imported with.

        Raises:
            RuntimeSetupError: that has no numbers, as it is on the meta device.
        """
        args, kwargs = self.example
        return self.arrays(*args, **kwargs)

    def reference(self) -> list[np.ndarray]:
        """What torch itself returns for the example, without gradients: all tensors in it in order, or the loss."""
        return outputs_in_torch(self)

    def reference_state(self) -> dict[str, np.ndarray]:
        """The parameters and buffers, by name, after torch ran the example, or did one step of training with it.

        Raises:
            GraphError: an optimizer to which none of torch.optim is equal.
        """
        return state_in_torch(self)

    @property
    def random(self) -> bool:
        """Whether it draws random numbers, which are not those that torch draws."""
        return any(parameter is self.dropped for parameter in self.traced.parameters.values())

    @property
    def cuttable(self) -> Traced:
        """Its trace in a form that can be cut into micro batches: where tokens of the whole batch are sorted by expert,
        the model imported once more with room for each token at each expert; the same numbers."""
        traced = self.traced
        sorts = any(node.op.name == "GroupedMatMul" for node in traced.graph.nodes)
        if not sorts or self.imported_by_expert is None:
            return traced
        return annotated_like(self.imported_by_expert().traced, traced)

    def state(self) -> dict[str, Any]:
        """The parameters' present values as torch tensors, by qualified name."""
        return {one.name: tensor_of(one.data) for one in self.get_parameters()}

    @staticmethod
    def _plain(value: Any) -> np.ndarray:
        return array_of(value) if hasattr(value, "detach") else np.array(value)


def _unflattened(leaves: list[Any], spec: Any) -> Any:
    from torch.utils import _pytree as pytree

    return pytree.tree_unflatten(leaves, spec)
