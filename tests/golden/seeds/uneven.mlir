// Sizes that do not divide (RFC, Dimension sharding divisibility): 7 elements on 4 devices are padded inside, and whole
// in the signature of the whole pipeline's result. @reshape: 6 to 2x3 on z=4, of which each factor takes a half although
// 3 is odd. @dead: what nobody needs is gone after propagation.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
  func.func @main(%a: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}, %b: tensor<7xf32>) -> tensor<7xf32> {
    %0 = stablehlo.add %a, %b : tensor<7xf32>
    return %0 : tensor<7xf32>
  }
  func.func @reshape(%a: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}) -> tensor<2x3xf32> {
    %0 = stablehlo.reshape %a : (tensor<6xf32>) -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
  func.func @dead(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}]>}) -> tensor<8xf32> {
    %0 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y", ?}]>]>} : tensor<8xf32>
    %1 = stablehlo.negate %a : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
  func.func @main(%arg0: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}, %arg1: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}]>}) -> (tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}]>}) {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", ?}]>]>} : tensor<7xf32>
    return %0 : tensor<7xf32>
  }
  func.func @reshape(%arg0: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}) -> tensor<2x3xf32> {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2, ?}, {"z":(2)2, ?}]>]>} : (tensor<6xf32>) -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
  func.func @dead(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}]>}) -> tensor<8xf32> {
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}]>]>} : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 2 : i64}, {name = "z", size = 4 : i64}]}}
  func.func @dead(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func @reshape(%arg0: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z":(1)2}]>}) -> (tensor<2x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z":(1)2}, {}]>}) {
    %0 = stablehlo.reshape %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z":(1)2}, {"z":(2)2}]>]>} : (tensor<6xf32>) -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
  func.func @main(%arg0: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg1: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z"}]>]>} : tensor<7xf32>
    return %0 : tensor<7xf32>
  }
}
