func.func @main(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<f32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<4xf32>
  %wide = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %rows = stablehlo.broadcast_in_dim %two, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  %sum = stablehlo.add %wide, %rows : tensor<8x4xf32>
  %count = stablehlo.iota dim = 0 : tensor<8x4xf32>
  %made = stablehlo.multiply %sum, %count : tensor<8x4xf32>
  %unused = stablehlo.multiply %sum, %count : tensor<8x4xf32>
  %0 = stablehlo.add %arg0, %made : tensor<8x4xf32>
  %1 = stablehlo.add %made, %made : tensor<8x4xf32>
  %2 = stablehlo.subtract %0, %1 : tensor<8x4xf32>
  %3 = stablehlo.reduce(%arg0 init: %one) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = stablehlo.reduce(%arg0 init: %one) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %6 = stablehlo.add %5, %2 : tensor<8x4xf32>
  %7 = stablehlo.add %5, %6 : tensor<8x4xf32>
  sdy.sharding_group %sum group_id=0 : tensor<8x4xf32>
  sdy.sharding_group %sum group_id=7 : tensor<8x4xf32>
  sdy.sharding_group %5 group_id=0 : tensor<8x4xf32>
  return %7, %two, %3, %made, %one : tensor<8x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<f32>
}
