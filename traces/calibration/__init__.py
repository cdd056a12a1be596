"""One file per family of measurements: from rows of a table to a few constants and errors."""
