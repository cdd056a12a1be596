"""The kinds of which a model's layers are made, one file each, found by name."""
