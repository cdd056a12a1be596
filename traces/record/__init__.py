"""Records real runs with torch; nothing else here imports torch, and this only when it records.

``pipelines`` records our plans in torch's pipeline runtime; ``parallel`` records DDP, FSDP2 and TP;
``fake`` the collectives of a step of a large job in one process; ``sweep`` kernels and transfers,
and GPUs under ``load``;
``streams`` what one GPU can show; and ``everything`` all of this within a budget of seconds.
"""
