sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func private @bar(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.add %arg0, %arg0 : tensor<8x4xf32>
  %1 = func.call @foo(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = func.call @baz(%1) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = func.call @foo(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = func.call @bar(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = func.call @foo(%1) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y"}]>]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %3 = func.call @bar(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %4 = stablehlo.add %3, %0 : tensor<8x4xf32>
  return %0, %2, %4 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
func.func private @foo(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) {
  %0 = stablehlo.multiply %arg0, %arg0 : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @foo_0(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = func.call @baz(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @baz(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
