"""What every job has: replicas, the pipeline and its messages, both ends of a model, the update.

What a job may have besides is a feature in :mod:`sim.strategies`.
"""
