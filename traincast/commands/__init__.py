"""The commands, one file each, with an ``EXAMPLE`` and a ``command``, which typer calls."""
