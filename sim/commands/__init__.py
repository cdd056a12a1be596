"""What the command line shows and writes; :mod:`sim.cli` says which commands there are.

Functions here turn data into text, tables and files. They are imported when a command needs them,
so that the command line starts fast.
"""
