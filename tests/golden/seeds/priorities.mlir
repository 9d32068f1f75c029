// Incremental partitioning (RFC, Priorities): batch parallelism p0, Megatron p1, ZeRO p2 on a two-layer MLP. The
// sections "after p0", "after p1" and "after p2" are the module as it is after that round. Axes that a tensor waits for
// are replicated in it on purpose until their round, so that no earlier one puts them anywhere else. The section
// "op-priority" does not look at the numbers: there the "batch" of the larger weight wins the columns of the result.
// == module
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%x: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}p0, {?}]>},
                  %w1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}p2, {"model", ?}p1]>},
                  %w2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}p1, {"batch", ?}p2]>}) -> tensor<16x48xf32> {
    %0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
// == after p0
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%arg0: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}, %arg1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], replicated={"batch", "model"}>}, %arg2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], replicated={"batch", "model"}>}) -> (tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {?}]>]>} : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {?}]>]>} : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {?}]>]>} : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
// == after p1
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%arg0: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}, %arg1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model", ?}], replicated={"batch"}>}, %arg2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}, {}], replicated={"batch"}>}) -> (tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {?}]>]>} : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
// == after p2
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%arg0: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}, %arg1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {"model", ?}]>}, %arg2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}, {"batch", ?}]>}) -> (tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {?}]>]>} : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
// == user-priority
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%arg0: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}, %arg1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {"model", ?}]>}, %arg2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}, {"batch", ?}]>}) -> (tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}, {?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {?}]>]>} : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
// == op-priority
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%arg0: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}p0, {?}]>}, %arg1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}p2, {"model", ?}p1]>}, %arg2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}p1, {"batch", ?}p2]>}) -> (tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"batch", ?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch", ?}, {"model", ?}]>]>} : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"batch", ?}]>]>} : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["batch"=2, "model"=4]> {stablehlo.mesh = {axes = [{name = "batch", size = 2 : i64}, {name = "model", size = 4 : i64}]}}
  func.func @main(%arg0: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch"}, {}]>}, %arg1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch"}, {"model"}]>}, %arg2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"batch"}]>}) -> (tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch"}, {}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch"}, {"model"}]>]>} : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch"}, {"model"}]>]>} : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"batch"}, {}]>]>} : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
