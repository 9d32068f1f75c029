func.func @main(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<8x4xf32>
  %k = call @ones() : () -> tensor<8x4xf32>
  %f = call @f(%k) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %g = call @f(%c) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %h = call @h(%g) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = stablehlo.add %arg0, %f : tensor<8x4xf32>
  %1 = stablehlo.add %0, %f : tensor<8x4xf32>
  %n = sdy.named_computation<"inner">(%c) (%a: tensor<8x4xf32>) {
    %q = stablehlo.constant dense<4.0> : tensor<8x4xf32>
    %z = stablehlo.add %a, %q : tensor<8x4xf32>
    sdy.return %z : tensor<8x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %v = sdy.named_computation<"varying">(%c) (%a: tensor<8x4xf32>) {
    %q = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %z = stablehlo.transpose %q, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    sdy.return %z : tensor<8x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.add %n, %v : tensor<8x4xf32>
  %3 = stablehlo.add %arg0, %2 : tensor<8x4xf32>
  %4 = stablehlo.add %3, %n : tensor<8x4xf32>
  return %1, %4, %h : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
func.func private @ones() -> tensor<8x4xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<8x4xf32>
  return %c : tensor<8x4xf32>
}
func.func private @f(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %c = func.call @ones() : () -> tensor<8x4xf32>
  %0 = stablehlo.add %arg0, %c : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @h(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x8xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
