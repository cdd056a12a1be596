"""The event loop compiled by Numba: the timeline of SimPy's, to the bit."""
