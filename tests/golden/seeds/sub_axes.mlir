// Sub-axes (RFC, Axis splitting and sub-axes). @main: x=4 on 8 elements reshaped to 2x4 becomes a piece for each
// dim (the RFC prints the second as "x":(2)4, which x=4 does not hold; it is "x":(2)2). @middle: only the middle part of
// y=8 is used, and @replicated keeps its first part whole: without a decision nothing of the other operand's "y" goes in.
// @full and @square are one splitting in two meshes (the RFC's "devices":(1)2 behind four parts is "devices":(4)2).
// == module
module {
  sdy.mesh @mesh_x = <["x"=4]>
  sdy.mesh @mesh_xyz = <["x"=2, "y"=8, "z"=2]>
  sdy.mesh @mesh_full = <["devices"=8]>
  sdy.mesh @mesh_xy = <["x"=4, "y"=2]>
  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh_x, [{"x"}]>}) -> tensor<2x4xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<8xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
  func.func @middle(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"x", ?}, {"y":(2)2, ?}]>}) -> tensor<4x8xf32> {
    %0 = stablehlo.negate %arg0 : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @replicated(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{?}, {"y":(2)2, ?}], replicated={"y":(1)2}>}, %arg1: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"y", ?}, {?}]>}) -> tensor<4x8xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @full(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]>}) -> tensor<16xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<4x4xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
  func.func @square(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_xy, [{"x"}, {"y"}]>}) -> tensor<16xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<4x4xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}
// == rules
// Reshape ([ij])->([i, j]) {i=2, j=4}
// Neg ([i, j])->([i, j]) {i=4, j=8}
// Add ([i, j], [i, j])->([i, j]) {i=4, j=8}
// Reshape ([i, j])->([ij]) {i=4, j=4}
// == basic
module {
  sdy.mesh @mesh_x = <["x"=4]>
  sdy.mesh @mesh_xyz = <["x"=2, "y"=8, "z"=2]>
  sdy.mesh @mesh_full = <["devices"=8]>
  sdy.mesh @mesh_xy = <["x"=4, "y"=2]>
  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh_x, [{"x"}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh_x, [{"x":(1)2, ?}, {"x":(2)2, ?}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_x, [{"x":(1)2, ?}, {"x":(2)2, ?}]>]>} : (tensor<8xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
  func.func @middle(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"x", ?}, {"y":(2)2, ?}]>}) -> tensor<4x8xf32> {
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_xyz, [{"x", ?}, {"y":(2)2, ?}]>]>} : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @replicated(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{?}, {"y":(2)2, ?}], replicated={"y":(1)2}>}, %arg1: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"y", ?}, {?}]>}) -> tensor<4x8xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @full(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]>}) -> tensor<16xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_full, [{"devices", ?}]>]>} : (tensor<4x4xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
  func.func @square(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_xy, [{"x"}, {"y"}]>}) -> tensor<16xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_xy, [{"x", "y", ?}]>]>} : (tensor<4x4xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}
// == full
module {
  sdy.mesh @mesh_x = <["x"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}]}}
  sdy.mesh @mesh_xyz = <["x"=2, "y"=8, "z"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 8 : i64}, {name = "z", size = 2 : i64}]}}
  sdy.mesh @mesh_full = <["devices"=8]> {stablehlo.mesh = {axes = [{name = "devices", size = 8 : i64}]}}
  sdy.mesh @mesh_xy = <["x"=4, "y"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}, {name = "y", size = 2 : i64}]}}
  func.func @square(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_xy, [{"x"}, {"y"}]>}) -> (tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh_xy, [{"x", "y"}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_xy, [{"x", "y"}]>]>} : (tensor<4x4xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
  func.func @full(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]>}) -> (tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh_full, [{"devices"}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_full, [{"devices"}]>]>} : (tensor<4x4xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
  func.func @replicated(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{}, {"y":(2)2}]>}, %arg1: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"y":(1)4}, {}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"y":(1)4}, {}]>}) {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_xyz, [{"y"}, {}]>]>} : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @middle(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"x"}, {"y":(2)2}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xyz, [{"x"}, {"y":(2)2}]>}) {
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_xyz, [{"x"}, {"y":(2)2}]>]>} : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh_x, [{"x"}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh_x, [{}, {}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_x, [{"x":(1)2}, {"x":(2)2}]>]>} : (tensor<8xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
