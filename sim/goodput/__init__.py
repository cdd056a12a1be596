"""Training of weeks at the level of steps: failures, checkpoints, spare nodes, slow steps."""
