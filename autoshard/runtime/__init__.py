"""Running programs on ranks: collectives (`comm`, `local`, `mpi`), the launcher (`launch`), its ranks
(`worker`)."""
