// An operation that brings its own rule ("Dialect-agnostic Sharding", Sharding rules): a foreign call is passed as the
// rule on it says, here a product whose middle factor must not spread; one without a rule is a wall.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=4]>
  func.func @main(%a: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"z", ?}]>}, %b: tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x6xf32> {
    %0 = stablehlo.custom_call @ruled(%a, %b) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=6, k=12} blocked_propagation={k}, custom>} : (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.custom_call @unruled(%0) : (tensor<8x6xf32>) -> tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=4]>
  func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"z", ?}]>}, %arg1: tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x6xf32> {
    %0 = stablehlo.custom_call @ruled(%arg0, %arg1) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>, sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=6, k=12} blocked_propagation={k}, custom>} : (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.custom_call @unruled(%0) : (tensor<8x6xf32>) -> tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 3 : i64}, {name = "z", size = 4 : i64}]}}
  func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"z"}]>}, %arg1: tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> tensor<8x6xf32> {
    %0 = stablehlo.custom_call @ruled(%arg0, %arg1) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>, sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=6, k=12} blocked_propagation={k}, custom>} : (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.custom_call @unruled(%0) : (tensor<8x6xf32>) -> tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
