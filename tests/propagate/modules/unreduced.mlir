sdy.mesh @mesh = <["x"=2, "y"=4, "z"=3]>
func.func @product(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}]>}, %arg1: tensor<32x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {"z"}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"z"}], unreduced={"x"}>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}], unreduced={"x"}>]>} : (tensor<8x32xf32>, tensor<32x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}]>]>} : (tensor<8x32xf32>, tensor<32x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %0, %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}]>]>} : tensor<8x8xf32>
  return %2, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func @returned(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}], unreduced={"y"}>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}], unreduced={"y", "z"}>}, tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x", "z"}>}, tensor<8x32xf32>) {
  %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}], unreduced={"y"}>]>} : tensor<8x32xf32>
  return %arg0, %arg1, %0 : tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x32xf32>
}
func.func @loop(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}], unreduced={"y"}>}) -> tensor<8x32xf32> {
  %c = sdy.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%it = %arg0, %i = %c) : tensor<8x32xf32>, tensor<i32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>, <@mesh, []>]>}
   cond {
    %pp = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %pp : tensor<i1>
   } do {
    %x = stablehlo.add %it, %it {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}], unreduced={"z"}>]>} : tensor<8x32xf32>
    stablehlo.return %x, %i : tensor<8x32xf32>, tensor<i32>
   }
  return %0#0 : tensor<8x32xf32>
}
func.func @moved(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}) -> (tensor<8x32xf32>, tensor<8x32xf32>) {
  %0 = sdy.reshard %arg0 <@mesh, [{"y"}, {}], unreduced={"x", "z"}> : tensor<8x32xf32>
  %1 = sdy.reshard %arg0 <@mesh, [{"y":(1)2}, {"x"}], unreduced={"y":(2)2}> : tensor<8x32xf32>
  %2 = sdy.reshard %arg0 <@mesh, [{"x"}, {}], unreduced={"z"}> : tensor<8x32xf32>
  %3 = sdy.reshard %1 <@mesh, [{}, {"x"}]> : tensor<8x32xf32>
  %4 = stablehlo.add %2, %3 : tensor<8x32xf32>
  return %0, %4 : tensor<8x32xf32>, tensor<8x32xf32>
}
func.func @calling(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}], unreduced={"y"}>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x32xf32> {
  %0 = call @called(%arg0, %arg1) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}], unreduced={"y"}>]>} : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}
func.func private @called(%arg0: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {"x"}]>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}], unreduced={"z"}>}) -> tensor<8x32xf32> {
  return %arg0 : tensor<8x32xf32>
}
