"""What a user wrote: the keys of a recipe, what is filled in, and what is refused."""
