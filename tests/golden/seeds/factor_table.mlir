// The table of F0, F1 and F2 ("Propagation", Collect and propagate sharding axes): "a", "b" spread along F0, "c" along
// F1 and nothing along F2. @replicated is the same with "b" replicated on purpose in T2, @closed with F0 of T0 closed.
// == module
module {
  sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2, "d"=2, "e"=2, "f"=2, "g"=2]>
  func.func @main(%t0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}, {"f", ?}]>},
                  %t1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %t2 = stablehlo.add %t0, %t1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"c", "e", ?}, {?}]>]>} : tensor<16x12x10xf32>
    return %t2 : tensor<16x12x10xf32>
  }
  func.func @replicated(%t0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}, {"f", ?}]>},
                        %t1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %t2 = stablehlo.add %t0, %t1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"c", "e", ?}, {?}], replicated={"b"}>]>} : tensor<16x12x10xf32>
    return %t2 : tensor<16x12x10xf32>
  }
  func.func @closed(%t0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}, {"f", ?}]>},
                    %t1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %t2 = stablehlo.add %t0, %t1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"c", "e", ?}, {?}]>]>} : tensor<16x12x10xf32>
    return %t2 : tensor<16x12x10xf32>
  }
}
// == rules
// Add ([i, j, k], [i, j, k])->([i, j, k]) {i=16, j=12, k=10}
// == basic
module {
  sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2, "d"=2, "e"=2, "f"=2, "g"=2]>
  func.func @main(%arg0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", ?}, {"f", ?}]>}, %arg1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> (tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "e", ?}, {?}]>}) {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", "b", ?}, {"c", "e", ?}, {?}]>]>} : tensor<16x12x10xf32>
    return %0 : tensor<16x12x10xf32>
  }
  func.func @replicated(%arg0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {"c", ?}, {"f", ?}]>}, %arg1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}, {"c", "e", ?}, {?}], replicated={"b"}>]>} : tensor<16x12x10xf32>
    return %0 : tensor<16x12x10xf32>
  }
  func.func @closed(%arg0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"c", ?}, {"f", ?}]>}, %arg1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}, {"c", "e", ?}, {?}]>]>} : tensor<16x12x10xf32>
    return %0 : tensor<16x12x10xf32>
  }
}
// == aggressive
module {
  sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2, "d"=2, "e"=2, "f"=2, "g"=2]>
  func.func @main(%arg0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", ?}, {"f", ?}]>}, %arg1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> (tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "e", ?}, {?}]>}) {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", "b", ?}, {"c", "e", ?}, {?}]>]>} : tensor<16x12x10xf32>
    return %0 : tensor<16x12x10xf32>
  }
  func.func @replicated(%arg0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {"c", ?}, {"f", ?}]>}, %arg1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}, {"c", "e", ?}, {?}], replicated={"b"}>]>} : tensor<16x12x10xf32>
    return %0 : tensor<16x12x10xf32>
  }
  func.func @closed(%arg0: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"c", ?}, {"f", ?}]>}, %arg1: tensor<16x12x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b", ?}, {"c", "d", ?}, {"g", ?}]>}) -> tensor<16x12x10xf32> {
    %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", "b", ?}, {"c", "e", ?}, {?}]>]>} : tensor<16x12x10xf32>
    return %0 : tensor<16x12x10xf32>
  }
}
