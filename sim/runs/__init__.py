"""What leads from a recipe to results: run, check, compare, sweep, and the summary of a step."""
