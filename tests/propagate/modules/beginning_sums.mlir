sdy.mesh @mesh = <["x"=2, "y"=4, "z"=3, "w"=2]>
func.func @f0(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"z"}], unreduced={"y"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{}, {"z"}], unreduced={"y"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f1(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}], unreduced={"y"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{"z"}, {}], unreduced={"y"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f2(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"y"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{}, {}], unreduced={"y"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f3(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{}, {}], unreduced={"x"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f4(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}], unreduced={"x", "y"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{"z"}, {}], unreduced={"x", "y"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f5(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y":(1)2}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{"x"}, {}], unreduced={"y":(1)2}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f6(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y":(1)2}, {}], unreduced={"y":(2)2, "z"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{"x", "y":(1)2}, {}], unreduced={"y":(2)2, "z"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f7(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}], unreduced={"x", "y", "w"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{"z"}, {}], unreduced={"x", "y", "w"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f8(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}], unreduced={"x"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{"y"}, {}], unreduced={"x"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
func.func @f9(%arg0: tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<48x24xf32>, tensor<48x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x", "y"}>}) {
  %0 = sdy.reshard %arg0 <@mesh, [{}, {}], unreduced={"x", "y"}> : tensor<48x24xf32>
  return %0, %arg0 : tensor<48x24xf32>, tensor<48x24xf32>
}
