"""Our own trace files: a timeline is written, and read back as it was."""
