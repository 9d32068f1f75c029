// Data-flow edges of an optimization barrier ("Propagation", OptimizationBarrierOp): each operand lies like its result,
// whichever side knows first, and no pair minds another: "x" splits all three, which a sharding rule would forbid.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}, %b: tensor<4x6xf32>, %c: tensor<10xf32>) -> (tensor<8x6xf32>, tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}, tensor<10xf32>) {
    %0:3 = stablehlo.optimization_barrier %a, %b, %c : tensor<8x6xf32>, tensor<4x6xf32>, tensor<10xf32>
    %1 = stablehlo.negate %0#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y", ?}]>]>} : tensor<8x6xf32>
    %2 = stablehlo.negate %0#2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}]>]>} : tensor<10xf32>
    return %1, %0#1, %2 : tensor<8x6xf32>, tensor<4x6xf32>, tensor<10xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}, %arg1: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}, %arg2: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}]>}) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}, tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}, tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}]>}) {
    %0:3 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>, <@mesh, [{?}, {"x", ?}]>, <@mesh, [{"x", ?}]>]>} %arg0, %arg1, %arg2 : tensor<8x6xf32>, tensor<4x6xf32>, tensor<10xf32>
    %1 = stablehlo.negate %0#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : tensor<8x6xf32>
    %2 = stablehlo.negate %0#2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}]>]>} : tensor<10xf32>
    return %1, %0#1, %2 : tensor<8x6xf32>, tensor<4x6xf32>, tensor<10xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 3 : i64}]}}
  func.func @main(%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %arg1: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg2: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0:3 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>, <@mesh, [{}, {"x"}]>, <@mesh, [{"x"}]>]>} %arg0, %arg1, %arg2 : tensor<8x6xf32>, tensor<4x6xf32>, tensor<10xf32>
    %1 = stablehlo.negate %0#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : tensor<8x6xf32>
    %2 = stablehlo.negate %0#2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<10xf32>
    return %1, %0#1, %2 : tensor<8x6xf32>, tensor<4x6xf32>, tensor<10xf32>
  }
}
