"""The meaning of every table and key of a topology file, in a sentence or a phrase."""

from __future__ import annotations

from sim.machine.assumed import assumed

_POWER = assumed("power")

TABLES = {
    "gpu": "One GPU of the machine.",
    "gpu.peak": "The most dense FLOP/s of the GPU, by number format.",
    "gpu.gemm.DTYPE": "Fitted constants of matrix products, a table per number format.",
    "gpu.attention": (
        "Which kernel of fused attention `model.attention` means on this GPU when it names none, "
        "and constants that hold for all kernels; if those are complete, no kernel needs a table."
    ),
    "gpu.attention.KERNEL": (
        "Fitted constants of fused attention, a table per kernel. A share may be a table by head "
        "dimension, such as `{ 64 = 0.41, 128 = 0.6 }`."
    ),
    "gpu.memory_kernels": "Shares of the memory bandwidth that memory-bound kernels reach.",
    "gpu.power": "What the board may draw, which sets clocks; without it they stay at boost.",
    "gpu.runtime": "Memory that a process takes besides the blocks of torch's allocator.",
    "gpu.communication": "What communication takes from the kernels beside it on a GPU.",
    "gpu.communication.sms": "SMs that a communication kernel holds on each of its GPUs.",
    "gpu.communication.hbm": "Bytes of memory traffic for each byte that a GPU sends.",
    "node": "One node: GPUs that are connected by fast links.",
    "node.link": "The links from each GPU to a switch inside the node, each way.",
    "node.tiers.TIER": "Further switches inside a node, a table per tier, in the order of routes.",
    "node.nic": "The network ports of a node, each way.",
    "fabric": "The network between the nodes.",
    "collectives": "Fitted constants of collectives, a table per collective.",
    "collectives.tuner": (
        "What NCCL's tuner believes of this GPU, which decides what it takes between nodes; "
        "without this table the fastest algorithm and protocol count."
    ),
    "collectives.COLLECTIVE.PROTOCOL": (
        "What a collective costs besides the bytes on its links, per protocol of NCCL, and per "
        "protocol in large buffers; the fastest counts, but for the protocol of rings where "
        "`[collectives.tuner]` chooses it. A value may be a table by the GPUs that the group has "
        "in a node, such as `{ 2 = 0.66, 8 = 0.76 }`."
    ),
}
"""By table: what it describes."""

_CABLE = {
    "bandwidth": "bytes per second in one direction",
    "efficiency": "share of the bandwidth that large messages reach; 1 unless given",
    "latency": "time that a message takes to the other end",
}
_JOINED = {"gpus": "neighbouring GPUs that each switch joins; all of the node unless given"}
_SENT = {
    "all_reduce": "all-reduces",
    "all_gather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "broadcast": "broadcasts",
    "p2p": "sends and receives",
}
_ATTENTION = {
    "forward": "share of the peak that a long forward reaches",
    "backward": "share of the peak that a long backward reaches",
    "keys": "keys per query at which half of the share is reached",
    "backward_keys": "the same in the backward; as keys unless given",
    "masked": "keys per query that a causal mask adds, as it cuts through blocks; 0 unless given",
    "head_dim": "head dimension at which half of the share is reached; 0 unless given",
    "quantisation": "1: a partly filled last wave costs a whole one; 0: it costs its part",
    "memory": "share of the memory bandwidth that is reached",
    "fixed": "time that every kernel takes on top",
}
MEANINGS: dict[str, dict[str, str]] = {
    "gpu": {
        "name": "name of the GPU",
        "sms": "number of streaming multiprocessors (compute units of AMD's GPUs)",
        "memory": "size of the GPU's memory, as the driver shows it",
        "memory_bandwidth": "bandwidth of that memory",
        "host_bandwidth": "bandwidth to and from the host, each way; needed for offload",
        "host_memory_bandwidth": "a GPU's part of the host's memory bandwidth; needed for offload",
        "spread": "sigma of the speeds that like GPUs sustain, as a share; "
        f"{assumed('gpu')['spread']:g} unless given",
    },
    "gpu.peak": {
        "bf16": "products of bf16",
        "fp16": "products of fp16; needed for jobs in fp16",
        "tf32": "products of tf32; needed for jobs with training.matmul",
        "fp32": "products of fp32",
        "fp8": "products of fp8; needed for jobs with training.fp8",
        "fp64": "products of fp64",
    },
    "gpu.gemm.DTYPE": {
        "tile_256x128": "share of the peak that a full wave of tiles of 256 x 128 reaches",
        "tile_128x128": "the same for tiles of 128 x 128",
        "tile_128x64": "the same for tiles of 128 x 64",
        "tile_64x64": "the same for tiles of 64 x 64",
        "ramp": "columns of k that filling and draining a tile costs",
        "quantisation": "1: a partly filled last wave costs a whole one; 0: it costs its part",
        "split": "factor on the work when k is split over several tiles",
        "derating": "share of its time that falling clocks add to a long burst of products",
        "derating_seconds": "length of a burst of products in which half of the derating is lost",
        "accumulate": "share of extra memory traffic that arithmetic does not hide",
        "memory": "share of the memory bandwidth that is reached",
        "fixed": "time that every product takes on top",
    },
    "gpu.attention": {
        "flash": 'the kernel that Transformer Engine takes, for model.attention = "flash"',
        "sdpa": 'the kernel that PyTorch takes, for model.attention = "sdpa"',
        **_ATTENTION,
    },
    "gpu.attention.KERNEL": _ATTENTION,
    "gpu.memory_kernels": {
        "fixed": "time that every kernel takes on top",
        "norm": "norms",
        "elementwise": "elementwise kernels",
        "softmax": "softmax",
        "embedding": "embedding lookups",
        "cross_entropy": "the loss",
        "optimizer": "the update of the weights",
        "norm_backward": "backwards of norms; without it, as norm",
        "mxfp8": "casts to mxfp8; without it, as elementwise",
        "gather": "tokens copied in the order of their experts; without it, as elementwise",
        "scatter": "sums of such copies; without it, as elementwise",
        "eager_gather": "gather by PyTorch's index_select; without it, as elementwise",
        "eager_scatter": "scatter by PyTorch's scatter_add; without it, as elementwise",
    },
    "gpu.power": {
        "rated": "power of the board on which the derating of products was measured",
        "cap": "power that the board may draw, averaged over a window of derating_seconds",
        "idle": "power of a GPU whose clocks are up and that runs nothing",
        "exponent": f"exponent of power over clock; {_POWER['exponent']:g} unless given",
        "memory": "power above idle of kernels that memory limits, over rated less idle; "
        f"{_POWER['memory']:g} unless given",
        "attention": "power above idle of attention over that of products; "
        f"{_POWER['attention']:g} unless given",
    },
    "gpu.runtime": {
        "context": "the CUDA context",
        "workspace": "cuBLAS's workspace",
        "channels": "number of channels of a NCCL communicator",
        "connection": "NCCL's buffers for each channel and peer",
    },
    "gpu.communication": {
        "contention": (
            "share of its speed that arithmetic loses beside communication that takes all of the "
            "memory bandwidth, and less in proportion; unless given that of assumed.toml"
        )
    },
    "gpu.communication.sms": {
        **{key: f"{what} inside a node" for key, what in _SENT.items()},
        "exchange": "steps of a ring that copy engines run, for tensor-parallel overlap",
        "fabric": "collectives between nodes",
        "fabric_p2p": "sends and receives between nodes",
        "nvls": "collectives that the switch sums (NVLink SHARP)",
    },
    "gpu.communication.hbm": _SENT,
    "node": {"gpus": "number of GPUs of a node"},
    "node.link": {"kind": "kind of these links; default: nvlink", **_JOINED, **_CABLE},
    "node.tiers.TIER": {
        "from": "what its links connect to its switches: gpu, link or an earlier tier",
        "kind": "kind of its links; default: the name of the tier",
        **_JOINED,
        **_CABLE,
    },
    "node.nic": {
        "count": "number of ports of a node, which its GPUs share evenly",
        "from": "where the ports are attached, if there are tiers: gpu, link or a tier",
        **_CABLE,
    },
    "fabric": {
        "kind": "one switch, rail (a leaf per port of a node), fat_tree (a leaf per some nodes), "
        "dragonfly (groups of leaves, each group joined to all others) or torus",
        "nodes_per_leaf": "nodes below one leaf switch; needed for rail, fat_tree and dragonfly",
        "nodes_per_spine": "nodes below one set of spine switches; all of them unless given",
        "oversubscription": "bandwidth into a leaf over bandwidth out of it; 1 unless given",
        "spine_oversubscription": "the same of a set of spine switches, on top; 1 unless given",
        "rails": "leaves that the ports of a node are dealt to in turn, for rail; one per port "
        "unless given",
        "leaves_per_group": "leaves of a group, for dragonfly; 1 unless given",
        "local_bandwidth": "bytes per second each way between two leaves of a group, for dragonfly",
        "global_bandwidth": "bytes per second each way between two groups, for dragonfly",
        "shape": "nodes along each dimension, for torus, such as `4x4x8`",
        "link_bandwidth": "bytes per second each way between two neighbours, for torus",
        "latency": "time that a message takes to pass one switch and its cable",
        "max_nodes": "nodes that the fabric can hold; any number unless given",
    },
    "collectives": {
        "from": "topology on whose links they were measured, if not on this one's; outputs say so",
    },
    "collectives.tuner": {
        "ll128": "most that NCCL expects of a port in LL128",
        "nvls_tree": "most that NCCL expects of a port in an NVLS tree",
    },
    "collectives.COLLECTIVE.PROTOCOL": {
        "base": "time for launch and set-up",
        "hop": "time of a round inside a node beyond its route's latency; 0 unless given",
        "inner": "the same where the ring also leaves the node; hop unless given",
        "fabric": "the same for a round between nodes; hop unless given",
        "share": "share of a link's nominal bandwidth that is reached inside a node; a protocol "
        "without it runs between nodes alone, and needs fabric_share",
        "fabric_share": "the same between nodes; the links' efficiency unless given",
    },
}
"""By table and key: what the value is."""
