"""Parts of the benchmark of topologies: what is asked, of whom, in which order, and what follows from the answers."""
