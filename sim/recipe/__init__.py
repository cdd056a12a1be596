"""What a user wrote: the keys of a recipe, their defaults, and what is refused."""
