"""How a model is split over ranks: one file per strategy, each a rewriting of plain data.

A strategy changes the share that a rank computes, says which collectives are at the edges of what
it splits, or rewrites a finished program. A degree of 1 changes nothing. A new strategy is a file
here and its line where it applies (:mod:`sim.builder.shares`, :mod:`sim.builder.stage`).
"""
