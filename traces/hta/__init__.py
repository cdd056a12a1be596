"""Writes one file per rank, as PyTorch's profiler does."""
