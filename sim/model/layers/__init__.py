"""The kinds of parts that layers consist of, one file each, found by name.

A file defines a class ``Kind``, a :class:`sim.model.part.Part`: the operators that it runs, the
parameters that a rank holds of it, the matrices that fp8 multiplies, and what recomputation adds.
"""
