// Op priorities ("Dialect-agnostic Sharding"): the product wants "x" on its rows, what it is added to has "x" on its
// columns. Aggressive propagation alone takes the operations as they stand, so the product comes first; by op priority
// the elementwise add does, although it stands later.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%a: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}, %b: tensor<12x6xf32>, %c: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) -> tensor<8x6xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.add %0, %c : tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
// == aggressive
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}, %arg1: tensor<12x6xf32>, %arg2: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>]>} : (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.add %0, %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>]>} : tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
// == op-priority
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%arg0: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}, %arg1: tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}, %arg2: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"x", ?}]>]>} : (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.add %0, %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"x", ?}]>]>} : tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
