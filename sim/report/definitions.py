"""The meaning of every figure of a summary, in a sentence that the page shows on hover."""

from __future__ import annotations

FIGURES = {
    "step_time_s": (
        "step time", "s",
        "From the first start to the last end of one training step; if there are several steps, "
        "the mean of those of the steady state. simulation.between_ms is added.",
    ),
    "samples_per_s": ("samples per second", "", "Samples of the global batch over the step time."),
    "tokens_per_s": ("tokens per second", "", "Tokens of the global batch over the step time."),
    "tflops_per_gpu": (
        "model TFLOP/s per GPU", "",
        "FLOPs of the model by Megatron's formula, without recomputation, over step time and GPUs.",
    ),
    "mfu": (
        "MFU", "share", "Model FLOPs utilisation: model FLOP/s per GPU over the peak of its dtype."
    ),
    "hfu": ("HFU", "share", "Hardware FLOPs utilisation: MFU with recomputed FLOPs."),
    "idle_share_of_step": (
        "idle share of the step", "share",
        "Mean over ranks of the time in which no kernel computes, over the step time.",
    ),
    "idle_over_ideal": (
        "idle over computing", "share",
        "Time without computing over time with computing: the bubble of the GPipe and Megatron-LM "
        "papers.",
    ),
}  # fmt: skip
"""By key of summary.json: label, unit, definition."""

INTERVAL = (
    "80 % of step times lie between these two, given what is not known of prices and of assumed "
    "values. What a framework does that is not simulated is not in it."
)
TIMES = {
    "compute": "Some kernel of the rank computes.",
    "exposed": "A communication of this dimension runs or waits while no kernel computes; of "
    "several dimensions at once only one counts.",
    "hidden": "Data of this dimension moves while a kernel of the rank computes.",
    "waiting": "An op of this dimension has started and a peer has not.",
    "exposed_waiting": "The part of the exposed time in which no data moves: an op of this "
    "dimension waits for a peer.",
    "empty": "Neither a kernel nor a communication of the rank runs.",
}
CAUSES = {
    "warm_up": "The rank has not computed yet, and waits only for the pipeline.",
    "drain": "The rank will not compute any more, apart from the optimizer, and waits only for the "
    "pipeline.",
    "waiting": "A collective or transfer of the rank has started and a peer has not.",
    "dependency": "Nothing has started: what comes next waits for another rank.",
    "launch": "Nothing has started: what comes next waits for the host to launch it.",
    "lag": "A gap that the recording has, without a known cause.",
}
EXPOSED = "Data of dimension {} moves while no kernel of the rank computes."
MEMORY = {
    "peak_bytes": "The most bytes that the rank holds at once, as torch counts allocated bytes.",
    "device_bytes": "The peak with CUDA context, cuBLAS and NCCL, to compare with a GPU's memory.",
    "reserved_bytes": "What PyTorch's caching allocator has reserved at its peak.",
    "fragmentation": "Share of the reserved bytes that is not allocated at the peak.",
    "seconds": "When the peak is reached for the first time.",
    "stands_for": "Ranks of the job that behave like this one, which is simulated for all of them.",
}
PATH = (
    "Seconds of the longest chain of ops, each of which let the next one start; "
    "they sum to the step time."
)
SENT = "Bytes that a rank sends in this dimension in one step."


def cause(name: str) -> str:
    """Return what a cause of not computing means, as a sentence; empty for an unknown cause.

    >>> cause("exposed_tp")
    'Data of dimension tp moves while no kernel of the rank computes.'
    """
    if name.startswith("exposed_"):
        return EXPOSED.format(name.removeprefix("exposed_"))
    return CAUSES.get(name, "")
