"""What-if questions: a graph or machine is edited and simulated again.

:mod:`~sim.whatif.grammar` reads edits such as ``compute * 0.8 where kind=attention``, and
:mod:`~sim.whatif.edits` applies them to columns. :mod:`~sim.whatif.profile` finds what the step
would gain from a faster kind of op, :mod:`~sim.whatif.perfect` what it would gain from hidden
communication, and :mod:`~sim.whatif.stragglers` what slow ranks and links cost.
"""

from sim.whatif.edits import edited
from sim.whatif.grammar import parse
from sim.whatif.links import link_names
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
