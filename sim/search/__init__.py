"""The search for the layout of a job that is best: the space, a lower bound, and what is tried."""
