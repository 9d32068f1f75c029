sdy.mesh @mesh = <["x"=6, "y"=4, "z"=1]>
func.func @main(%arg0: tensor<9x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y":(1)2, ?}]>}, %arg1: tensor<9x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}p2, {"z", ?}], replicated={"y"}>}) -> (tensor<9x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x":(1)2, ?}]>}) {
  %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y", "x"}, {?}], replicated={"z"}>]>} : tensor<9x4xf32>
  %1:2 = func.call @f(%0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y", "x"}, {}]>, <@mesh, [{"x", ?}, {"y"}]>]>} : (tensor<9x4xf32>) -> (tensor<9x4xf32>, tensor<9x4xf32>)
  %2 = stablehlo.add %1#0, %1#1 : tensor<9x4xf32>
  return %2 : tensor<9x4xf32>
}
func.func private @f(%arg0: tensor<9x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(2)3, "x":(1)2}, {}]>}) -> (tensor<9x4xf32>, tensor<9x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x"}]>}) {
  return %arg0, %arg0 : tensor<9x4xf32>, tensor<9x4xf32>
}
