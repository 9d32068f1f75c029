"""StableHLO modules as text: what is changed in them is imported, or refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.util.errors import ParseError
from tests.readers.guard import survive
from tests.readers.mutations import mutations

pytestmark = pytest.mark.jax

COUNT = 300
MODULE = """\
sdy.mesh @mesh = <["dp"=2, "tp"=4]>
module @model attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {?}]>},
                         %w: tensor<16x6xf32>, %i: tensor<i32>) -> (tensor<8x6xf32>, tensor<i32>) {
    %c = stablehlo.constant dense<[1.0, 2.0, 3.0, -4.0, 0x7F800000, 6.0]> : tensor<6xf32>
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<6xf32>) -> tensor<8x6xf32>
    %2 = stablehlo.add %0, %1 {note = "a \\"quoted\\" note"} : tensor<8x6xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{"dp", ?}p1, {"tp":(1)2}]> : tensor<8x6xf32>
    %4:2 = stablehlo.while(%a = %i, %b = %3) : tensor<i32>, tensor<8x6xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %t = stablehlo.compare LT, %a, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %s = stablehlo.add %a, %one : tensor<i32>
      %u = func.call @twice(%b) : (tensor<8x6xf32>) -> tensor<8x6xf32>
      stablehlo.return %s, %u : tensor<i32>, tensor<8x6xf32>
    }
    return %4#1, %4#0 : tensor<8x6xf32>, tensor<i32>
  }
  func.func private @twice(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {
    %0 = stablehlo.add %x, %x : tensor<8x6xf32>
    return %0 : tensor<8x6xf32>
  }
}
"""


def _nested() -> str:
    """The mesh inside of the module, as MLIR has it."""
    mesh, _, rest = MODULE.partition("\n")
    head, brace, body = rest.partition("{\n")
    head2, brace2, body2 = body.partition("{\n")
    return f"{head}{brace}{head2}{brace2}{body2}".replace("i32} {\n", f"i32}} {{\n  {mesh}\n", 1)


def test_texts(tmp_path):
    from autoshard.api.propagate import propagate
    from autoshard.frontends.stablehlo.load import from_stablehlo
    from autoshard.ir.text import show

    path, good = tmp_path / "model.mlir", _nested().encode()

    def read(sample: bytes) -> Any:
        path.write_bytes(sample)
        return from_stablehlo(path)

    def right(imported: Any) -> None:
        assert show(imported.graph)
        if imported.asked.meshes:
            propagate(imported)

    right(read(good))
    read_count, refused = survive(read, mutations(good, COUNT, 3), tmp_path, right)
    assert read_count + refused == COUNT and refused > COUNT // 4


@pytest.mark.parametrize("open_", ["[", "(", "{", "<", "tuple<", "module {"])
def test_depth(open_):
    """MLIR's parser calls itself for each bracket: 20,000 of them ended the process."""
    from autoshard.frontends.stablehlo.load import from_stablehlo

    with pytest.raises(ParseError, match="nested deeper than 500 levels"):
        from_stablehlo("module attributes {a = " + open_ * 20_000)
    strings = _nested().replace("quoted", "([{<" * 1000)  # brackets in strings are none
    assert len(from_stablehlo(strings).graph.inputs) == 3
