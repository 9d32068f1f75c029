"""A pipeline on devices: the plan of each stage on its mesh, the programs of its pieces, and what goes between them."""
