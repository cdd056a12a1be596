"""Steps of DDP, FSDP2 and TP on CPU processes over gloo, predicted from other recordings.

The strategies' own graph (:mod:`.job`) runs on processes that share the cores of a machine
(:mod:`.cores`), with costs fitted to some recordings (:mod:`.fit`), and is compared with another
(:mod:`.predict`).
"""
