sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @one = <[], device_ids=[0]>
func.func @main(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %0:2 = func.call @both(%arg0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, <@mesh, [{"y"}, {}]>]>} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>)
  %1 = func.call @asks_call(%0#0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y"}]>]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = func.call @asks_function(%1) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %3 = func.call @on_one(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %4 = func.call @open(%3) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {?}]>]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %5 = func.call @twice(%4, %0#1, %4) : (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0#0, %1, %2, %3, %5 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
func.func private @both(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, tensor<8x4xf32>) {
  return %arg0, %arg0 : tensor<8x4xf32>, tensor<8x4xf32>
}
func.func private @asks_call(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}]>}) -> tensor<8x4xf32> {
  return %arg0 : tensor<8x4xf32>
}
func.func private @asks_function(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}]>}) {
  return %arg0 : tensor<8x4xf32>
}
func.func private @on_one(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@one, []>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@one, []>}) {
  return %arg0 : tensor<8x4xf32>
}
func.func private @open(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {}]>}) {
  return %arg0 : tensor<8x4xf32>
}
func.func private @twice(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %arg1: tensor<8x4xf32>, %arg2: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x4xf32> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
