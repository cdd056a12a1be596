"""How a job becomes a graph: which ops each rank runs, and what each of them waits for."""
