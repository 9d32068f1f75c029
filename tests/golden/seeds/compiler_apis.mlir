// What people can ask for (RFC, Components): shardings of inputs and outputs, open and closed; a constraint on a value
// in between; two values sharded alike by a group's number; a manual computation, whose body sees the blocks along "x"
// and spreads "y" through itself.
// == module
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=4]>
  func.func @main(%a: tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %b: tensor<12x24xf32>, %w: tensor<24x6xf32>) -> (tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<12x24xf32>, tensor<12x24xf32>) {
    %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<12x24xf32>, tensor<24x6xf32>) -> tensor<12x6xf32>
    %1 = sdy.sharding_constraint %a <@mesh, [{"x", ?}, {"z"}]> : tensor<12x24xf32>
    %2 = stablehlo.tanh %1 : tensor<12x24xf32>
    %3 = stablehlo.negate %b : tensor<12x24xf32>
    sdy.sharding_group %2 group_id=0 : tensor<12x24xf32>
    sdy.sharding_group %3 group_id=0 : tensor<12x24xf32>
    %4 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y", ?}]>]>} : tensor<12x24xf32>
    %5 = sdy.manual_computation(%4) in_shardings=[<@mesh, [{"x"}, {?}]>] out_shardings=[<@mesh, [{"x"}, {?}]>] manual_axes={"x"} (%local: tensor<6x24xf32>) {
      %6 = stablehlo.negate %local : tensor<6x24xf32>
      sdy.return %6 : tensor<6x24xf32>
    } : (tensor<12x24xf32>) -> tensor<12x24xf32>
    return %0, %3, %5 : tensor<12x6xf32>, tensor<12x24xf32>, tensor<12x24xf32>
  }
}
// == basic
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=4]>
  func.func @main(%arg0: tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"z", ?}]>}, %arg1: tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"z", ?}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", ?}, {"y", ?}]>}) -> (tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"z", ?}]>}, tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {"y", ?}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"y", ?}]>]>} : (tensor<12x24xf32>, tensor<24x6xf32>) -> tensor<12x6xf32>
    %1 = sdy.sharding_constraint %arg0 <@mesh, [{"x", ?}, {"z"}]> : tensor<12x24xf32>
    %2 = stablehlo.tanh %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"z", ?}]>]>} : tensor<12x24xf32>
    %3 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {"z", ?}]>]>} : tensor<12x24xf32>
    sdy.sharding_group %2 group_id=0 : tensor<12x24xf32>
    sdy.sharding_group %3 group_id=0 : tensor<12x24xf32>
    %4 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y", ?}]>]>} : tensor<12x24xf32>
    %5 = sdy.manual_computation(%4) in_shardings=[<@mesh, [{"x"}, {"y", ?}]>] out_shardings=[<@mesh, [{"x"}, {"y", ?}]>] manual_axes={"x"} (%arg3: tensor<6x24xf32>) {
      %6 = stablehlo.negate %arg3 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y", ?}]>]>} : tensor<6x24xf32>
      sdy.return %6 : tensor<6x24xf32>
    } : (tensor<12x24xf32>) -> tensor<12x24xf32>
    return %0, %3, %5 : tensor<12x6xf32>, tensor<12x24xf32>, tensor<12x24xf32>
  }
}
// == full
module {
  sdy.mesh @mesh = <["x"=2, "y"=3, "z"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 3 : i64}, {name = "z", size = 4 : i64}]}}
  func.func @main(%arg0: tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"z"}]>}, %arg1: tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"z"}]>}, %arg2: tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {"y"}]>}) -> (tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"z"}]>}, tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : (tensor<12x24xf32>, tensor<24x6xf32>) -> tensor<12x6xf32>
    %1 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"z"}]>]>} : tensor<12x24xf32>
    %2 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : tensor<12x24xf32>
    %3 = sdy.manual_computation(%2) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x"} (%arg3: tensor<6x24xf32>) {
      %4 = stablehlo.negate %arg3 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : tensor<6x24xf32>
      sdy.return %4 : tensor<6x24xf32>
    } : (tensor<12x24xf32>) -> tensor<12x24xf32>
    return %0, %1, %3 : tensor<12x6xf32>, tensor<12x24xf32>, tensor<12x24xf32>
  }
}
