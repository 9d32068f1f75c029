sdy.mesh @first = <["x"=2, "y"=4]>
sdy.mesh @same = <["x"=2, "y"=4]>
sdy.mesh @mesh = <["x"=8]>
func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@same, [{"x"}, {}]>}, %arg1: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<mesh<["a"=2, "b"=2]>, [{"a"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<mesh<["c"=2, "b"=2]>, [{"c", ?}, {}]>}) {
  %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<mesh<["x"=2, "y"=4]>, [{}, {"y"}]>]>} : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <mesh<[], device_ids=[3]>, []> : tensor<8x4xf32>
  %2 = sdy.sharding_constraint %1 <mesh<[]>, [{}, {?}]> : tensor<8x4xf32>
  %3 = sdy.sharding_constraint %2 <mesh<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>, [{"x"}, {?}]> : tensor<8x4xf32>
  %4 = func.call @mesh_0(%3) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %4 : tensor<8x4xf32>
}
func.func private @mesh_0(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  return %arg0 : tensor<8x4xf32>
}
