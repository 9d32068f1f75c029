"""The plan beside the graph, and what two plans differ in."""
