"""Fits constants to measurements, a file per family: rows of a table to constants and errors."""
