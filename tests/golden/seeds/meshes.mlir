// Several meshes (RFC, Multiple logical meshes): @mesh_0 and @mesh_1 are views of the same devices in the same order,
// @mesh_2 one in another order. Shardings on different meshes do not spread into each other; each value has one mesh.
// == module
module {
  sdy.mesh @mesh_0 = <["a"=2, "b"=3]>
  sdy.mesh @mesh_1 = <["y"=2, "z"=3]>
  sdy.mesh @mesh_2 = <["a"=2, "b"=3], device_ids=[0, 2, 4, 1, 3, 5]>
  func.func @main(%p: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"b", ?}, {?}]>}, %q: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_1, [{"z", ?}, {"y", ?}]>}) -> (tensor<6x12xf32>, tensor<6x12xf32>, tensor<6x12xf32>) {
    %0 = stablehlo.negate %p : tensor<6x12xf32>
    %1 = stablehlo.negate %q : tensor<6x12xf32>
    %2 = stablehlo.add %0, %1 : tensor<6x12xf32>
    return %0, %1, %2 : tensor<6x12xf32>, tensor<6x12xf32>, tensor<6x12xf32>
  }
  func.func @orders(%p: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"a", ?}, {?}]>}, %q: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_2, [{?}, {"b", ?}]>}) -> (tensor<6x12xf32>, tensor<6x12xf32>) {
    %0 = stablehlo.add %p, %q : tensor<6x12xf32>
    %1 = stablehlo.negate %q : tensor<6x12xf32>
    return %0, %1 : tensor<6x12xf32>, tensor<6x12xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh_0 = <["a"=2, "b"=3]>
  sdy.mesh @mesh_1 = <["y"=2, "z"=3]>
  sdy.mesh @mesh_2 = <["a"=2, "b"=3], device_ids=[0, 2, 4, 1, 3, 5]>
  func.func @main(%arg0: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"b", ?}, {?}]>}, %arg1: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_1, [{"z", ?}, {"y", ?}]>}) -> (tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"b", ?}, {?}]>}, tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_1, [{"z", ?}, {"y", ?}]>}, tensor<6x12xf32>) {
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_0, [{"b", ?}, {?}]>]>} : tensor<6x12xf32>
    %1 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{"z", ?}, {"y", ?}]>]>} : tensor<6x12xf32>
    %2 = stablehlo.add %0, %1 : tensor<6x12xf32>
    return %0, %1, %2 : tensor<6x12xf32>, tensor<6x12xf32>, tensor<6x12xf32>
  }
  func.func @orders(%arg0: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"a", ?}, {?}]>}, %arg1: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_2, [{?}, {"b", ?}]>}) -> (tensor<6x12xf32>, tensor<6x12xf32>) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<6x12xf32>
    %1 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_2, [{?}, {"b", ?}]>]>} : tensor<6x12xf32>
    return %0, %1 : tensor<6x12xf32>, tensor<6x12xf32>
  }
}
// == aggressive
module {
  sdy.mesh @mesh_0 = <["a"=2, "b"=3]>
  sdy.mesh @mesh_1 = <["y"=2, "z"=3]>
  sdy.mesh @mesh_2 = <["a"=2, "b"=3], device_ids=[0, 2, 4, 1, 3, 5]>
  func.func @main(%arg0: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"b", ?}, {?}]>}, %arg1: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_1, [{"z", ?}, {"y", ?}]>}) -> (tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"b", ?}, {?}]>}, tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_1, [{"z", ?}, {"y", ?}]>}, tensor<6x12xf32>) {
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_0, [{"b", ?}, {?}]>]>} : tensor<6x12xf32>
    %1 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{"z", ?}, {"y", ?}]>]>} : tensor<6x12xf32>
    %2 = stablehlo.add %0, %1 : tensor<6x12xf32>
    return %0, %1, %2 : tensor<6x12xf32>, tensor<6x12xf32>, tensor<6x12xf32>
  }
  func.func @orders(%arg0: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"a", ?}, {?}]>}, %arg1: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh_2, [{?}, {"b", ?}]>}) -> (tensor<6x12xf32>, tensor<6x12xf32>) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<6x12xf32>
    %1 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh_2, [{?}, {"b", ?}]>]>} : tensor<6x12xf32>
    return %0, %1 : tensor<6x12xf32>, tensor<6x12xf32>
  }
}
