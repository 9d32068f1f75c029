sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xi32>, tensor<4x8xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<8x4xf32>
  %a = sdy.sharding_constraint %c <@mesh, [{"x"}, {}]> : tensor<8x4xf32>
  %b = sdy.reshard %c <@mesh, [{"x"}, {}]> : tensor<8x4xf32>
  %d = stablehlo.bitcast_convert %c : (tensor<8x4xf32>) -> tensor<8x4xi32>
  %p = stablehlo.constant dense<true> : tensor<i1>
  %h = stablehlo.select %p, %c, %b : tensor<i1>, tensor<8x4xf32>
  %t = stablehlo.transpose %h, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %r = stablehlo.reshape %h : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %rt = stablehlo.add %r, %t : tensor<4x8xf32>
  %q = stablehlo.constant dense<4.0> : tensor<f32>
  %z0 = stablehlo.add %arg0, %a : tensor<8x4xf32>
  %z1 = stablehlo.add %z0, %b : tensor<8x4xf32>
  %z2 = stablehlo.add %z1, %h : tensor<8x4xf32>
  %w:2 = stablehlo.while(%it = %c, %it2 = %q) : tensor<8x4xf32>, tensor<f32>
   cond {
    %less = stablehlo.compare LT, %it2, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
   } do {
    %o = stablehlo.constant dense<1.0> : tensor<8x4xf32>
    %x = stablehlo.add %it, %c : tensor<8x4xf32>
    %y = stablehlo.add %x, %o : tensor<8x4xf32>
    %y2 = stablehlo.add %y, %o : tensor<8x4xf32>
    stablehlo.return %y2, %q : tensor<8x4xf32>, tensor<f32>
   }
  return %z2, %a, %w#0, %d, %rt : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xi32>, tensor<4x8xf32>
}
