"""Recorded runs on CPU processes, predicted from costs of other recordings.

Processes are threads, messages and collectives on the cores of one machine, which the engine shares
evenly (:mod:`.cores`). :mod:`.pipelines` and :mod:`.steps` say what they do, as a Graph, and what
it costs; :mod:`.predict` draws costs, and :mod:`.compared` has what each run says beside its
prediction.
"""
