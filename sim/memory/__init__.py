"""Which bytes a rank holds, over a timeline or without one, and why."""
