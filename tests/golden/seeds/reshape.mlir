// Reshapes by compound factors ("Propagation", Compound factors). Axes pass between the parts of a dim and the dim:
// whole, or as pieces where a factor has room for less than the axis. In @strided the minor factor alone is split,
// which no dim of the merged tensor can say, so nothing passes; in @regroup the middle factor has its own piece.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=4, "z"=8]>
  func.func @main(%in: tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}, {"z", ?}]>}) -> tensor<8x32xf32> {
    %out = stablehlo.reshape %in : (tensor<2x4x32xf32>) -> tensor<8x32xf32>
    return %out : tensor<8x32xf32>
  }
  func.func @strided(%in: tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}, {?}]>}) -> tensor<8x32xf32> {
    %out = stablehlo.reshape %in : (tensor<2x4x32xf32>) -> tensor<8x32xf32>
    return %out : tensor<8x32xf32>
  }
  func.func @split(%in: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x", ?}, {"z", ?}]>}) -> tensor<2x4x32xf32> {
    %out = stablehlo.reshape %in : (tensor<8x32xf32>) -> tensor<2x4x32xf32>
    return %out : tensor<2x4x32xf32>
  }
  func.func @split_back(%in: tensor<8x32xf32>) -> tensor<2x4x32xf32> {
    %out = stablehlo.reshape %in {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2, ?}, {"z":(2)4, ?}, {"y", ?}]>]>} : (tensor<8x32xf32>) -> tensor<2x4x32xf32>
    return %out : tensor<2x4x32xf32>
  }
  func.func @regroup(%in: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {"y", ?}]>}) -> tensor<2x16xf32> {
    %out = stablehlo.reshape %in : (tensor<8x4xf32>) -> tensor<2x16xf32>
    return %out : tensor<2x16xf32>
  }
  func.func @regroup_back(%in: tensor<8x4xf32>) -> tensor<2x16xf32> {
    %out = stablehlo.reshape %in {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"z", "y":(1)2, ?}]>]>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    return %out : tensor<2x16xf32>
  }
}
// == rules
// Reshape ([i, j, k])->([ij, k]) {i=2, j=4, k=32}
// Reshape ([ij, k])->([i, j, k]) {i=2, j=4, k=32}
// Reshape ([ij, k])->([i, jk]) {i=2, j=4, k=4}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=4, "z"=8]>
  func.func @main(%arg0: tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}, {"z", ?}]>}) -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", ?}, {"z", ?}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y", ?}, {"z", ?}]>]>} : (tensor<2x4x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
  func.func @strided(%arg0: tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}, {?}]>}) -> tensor<8x32xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<2x4x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
  func.func @split(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x", ?}, {"z", ?}]>}) -> tensor<2x4x32xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y":(1)2, ?}, {"y":(2)2, "x", ?}, {"z", ?}]>]>} : (tensor<8x32xf32>) -> tensor<2x4x32xf32>
    return %0 : tensor<2x4x32xf32>
  }
  func.func @split_back(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {"y", ?}]>}) -> tensor<2x4x32xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2, ?}, {"z":(2)4, ?}, {"y", ?}]>]>} : (tensor<8x32xf32>) -> tensor<2x4x32xf32>
    return %0 : tensor<2x4x32xf32>
  }
  func.func @regroup(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {"y", ?}]>}) -> tensor<2x16xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2, ?}, {"z":(2)4, "y", ?}]>]>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }
  func.func @regroup_back(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z":(1)4, ?}, {"z":(4)2, "y":(1)2, ?}]>}) -> tensor<2x16xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"z", "y":(1)2, ?}]>]>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=4, "z"=8]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 4 : i64}, {name = "z", size = 8 : i64}]}}
  func.func @regroup_back(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z":(1)4}, {"z":(4)2, "y":(1)2}]>}) -> (tensor<2x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"z", "y":(1)2}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"z", "y":(1)2}]>]>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }
  func.func @regroup(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {"y"}]>}) -> (tensor<2x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z":(1)2}, {"z":(2)4, "y"}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2}, {"z":(2)4, "y"}]>]>} : (tensor<8x4xf32>) -> tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }
  func.func @split_back(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {"y"}]>}) -> (tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z":(1)2}, {"z":(2)4}, {"y"}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2}, {"z":(2)4}, {"y"}]>]>} : (tensor<8x32xf32>) -> tensor<2x4x32xf32>
    return %0 : tensor<2x4x32xf32>
  }
  func.func @split(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {"z"}]>}) -> (tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y":(1)2}, {"y":(2)2, "x"}, {"z"}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y":(1)2}, {"y":(2)2, "x"}, {"z"}]>]>} : (tensor<8x32xf32>) -> tensor<2x4x32xf32>
    return %0 : tensor<2x4x32xf32>
  }
  func.func @strided(%arg0: tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}) -> tensor<8x32xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<2x4x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
  func.func @main(%arg0: tensor<2x4x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {"z"}]>}) -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {"z"}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {"z"}]>]>} : (tensor<2x4x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
