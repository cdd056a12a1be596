"""Writes what pages say of keys, commands and figures: ``python -m docs.generate``."""
