"""Methods that MindSpore's scripts call on cells: what they add to a cell, and hints that here need not be given."""

from __future__ import annotations

from typing import Any

from autoshard.trace.parameter import Parameter
from autoshard.util.errors import GraphError


class CellNames:
    """What `Cell` has of it."""

    def name_cells(self) -> dict[str, Any]:
        """The cells that are attributes of this one, by the attribute."""
        return {cell.own_name: cell for cell in self.cells()}  # type: ignore[attr-defined]

    def insert_child_to_cell(self, child_name: str, child_cell: Any) -> None:
        """Set an attribute to a cell.

        Raises:
            GraphError: there is such an attribute, or it is no cell.
        """
        self._insert(child_name, child_cell, CellNames, "insert_child_to_cell")

    def insert_param_to_cell(self, param_name: str, param: Any, check_name_contain_dot: bool = True) -> None:
        """Set an attribute to a parameter, which is called so unless it has a name of its own.

        Raises:
            GraphError: there is such an attribute, its name has a dot, or it is no parameter.
        """
        if check_name_contain_dot and "." in param_name:
            raise GraphError(f"insert_param_to_cell: the name {param_name!r} has a dot")
        self._insert(param_name, param, Parameter, "insert_param_to_cell")

    def _insert(self, name: str, part: Any, kind: type, what: str) -> None:
        if not isinstance(part, kind):
            wanted = "parameter" if kind is Parameter else "cell"
            raise GraphError(f"{type(self).__name__}.{what}: {name!r} is to be {part!r}, which is no {wanted}")
        if hasattr(self, name):
            raise GraphError(f"{type(self).__name__}.{what}: there is an attribute {name!r} already")
        setattr(self, name, part)

    def init_parameters_data(self, auto_parallel_mode: bool = False) -> dict[Any, Any]:
        """Each parameter with itself: values are made when they are asked for."""
        return {one: one for one in self.get_parameters()}  # type: ignore[attr-defined]

    def set_grad(self, requires_grad: bool = True) -> Any:
        """The cell: what is differentiated follows from what is trained."""
        return self

    def set_comm_fusion(self, fusion_type: int, recurse: bool = True) -> Any:
        """The cell: small collectives are joined where that saves time, see the setting comm_fusion."""
        return self
