"""Simulates recordings again: as they were, with other hosts, without stragglers."""
