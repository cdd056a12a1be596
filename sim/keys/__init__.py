"""Tables of checked keys in the files that people write, and what is refused, in sentences."""
