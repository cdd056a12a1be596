"""Our own trace files: a timeline written, and read back as it was."""
