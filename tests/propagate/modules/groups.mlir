func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>, %arg2: tensor<4xf32>) -> (tensor<8x4xf32>, tensor<4xf32>) {
  sdy.sharding_group %arg0 group_id=40 : tensor<8x4xf32>
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x4xf32>
  sdy.sharding_group %arg2 group_id=7 : tensor<4xf32>
  sdy.sharding_group %0 group_id=12 : tensor<8x4xf32>
  sdy.sharding_group %0 group_id=40 : tensor<8x4xf32>
  sdy.sharding_group %0 group_id=12 : tensor<8x4xf32>
  sdy.sharding_group %arg1 group_id=3 : tensor<8x4xf32>
  %1 = stablehlo.add %arg2, %arg2 : tensor<4xf32>
  sdy.sharding_group %1 group_id=7 : tensor<4xf32>
  return %0, %1 : tensor<8x4xf32>, tensor<4xf32>
}
