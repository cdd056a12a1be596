"""What is trained, kernel by kernel: sizes, layers and operators. Nothing here knows of ranks."""
