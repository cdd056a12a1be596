"""What the command line shows and writes; the commands are in :mod:`traincast.commands`.

Functions here turn data into text, tables and files. They are imported when a command needs them,
so that the command line starts fast.
"""
