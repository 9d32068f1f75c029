sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %w:2 = stablehlo.while(%it = %arg0, %it2 = %arg1) : tensor<8x4xf32>, tensor<8x4xf32>
   cond {
    %yes = stablehlo.constant dense<true> : tensor<i1>
    stablehlo.return %yes : tensor<i1>
   } do {
    %x = stablehlo.add %it, %arg0 : tensor<8x4xf32>
    %k = sdy.sharding_constraint %it2 <@mesh, [{}, {"y"}]> : tensor<8x4xf32>
    %k2 = stablehlo.add %it2, %x : tensor<8x4xf32>
    stablehlo.return %x, %k2 : tensor<8x4xf32>, tensor<8x4xf32>
   }
  %f = stablehlo.add %w#0, %w#1 : tensor<8x4xf32>
  %m = sdy.manual_computation(%w#0, %f, %w#0) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}], replicated={"y"}>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>, %b2: tensor<4x4xf32>) {
     %q0 = stablehlo.add %a, %b : tensor<4x4xf32>
     %q = stablehlo.add %q0, %b2 : tensor<4x4xf32>
     %q1 = sdy.sharding_constraint %q <@mesh, [{}, {"y"}]> : tensor<4x4xf32>
     %q2 = stablehlo.add %q1, %q : tensor<4x4xf32>
     sdy.return %q2 : tensor<4x4xf32>
  } : (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %last = sdy.sharding_constraint %w#1 <@mesh, [{}, {"y"}]> : tensor<8x4xf32>
  %once = stablehlo.add %last, %m : tensor<8x4xf32>
  return %m, %w#1, %last, %once : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
