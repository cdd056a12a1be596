"""What if: a graph or machine with some things faster, slower or gone, simulated again.

:mod:`~sim.whatif.grammar` reads edits such as ``compute * 0.8 where kind=attention``,
:mod:`~sim.whatif.edits` applies them to columns, :mod:`~sim.whatif.profile` finds out what a
faster kind of op would gain, :mod:`~sim.whatif.perfect` what hidden communication would,
and :mod:`~sim.whatif.stragglers` what slow ranks and links cost.
"""

from sim.whatif.edits import edited, link_names
from sim.whatif.grammar import parse
from sim.whatif.perfect import perfect_overlap
from sim.whatif.profile import causal_profile
from sim.whatif.stragglers import healed, rank_matrix, stragglers

__all__ = [
    "causal_profile",
    "edited",
    "healed",
    "link_names",
    "parse",
    "perfect_overlap",
    "rank_matrix",
    "stragglers",
]
