"""What is trained, kernel by kernel: sizes, layers, operators; nothing here knows of ranks."""
