// Constant splitting ("Dialect-agnostic Sharding"): one constant, broadcast once, feeds an add, a divide and a subtract.
// Each use has a copy of the constant and of its broadcast for itself, so the "x" of the sum does not reach the others.
// An iota is as good as a constant, and what is computed of constants alone is one too.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, %c: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
    %one = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
    %count = stablehlo.iota dim = 0 : tensor<8x6xf32>
    %k = stablehlo.add %ones, %count : tensor<8x6xf32>
    %sum = stablehlo.add %a, %k : tensor<8x6xf32>
    %quotient = stablehlo.divide %b, %k : tensor<8x6xf32>
    %difference = stablehlo.subtract %c, %k : tensor<8x6xf32>
    return %sum, %quotient, %difference : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
  }
}
// == aggressive
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, %arg2: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}, tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}, tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : (tensor<f32>) -> tensor<8x6xf32>
    %1 = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : tensor<8x6xf32>
    %2 = stablehlo.add %0, %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : tensor<8x6xf32>
    %3 = stablehlo.add %arg0, %2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : tensor<8x6xf32>
    %4 = stablehlo.divide %arg1, %2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : tensor<8x6xf32>
    %5 = stablehlo.subtract %arg2, %2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : tensor<8x6xf32>
    return %3, %4, %5 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 3 : i64}]}}
  func.func @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, %arg2: tensor<8x6xf32>) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<8x6xf32>) {
    %0 = sdy.constant dense<1.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<f32>) -> tensor<8x6xf32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<f32>) -> tensor<8x6xf32>
    %3 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
    %4 = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x6xf32>
    %5 = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : tensor<8x6xf32>
    %6 = stablehlo.iota dim = 0 : tensor<8x6xf32>
    %7 = stablehlo.add %1, %4 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x6xf32>
    %8 = stablehlo.add %2, %5 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : tensor<8x6xf32>
    %9 = stablehlo.add %3, %6 : tensor<8x6xf32>
    %10 = stablehlo.add %arg0, %7 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x6xf32>
    %11 = stablehlo.divide %arg1, %8 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : tensor<8x6xf32>
    %12 = stablehlo.subtract %arg2, %9 : tensor<8x6xf32>
    return %10, %11, %12 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
  }
}
