"""PyTorch profiler (Kineto) traces, one file per rank, read into a recording.

Files may come from PyTorch 1.8 to today, on NVIDIA and AMD. :mod:`~traces.kineto.events` reads a
file as a stream, :mod:`~traces.kineto.rank` keeps the rows that matter,
:mod:`~traces.kineto.linked` relates those of one rank, :mod:`~traces.kineto.collectives` and
:mod:`~traces.kineto.clocks` relate ranks, and :mod:`~traces.kineto.build` makes a timeline of it
all.
"""

from traces.kineto.reader import read, recognises

__all__ = ["read", "recognises"]
