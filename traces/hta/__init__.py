"""One file per rank as PyTorch's profiler writes them."""
