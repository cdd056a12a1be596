"""What a timeline says: shares of time, causes of idling, the critical path, memory, traffic.

Each file answers one question about a :class:`sim.timeline.Timeline` (or its graph) and returns
data. Nothing here prints or draws, and nothing loops over all ops.
"""
