"""Predictions of runs on CPU processes, from costs of other recordings."""
