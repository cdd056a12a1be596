"""The bytes that a rank holds, over a timeline or without one, and why."""
