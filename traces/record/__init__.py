"""Recording real runs with torch: the only package here that imports it, and only when it records.

``pipelines`` records our plans in torch's pipeline runtime, ``parallel`` DDP, FSDP2 and TP,
``fake`` the collectives of a step of a large job in one process, ``sweep`` kernels and transfers,
``streams`` what one GPU can show; ``everything`` all of it within a budget of seconds.
"""
