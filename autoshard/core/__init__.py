"""What an operator is to a plan: tensor types, factor rules, and the strategies that follow from them."""
