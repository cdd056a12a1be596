"""Searches for an order with given times of the stages, behind the schedules that take times."""
