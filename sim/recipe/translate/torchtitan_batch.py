"""How many samples a torchtitan job takes at once and in a step, by the names of each year."""

from __future__ import annotations

from sim.recipe.translate.torchtitan_keys import Keys

TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"


def batches(titan: Keys, dp: int) -> tuple[int, int]:
    """Return the samples of a microbatch, and those of a step of ``dp`` replicas.

    Raises InputError for a batch that is not simulated.
    """
    piped = titan.degree("pipeline_parallel_degree") > 1
    if TOKENS in titan.given:
        return _of_tokens(titan, dp, piped)
    local = titan.count("training.local_batch_size", 8)
    said = titan.of(int, "training.global_batch_size", -1)
    batch = said if said > 0 else local * dp
    if not piped:
        return local, batch
    if batch // dp != local:
        titan.refuse(
            f"training.global_batch_size makes {batch // dp} samples per replica, but the pipeline "
            f"is flushed after {local}; that is not simulated, leave it out"
        )
    return _of_pipeline(titan, local), batch


def _of_pipeline(titan: Keys, local: int) -> int:
    """Return the samples of a pipeline's microbatch.

    They are given, or follow from the number of microbatches. With the keys of 2024 that number is
    by default the pipeline's ranks (pipelining_utils.py); with later keys a microbatch has one
    sample by default.
    """
    size, count = (
        "parallelism.pipeline_parallel_microbatch_size",
        "parallelism.pipeline_parallel_microbatches",
    )
    if size in titan.given or not (titan.old or count in titan.given):
        return titan.count(size, 1)
    parts = titan.count(count, titan.degree("pipeline_parallel_degree"))
    if local % parts:
        titan.refuse(f"{count} = {parts} does not divide the batch of {local} samples per replica")
    return local // parts


def _of_tokens(titan: Keys, dp: int, piped: bool) -> tuple[int, int]:
    """Return the same where tokens are counted (2026), in sequences of max_context_length."""
    sequence = titan.count("training.seq_len", 2048)
    tokens = titan.count(TOKENS, 16384)
    if tokens % sequence:
        titan.refuse(f"{TOKENS} = {tokens} is not a multiple of a sequence's {sequence} tokens")
    each = tokens // sequence
    count = titan.count("parallelism.num_pp_microbatches", 1) if piped else 1
    step = titan.of(int, "training.num_tokens_per_train_step", -1)
    batch = step // sequence if step > 0 else each * count * dp
    if piped and batch != each * count * dp:
        titan.refuse(
            "training.num_tokens_per_train_step makes several flushes of the pipeline, which are "
            "not simulated; leave it out"
        )
    return each, batch
