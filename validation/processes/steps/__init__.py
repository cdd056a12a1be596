"""Steps of DDP, FSDP2 and TP on CPU processes over gloo, predicted from other recordings.

The strategies' own Graph (:mod:`.job`) has costs (:mod:`.costs`) that are fitted to some recordings
(:mod:`.fit`, :mod:`.gloo`), and is compared with another (:mod:`.errors`).
"""
