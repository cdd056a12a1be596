"""The commands, one file each: an ``EXAMPLE`` and a ``command``, which typer calls."""
