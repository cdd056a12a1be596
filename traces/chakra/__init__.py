"""Execution traces of MLCommons Chakra, written and read."""
