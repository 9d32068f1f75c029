sdy.mesh @mesh = <["x"=2, "y"=4, "z"=3]>
sdy.mesh @one = <[], device_ids=[1]>
func.func @main(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<8x32xf32>, %arg2: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@one, []>}) -> (tensor<8x32xf32>, tensor<8x32xf32>) {
  %0:2 = call @f(%arg0, %arg1, %arg0) : (tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x32xf32>) -> (tensor<8x32xf32>, tensor<8x32xf32>)
  %1 = stablehlo.add %0#0, %arg0 : tensor<8x32xf32>
  %2 = call @g(%1, %arg0) : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
  %3 = call @g(%1, %arg1) : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
  %4 = call @g(%1, %arg2) : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
  return %2, %4 : tensor<8x32xf32>, tensor<8x32xf32>
}
func.func private @f(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<8x32xf32>) -> (tensor<8x32xf32>, tensor<8x32xf32>) {
  return %arg0, %arg1 : tensor<8x32xf32>, tensor<8x32xf32>
}
func.func private @g(%arg0: tensor<8x32xf32>, %arg1: tensor<8x32xf32>) -> tensor<8x32xf32> {
  return %arg0 : tensor<8x32xf32>
}
