// Data-flow edges of a loop ("Propagation", WhileOp): the operand and what the body returns are the sources of an edge,
// the result and the arguments of both regions its targets. In @main the operand knows "x", the use of the result "z",
// and the body joins in "y". In @disagreeing operand and returned value differ: what they have in common is taken, "x".
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=2]>
  func.func @main(%a: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}, %n: tensor<i32>, %w: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<24x6xf32> {
    %0:2 = stablehlo.while(%y = %a, %i = %n) : tensor<24x6xf32>, tensor<i32>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %y, %w : tensor<24x6xf32>
      %less = stablehlo.subtract %i, %one : tensor<i32>
      stablehlo.return %next, %less : tensor<24x6xf32>, tensor<i32>
    }
    %1 = stablehlo.negate %0#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z", ?}, {?}]>]>} : tensor<24x6xf32>
    return %1 : tensor<24x6xf32>
  }
  func.func @disagreeing(%a: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", ?}, {?}]>}, %n: tensor<i32>, %w: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {?}]>}) -> tensor<24x6xf32> {
    %0:2 = stablehlo.while(%y = %a, %i = %n) : tensor<24x6xf32>, tensor<i32>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.negate %w : tensor<24x6xf32>
      %less = stablehlo.subtract %i, %one : tensor<i32>
      stablehlo.return %next, %less : tensor<24x6xf32>, tensor<i32>
    }
    return %0#0 : tensor<24x6xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=2]>
  func.func @main(%arg0: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {"y", ?}]>}, %arg1: tensor<i32>, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {"y", ?}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {"y", ?}]>}) {
    %0:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1) : tensor<24x6xf32>, tensor<i32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z", ?}, {"y", ?}]>, <@mesh, []>]>}
    cond {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %2 = stablehlo.compare GT, %iterArg_0, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %c = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %iterArg, %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z", ?}, {"y", ?}]>]>} : tensor<24x6xf32>
      %3 = stablehlo.subtract %iterArg_0, %c : tensor<i32>
      stablehlo.return %2, %3 : tensor<24x6xf32>, tensor<i32>
    }
    %1 = stablehlo.negate %0#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z", ?}, {"y", ?}]>]>} : tensor<24x6xf32>
    return %1 : tensor<24x6xf32>
  }
  func.func @disagreeing(%arg0: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", ?}, {?}]>}, %arg1: tensor<i32>, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z", ?}, {?}]>}) -> tensor<24x6xf32> {
    %0:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1) : tensor<24x6xf32>, tensor<i32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>, <@mesh, []>]>}
    cond {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.compare GT, %iterArg_0, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %c = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.negate %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z", ?}, {?}]>]>} : tensor<24x6xf32>
      %2 = stablehlo.subtract %iterArg_0, %c : tensor<i32>
      stablehlo.return %1, %2 : tensor<24x6xf32>, tensor<i32>
    }
    return %0#0 : tensor<24x6xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 3 : i64}, {name = "z", size = 2 : i64}]}}
  func.func @disagreeing(%arg0: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %arg1: tensor<i32>, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z"}, {}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1) : tensor<24x6xf32>, tensor<i32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, <@mesh, []>]>}
    cond {
      %1 = sdy.constant dense<0> : tensor<i32>
      %2 = stablehlo.compare GT, %iterArg_0, %1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %1 = sdy.constant dense<1> : tensor<i32>
      %2 = stablehlo.negate %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z"}, {}]>]>} : tensor<24x6xf32>
      %3 = stablehlo.subtract %iterArg_0, %1 : tensor<i32>
      stablehlo.return %2, %3 : tensor<24x6xf32>, tensor<i32>
    }
    return %0#0 : tensor<24x6xf32>
  }
  func.func @main(%arg0: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z"}, {"y"}]>}, %arg1: tensor<i32>, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z"}, {"y"}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "z"}, {"y"}]>}) {
    %0:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1) : tensor<24x6xf32>, tensor<i32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z"}, {"y"}]>, <@mesh, []>]>}
    cond {
      %2 = sdy.constant dense<0> : tensor<i32>
      %3 = stablehlo.compare GT, %iterArg_0, %2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %2 = sdy.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %iterArg, %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z"}, {"y"}]>]>} : tensor<24x6xf32>
      %4 = stablehlo.subtract %iterArg_0, %2 : tensor<i32>
      stablehlo.return %3, %4 : tensor<24x6xf32>, tensor<i32>
    }
    %1 = stablehlo.negate %0#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "z"}, {"y"}]>]>} : tensor<24x6xf32>
    return %1 : tensor<24x6xf32>
  }
}
