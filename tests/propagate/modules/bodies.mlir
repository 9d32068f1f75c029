sdy.mesh @mesh = <["a"=1, "x"=2, "y"=4]>
func.func @main(%arg0: tensor<2x4xf32>, %arg1: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<6x4xf32>) {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", "y":(1)2}, {"a", ?}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "a"} (%a: tensor<1x4xf32>) {
     %2 = stablehlo.add %a, %a : tensor<1x4xf32>
     sdy.return %2 : tensor<1x4xf32>
  } : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = sdy.manual_computation(%arg1) in_shardings=[<@mesh, [{"x", "y", ?}, {"a", ?}]>] out_shardings=[<@mesh, [{"x", "y"}, {"a"}]>] manual_axes={"x", "a"} (%a: tensor<3x4xf32>) {
     %2 = stablehlo.add %a, %a : tensor<3x4xf32>
     sdy.return %2 : tensor<3x4xf32>
  } : (tensor<6x4xf32>) -> tensor<6x4xf32>
  return %0, %1 : tensor<2x4xf32>, tensor<6x4xf32>
}
