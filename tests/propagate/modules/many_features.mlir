sdy.mesh @mesh = <["x"=2, "y"=4, "one"=1]>
func.func @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2, "y"=4, "one"=1]>, [{"x", ?}, {"one"}]>}, %arg1: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}p1]>}, tensor<14x6xf32>) {
  %c = stablehlo.constant dense<1.0> : tensor<8x6xf32>
  %0 = func.call @f(%arg0, %c) : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  %1 = func.call @f(%c, %arg1) : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  %2 = func.call @f(%c, %arg0) : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {}]> : tensor<8x6xf32>
  %4 = sdy.sharding_constraint %3 <@mesh, [{"x"}, {}]> : tensor<8x6xf32>
  %5 = stablehlo.add %1, %2 : tensor<8x6xf32>
  %6 = sdy.manual_computation(%5, %c) in_shardings=[<@mesh, [{"x", ?}, {?}]>, <@mesh, [{"x", ?}, {?}]>] out_shardings=[<@mesh, [{"x", ?}, {?}]>] manual_axes={"x"} (%a: tensor<4x6xf32>, %b: tensor<4x6xf32>) {
    %10 = stablehlo.add %a, %b : tensor<4x6xf32>
    %11 = sdy.sharding_constraint %10 <@mesh, [{"y"}, {}]> : tensor<4x6xf32>
    %12 = func.call @g(%11) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    sdy.return %12 : tensor<4x6xf32>
  } : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  %7 = stablehlo.slice %6 [0:6, 0:6] : (tensor<8x6xf32>) -> tensor<6x6xf32>
  %8 = stablehlo.concatenate %0, %7, dim = 0 : (tensor<8x6xf32>, tensor<6x6xf32>) -> tensor<14x6xf32>
  %only_grouped = stablehlo.tanh %6 : tensor<8x6xf32>
  sdy.sharding_group %only_grouped group_id=5 : tensor<8x6xf32>
  sdy.sharding_group %0 group_id=5 : tensor<8x6xf32>
  %part = stablehlo.slice %6 [0:4, 0:6] : (tensor<8x6xf32>) -> tensor<4x6xf32>
  %unused = func.call @g(%part) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %4, %6, %8 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<14x6xf32>
}
func.func private @f(%arg0: tensor<8x6xf32>, %arg1: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x6xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<8x6xf32>
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x6xf32>
  %1 = stablehlo.multiply %0, %c : tensor<8x6xf32>
  return %1 : tensor<8x6xf32>
}
func.func private @g(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
func.func private @never(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %0 = func.call @g(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
