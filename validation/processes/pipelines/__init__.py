"""Pipelines as processes of torch over gloo run them: what each does between its computes.

A pipeline's Plan becomes the calls of torch's loops or of its runtime (:mod:`.calls`), these with
measured costs a Graph for the engine (:mod:`.graph`); costs are fitted to some recorded runs
(:mod:`.measure`) and predict others (:mod:`.predict`).
"""
