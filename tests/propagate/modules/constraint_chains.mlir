sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x4xf32>
  %before = stablehlo.add %0, %0 : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {?}]> : tensor<8x4xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"y"}]> : tensor<8x4xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{"y"}, {}]> : tensor<8x4xf32>
  %4 = stablehlo.multiply %0, %3 : tensor<8x4xf32>
  %5 = sdy.sharding_constraint %4 <@mesh, [{"y"}, {}]> : tensor<8x4xf32>
  %6 = stablehlo.multiply %arg1, %0 : tensor<8x4xf32>
  %7 = sdy.sharding_constraint %arg1 <@mesh, [{"y"}, {}]> : tensor<8x4xf32>
  %8 = sdy.sharding_constraint %arg1 <@mesh, [{}, {"y"}]> : tensor<8x4xf32>
  %9 = sdy.sharding_constraint %8 <@mesh, [{"x"}, {"y"}]> : tensor<8x4xf32>
  %10 = stablehlo.multiply %arg1, %9 : tensor<8x4xf32>
  %11 = stablehlo.add %10, %7 : tensor<8x4xf32>
  %12 = stablehlo.add %11, %6 : tensor<8x4xf32>
  return %before, %12, %0, %5 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
