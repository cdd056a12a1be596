"""The sections of a recipe that only ``traincast goodput`` reads: failures and checkpoints."""

from typing import Annotated, Literal

from pydantic import Field

from sim.keys.section import Section
from sim.recipe.times import Factors, Interval, Mean, Rate, Time


class SlowTable(Section):
    """Spells in which one node is slow, and with it every step of the job."""

    between: Time
    """mean time between two spells of a node, such as 2000 h"""
    lasts: Time
    """mean length of a spell, such as 1 h"""
    factors: Factors
    """what a step takes then over what it takes else; one of the list is drawn for each spell"""


class FailuresSection(Section):
    """What fails, how often, and what follows; sim/goodput/defaults.toml has the defaults."""

    gpu: Mean | None = None
    """mean time between failures of one GPU, such as 79000 h, or never"""
    nic: Mean | None = None
    """mean time between failures of one network port, with its cable and its part of switches"""
    node: Mean | None = None
    """mean time between failures of the rest of a node: host, power, maintenance"""
    software: Mean | None = None
    """mean time between failures of the software, per node; after them no node is replaced"""
    job: Mean | None = None
    """mean time between failures of the whole job, instead of the four above"""
    detection: Time | None = None
    """time from a failure until the job knows of it"""
    restart: Time | None = None
    """time from then to the first step, but for waiting for a spare and reading the checkpoint"""
    spares: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """nodes that wait to replace failed ones, and are paid for; default: there is always one, and
    it costs nothing"""
    repair: Time | None = None
    """mean time until a failed node is a spare"""
    slow: SlowTable | None = None
    """spells in which one node is slow: { between = "2000 h", lasts = "1 h",
    factors = [1.2, 2.0] }; default: there are none"""


class CheckpointSection(Section):
    """How and how often the state of the job is saved."""

    kind: Literal["blocking", "asynchronous", "memory"] | None = None
    """blocking (the default: steps stop until it is in storage), asynchronous (they stop for the
    copy to the host, from which it is written), or memory (it stays in the memory of two hosts)"""
    interval: Interval | None = None
    """steps from one to the next, or a time, or what a formula says: young, daly, or best (the
    least expected time); default: best"""
    write: Rate | None = None
    """bytes per second that storage takes from the whole job; default: the topology's [storage]"""
    read: Rate | None = None
    """the same of reading; default: write, if that is given"""
