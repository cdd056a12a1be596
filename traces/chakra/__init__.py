"""Writes and reads execution traces of MLCommons Chakra."""
