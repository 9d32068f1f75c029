// Data-flow edges of a choice ("Propagation", CaseOp): what the branches return are the sources, the result the target.
// @main: one branch is split, the other and the result follow. @disagreeing: the major axis they share is left.
// @backward: a use of the result splits the values of both branches.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=2]>
  func.func @main(%i: tensor<i32>, %a: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}, %b: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}) -> tensor<24x6xf32> {
    %0 = "stablehlo.case"(%i) ({
      stablehlo.return %a : tensor<24x6xf32>
    }, {
      stablehlo.return %b : tensor<24x6xf32>
    }) : (tensor<i32>) -> tensor<24x6xf32>
    return %0 : tensor<24x6xf32>
  }
  func.func @disagreeing(%i: tensor<i32>, %a: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", ?}, {?}]>}, %b: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {?}]>}) -> tensor<24x6xf32> {
    %0 = "stablehlo.case"(%i) ({
      stablehlo.return %a : tensor<24x6xf32>
    }, {
      stablehlo.return %b : tensor<24x6xf32>
    }) : (tensor<i32>) -> tensor<24x6xf32>
    return %0 : tensor<24x6xf32>
  }
  func.func @backward(%i: tensor<i32>, %a: tensor<24x6xf32>, %b: tensor<24x6xf32>) -> tensor<24x6xf32> {
    %0 = "stablehlo.case"(%i) ({
      %2 = stablehlo.negate %a : tensor<24x6xf32>
      stablehlo.return %2 : tensor<24x6xf32>
    }, {
      stablehlo.return %b : tensor<24x6xf32>
    }) : (tensor<i32>) -> tensor<24x6xf32>
    %1 = stablehlo.negate %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"z", ?}]>]>} : tensor<24x6xf32>
    return %1 : tensor<24x6xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=2]>
  func.func @main(%arg0: tensor<i32>, %arg1: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}) {
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<24x6xf32>
    }, {
      stablehlo.return %arg2 : tensor<24x6xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : (tensor<i32>) -> tensor<24x6xf32>
    return %0 : tensor<24x6xf32>
  }
  func.func @disagreeing(%arg0: tensor<i32>, %arg1: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", ?}, {?}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {?}]>}) -> tensor<24x6xf32> {
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<24x6xf32>
    }, {
      stablehlo.return %arg2 : tensor<24x6xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>]>} : (tensor<i32>) -> tensor<24x6xf32>
    return %0 : tensor<24x6xf32>
  }
  func.func @backward(%arg0: tensor<i32>, %arg1: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"z", ?}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"z", ?}]>}) -> tensor<24x6xf32> {
    %0 = "stablehlo.case"(%arg0) ({
      %2 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"z", ?}]>]>} : tensor<24x6xf32>
      stablehlo.return %2 : tensor<24x6xf32>
    }, {
      stablehlo.return %arg2 : tensor<24x6xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"z", ?}]>]>} : (tensor<i32>) -> tensor<24x6xf32>
    %1 = stablehlo.negate %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"z", ?}]>]>} : tensor<24x6xf32>
    return %1 : tensor<24x6xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 3 : i64}, {name = "z", size = 2 : i64}]}}
  func.func @backward(%arg0: tensor<i32>, %arg1: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"z"}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"z"}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"z"}]>}) {
    %0 = "stablehlo.case"(%arg0) ({
      %2 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}]>]>} : tensor<24x6xf32>
      stablehlo.return %2 : tensor<24x6xf32>
    }, {
      stablehlo.return %arg2 : tensor<24x6xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}]>]>} : (tensor<i32>) -> tensor<24x6xf32>
    %1 = stablehlo.negate %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}]>]>} : tensor<24x6xf32>
    return %1 : tensor<24x6xf32>
  }
  func.func @disagreeing(%arg0: tensor<i32>, %arg1: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z"}, {}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<24x6xf32>
    }, {
      stablehlo.return %arg2 : tensor<24x6xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<i32>) -> tensor<24x6xf32>
    return %0 : tensor<24x6xf32>
  }
  func.func @main(%arg0: tensor<i32>, %arg1: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<24x6xf32>
    }, {
      stablehlo.return %arg2 : tensor<24x6xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : (tensor<i32>) -> tensor<24x6xf32>
    return %0 : tensor<24x6xf32>
  }
}
