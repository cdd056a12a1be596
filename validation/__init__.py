"""Predictions against published runs: their figures, the recipes behind them, and the errors."""
