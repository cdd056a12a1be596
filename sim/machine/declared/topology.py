"""The whole topology file: a GPU, a node, the fabric between nodes, constants of collectives."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from sim.machine.declared.gpu import GpuTable
from sim.machine.declared.table import Table, lacks
from sim.machine.declared.values import (
    ONLY,
    Bandwidth,
    BySize,
    Count,
    Delay,
    Dollars,
    Ratio,
    Shape,
    Share,
    Text,
    Word,
)
from sim.machine.fabric_kinds import Kind


class _Cable(Table):
    bandwidth: Bandwidth
    """bytes per second in one direction"""
    efficiency: Share | None = None
    """share of the bandwidth that large messages reach; 1 unless given"""
    latency: Delay
    """time that a message takes to the other end"""


class LinkTable(_Cable):
    """The links from each GPU to a switch inside the node, each way."""

    kind: Word | None = None
    """kind of these links; default: nvlink"""
    gpus: Count | None = None
    """neighbouring GPUs that each switch joins; all of the node unless given"""


class TierTable(_Cable):
    """Further switches inside a node, a table per tier, in the order of routes."""

    model_config = ConfigDict(title="TIER")

    from_: Annotated[Word, Field(alias="from")]
    """what its links connect to its switches: gpu, link or an earlier tier"""
    kind: Word | None = None
    """kind of its links; default: the name of the tier"""
    gpus: Count | None = None
    """neighbouring GPUs that each switch joins; all of the node unless given"""


class NicTable(_Cable):
    """The network ports of a node, each way."""

    count: Count
    """number of ports of a node, which its GPUs share evenly"""
    from_: Annotated[Word | None, Field(alias="from")] = None
    """where the ports are attached, if there are tiers: gpu, link or a tier"""


class NodeTable(Table):
    """One node: GPUs that are connected by fast links."""

    gpus: Count
    """number of GPUs of a node"""
    link: LinkTable
    tiers: Annotated[dict[Word, TierTable], Field(json_schema_extra=ONLY)] | None = None
    nic: NicTable


class FabricTable(Table):
    """The network between the nodes."""

    kind: Kind
    """one switch, rail (a leaf per port of a node), fat_tree (a leaf per some nodes), dragonfly
    (groups of leaves, each group joined to all others) or torus"""
    nodes_per_leaf: Count | None = None
    """nodes below one leaf switch; needed for rail, fat_tree and dragonfly"""
    nodes_per_spine: Count | None = None
    """nodes below one set of spine switches; all of them unless given"""
    oversubscription: Ratio | None = None
    """bandwidth into a leaf over bandwidth out of it; 1 unless given"""
    spine_oversubscription: Ratio | None = None
    """the same of a set of spine switches, on top; 1 unless given"""
    rails: Count | None = None
    """leaves that the ports of a node are dealt to in turn, for rail; one per port unless given"""
    leaves_per_group: Count | None = None
    """leaves of a group, for dragonfly; 1 unless given"""
    local_bandwidth: Bandwidth | None = None
    """bytes per second each way between two leaves of a group, for dragonfly"""
    global_bandwidth: Bandwidth | None = None
    """bytes per second each way between two groups, for dragonfly"""
    shape: Shape | None = None
    """nodes along each dimension, for torus, such as `4x4x8`"""
    link_bandwidth: Bandwidth | None = None
    """bytes per second each way between two neighbours, for torus"""
    latency: Delay
    """time that a message takes to pass one switch and its cable"""
    max_nodes: Count | None = None
    """nodes that the fabric can hold; any number unless given"""


class TunerTable(Table):
    """What NCCL's tuner believes of this GPU, which decides what it takes between nodes; without
    this table the fastest algorithm and protocol count."""

    ll128: Bandwidth
    """most that NCCL expects of a port in LL128"""
    nvls_tree: Bandwidth
    """most that NCCL expects of a port in an NVLS tree"""


class ProtocolTable(Table):
    """What a collective costs besides the bytes on its links, per protocol of NCCL, and per
    protocol in large buffers; the fastest counts, but for the protocol of rings where
    `[collectives.tuner]` chooses it. A value may be a table by the GPUs that the group has in a
    node, such as `{ 2 = 0.66, 8 = 0.76 }`."""

    model_config = ConfigDict(title="PROTOCOL")

    base: BySize[Delay]
    """time for launch and set-up"""
    hop: BySize[Delay] | None = None
    """time of a round inside a node beyond its route's latency; 0 unless given"""
    inner: BySize[Delay] | None = None
    """the same where the ring also leaves the node; hop unless given"""
    fabric: BySize[Delay] | None = None
    """the same for a round between nodes; hop unless given"""
    share: BySize[Share] | None = None
    """share of a link's nominal bandwidth that is reached inside a node; a protocol without it runs
    between nodes alone, and needs fabric_share"""
    fabric_share: BySize[Share] | None = None
    """the same between nodes; the links' efficiency unless given"""

    @model_validator(mode="after")
    def _has_a_share(self) -> Self:
        if self.share is None and self.fabric_share is None:
            raise lacks("share")
        return self


class _Protocols(Table):
    model_config = ConfigDict(title="COLLECTIVE")

    simple: ProtocolTable | None = None
    simple_large: ProtocolTable | None = None
    ll: ProtocolTable | None = None
    ll128: ProtocolTable | None = None
    ll128_large: ProtocolTable | None = None


class CollectivesTable(Table):
    """Fitted constants of collectives, a table per collective."""

    from_: Annotated[Text | None, Field(alias="from", exclude=True)] = None
    """topology on whose links they were measured, if not on this one's; outputs say so"""
    tuner: TunerTable | None = None
    all_reduce: _Protocols | None = None
    all_gather: _Protocols | None = None
    reduce_scatter: _Protocols | None = None
    all_to_all: _Protocols | None = None
    p2p: _Protocols | None = None
    nvls: _Protocols | None = None
    nvls_tree: _Protocols | None = None
    tree: _Protocols | None = None


class StorageTable(Table):
    """Where checkpoints go; what is not given does not limit them."""

    write: Bandwidth | None = None
    """bytes per second that the storage takes from all nodes"""
    read: Bandwidth | None = None
    """bytes per second that it gives to all nodes; write unless given"""
    node: Bandwidth | None = None
    """bytes per second that one node reaches, each way"""


class PriceTable(Table):
    """What the machine costs."""

    gpu_hour: Dollars
    """price of a GPU for an hour, with its part of the node, in USD"""


class Topology(Table):
    """A machine, whole: what its file and the bases of it say."""

    base: Text | None = None
    """topology from which this one takes what it does not say: a name, or a TOML file"""
    name: Text | None = None
    """what the topology is called; the file's name unless given"""
    gpu: GpuTable
    node: NodeTable
    fabric: FabricTable
    collectives: Annotated[CollectivesTable, Field(default_factory=CollectivesTable)]
    storage: StorageTable | None = None
    price: PriceTable | None = None
