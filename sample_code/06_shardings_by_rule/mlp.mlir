// The network of mlp.py as StableHLO, with what it asks for: batch parallelism p0, Megatron p1, ZeRO p2.
module @mlp {
  sdy.mesh @mesh = <["batch"=2, "model"=4]>
  func.func @main(%x: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}p0, {?}]>},
                  %w1: tensor<12x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"batch", ?}p2, {"model", ?}p1]>},
                  %w2: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}p1, {"batch", ?}p2]>})
      -> tensor<16x48xf32> {
    %0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<16x12xf32>, tensor<12x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.tanh %0 : tensor<16x64xf32>
    %2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x48xf32>) -> tensor<16x48xf32>
    return %2 : tensor<16x48xf32>
  }
}
