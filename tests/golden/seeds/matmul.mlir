// C = dot(A, B) with a batching, two non-contracting and a contracting factor ("Propagation", Visualization). A factor
// that a tensor lacks (X in the document's table) does not shard it. Where both operands want "y" on their own dim,
// basic propagation leaves the result alone and the aggressive one gives it to the larger operand, or else to A.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
  func.func @main(%a: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}, %b: tensor<4x16x6xf32>) -> tensor<4x8x6xf32> {
    %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %c : tensor<4x8x6xf32>
  }
  func.func @non_contracting(%a: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}, {?}]>},
                             %b: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {"y", ?}]>}) -> tensor<4x8x6xf32> {
    %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %c : tensor<4x8x6xf32>
  }
  func.func @contracting(%a: tensor<4x8x16xf32>, %b: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"z", ?}, {?}]>}) -> tensor<4x8x6xf32> {
    %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %c : tensor<4x8x6xf32>
  }
  func.func @from_the_result(%a: tensor<4x8x16xf32>, %b: tensor<4x16x6xf32>) -> tensor<4x8x6xf32> {
    %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", ?}, {"x", ?}, {"y", ?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %c : tensor<4x8x6xf32>
  }
  func.func @conflict_equal(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}, %b: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x8xf32> {
    %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %c : tensor<8x8xf32>
  }
  func.func @conflict_larger(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}, %b: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x32xf32> {
    %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %c : tensor<8x32xf32>
  }
}
// == rules
// DotGeneral ([i, j, l], [i, l, k])->([i, j, k]) {i=4, j=8, k=6, l=16} reduction={l}
// DotGeneral ([i, k], [k, j])->([i, j]) {i=8, j=8, k=16} reduction={k}
// DotGeneral ([i, k], [k, j])->([i, j]) {i=8, j=32, k=16} reduction={k}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
  func.func @main(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}) -> (tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", ?}, {?}, {?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @non_contracting(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}, {?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {"y", ?}]>}) -> tensor<4x8x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"x", ?}, {"y", ?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @contracting(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {"z", ?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"z", ?}, {?}]>}) -> tensor<4x8x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @from_the_result(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {"x", ?}, {?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {"y", ?}]>}) -> tensor<4x8x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", ?}, {"x", ?}, {"y", ?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @conflict_equal(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}, %arg1: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x8xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
  func.func @conflict_larger(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}, %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x32xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
// == aggressive
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
  func.func @main(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}) -> (tensor<4x8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", ?}, {?}, {?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @non_contracting(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}, {?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {"y", ?}]>}) -> tensor<4x8x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"x", ?}, {"y", ?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @contracting(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {"z", ?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"z", ?}, {?}]>}) -> tensor<4x8x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @from_the_result(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {"x", ?}, {?}]>}, %arg1: tensor<4x16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {?}, {"y", ?}]>}) -> tensor<4x8x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", ?}, {"x", ?}, {"y", ?}]>]>} : (tensor<4x8x16xf32>, tensor<4x16x6xf32>) -> tensor<4x8x6xf32>
    return %0 : tensor<4x8x6xf32>
  }
  func.func @conflict_equal(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}, %arg1: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x8xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y", ?}, {?}]>]>} : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
  func.func @conflict_larger(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}, %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x32xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y", ?}]>]>} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
