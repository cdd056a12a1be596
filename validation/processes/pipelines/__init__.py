"""Pipelines as processes of torch over gloo run them: what each does between its computes.

A pipeline's Plan becomes the calls of torch's loops or of its runtime (:mod:`.calls`), and these a
Graph (:mod:`.graph`); costs are fitted to some recorded runs (:mod:`.measure`), price the ops
(:mod:`.predict`), and are compared with other runs (:mod:`.errors`).
"""
