"""The tables of one GPU: what it is, what it draws, and what communication takes from it."""

from typing import Self

from pydantic import model_validator

from sim.machine.declared.fitted import AttentionTable, MemoryKernelsTable, _GemmTables
from sim.machine.declared.table import Table, related
from sim.machine.declared.values import (
    Amount,
    Bandwidth,
    Bytes,
    Count,
    Exponent,
    Flops,
    Part,
    Sms,
    Text,
    Watts,
    Weight,
)


class PeakTable(Table):
    """The most dense FLOP/s of the GPU, by number format."""

    bf16: Flops
    """products of bf16"""
    fp16: Flops | None = None
    """products of fp16; needed for jobs in fp16"""
    tf32: Flops | None = None
    """products of tf32; needed for jobs with training.matmul"""
    fp32: Flops
    """products of fp32"""
    fp8: Flops | None = None
    """products of fp8; needed for jobs with training.fp8"""
    fp64: Flops | None = None
    """products of fp64"""


class PowerTable(Table):
    """What the board may draw, which sets clocks; without it they stay at boost."""

    rated: Watts
    """power of the board on which the derating of products was measured"""
    cap: Watts
    """power that the board may draw, averaged over a window of derating_seconds"""
    idle: Watts
    """power of a GPU whose clocks are up and that runs nothing"""
    exponent: Exponent | None = None
    """exponent of power over clock; that of assumed.toml unless given"""
    memory: Weight | None = None
    """power above idle of kernels that memory limits, over rated less idle; that of assumed.toml
    unless given"""
    attention: Weight | None = None
    """power above idle of attention over that of products; that of assumed.toml unless given"""

    @model_validator(mode="after")
    def _idle_is_least(self) -> Self:
        if not self.idle < min(self.cap, self.rated):
            raise related(f"idle is {self.idle:g} W; it must be below cap and rated")
        return self


class RuntimeTable(Table):
    """Memory that a process takes besides the blocks of torch's allocator."""

    context: Bytes
    """the CUDA context"""
    workspace: Bytes
    """cuBLAS's workspace"""
    channels: Count
    """number of channels of a NCCL communicator"""
    connection: Bytes
    """NCCL's buffers for each channel and peer"""


class HeldSms(Table):
    """SMs that a communication kernel holds on each of its GPUs."""

    all_reduce: Sms
    """all-reduces inside a node"""
    all_gather: Sms
    """all-gathers inside a node"""
    reduce_scatter: Sms
    """reduce-scatters inside a node"""
    broadcast: Sms
    """broadcasts inside a node"""
    p2p: Sms
    """sends and receives inside a node"""
    exchange: Sms
    """steps of a ring that copy engines run, for tensor-parallel overlap"""
    fabric: Sms
    """collectives between nodes"""
    fabric_p2p: Sms
    """sends and receives between nodes"""
    nvls: Sms | None = None
    """collectives that the switch sums (NVLink SHARP)"""


class HbmTraffic(Table):
    """Bytes of memory traffic for each byte that a GPU sends."""

    all_reduce: Amount
    """all-reduces"""
    all_gather: Amount
    """all-gathers"""
    reduce_scatter: Amount
    """reduce-scatters"""
    broadcast: Amount
    """broadcasts"""
    p2p: Amount
    """sends and receives"""


class CommunicationTable(Table):
    """What communication takes from the kernels beside it on a GPU."""

    contention: Part | None = None
    """share of its speed that arithmetic loses beside communication that takes all of the memory
    bandwidth, and less in proportion; unless given that of assumed.toml"""
    sms: HeldSms
    hbm: HbmTraffic


class GpuTable(Table):
    """One GPU of the machine."""

    name: Text
    """name of the GPU"""
    sms: Count
    """number of streaming multiprocessors (compute units of AMD's GPUs)"""
    memory: Bytes
    """size of the GPU's memory, as the driver shows it"""
    memory_bandwidth: Bandwidth
    """bandwidth of that memory"""
    host_bandwidth: Bandwidth | None = None
    """bandwidth to and from the host, each way; needed for offload"""
    host_memory_bandwidth: Bandwidth | None = None
    """a GPU's part of the host's memory bandwidth; needed for offload"""
    spread: Part | None = None
    """sigma of the speeds that like GPUs sustain, as a share; that of assumed.toml unless given"""
    peak: PeakTable
    gemm: _GemmTables | None = None
    attention: AttentionTable | None = None
    memory_kernels: MemoryKernelsTable | None = None
    power: PowerTable | None = None
    runtime: RuntimeTable | None = None
    communication: CommunicationTable | None = None

    @model_validator(mode="after")
    def _formats_have_peaks(self) -> Self:
        for name in self.gemm.model_fields_set - {"source"} if self.gemm else ():
            if getattr(self.peak, name) is None:
                raise related(f"gemm.{name} is given, and peak.{name} is not")
        return self

    @model_validator(mode="after")
    def _kernels_fit(self) -> Self:
        for key, held in self.communication.sms if self.communication else ():
            if isinstance(held, int) and held > self.sms:
                raise related(
                    f"communication.sms.{key} = {held} must be a whole number from 0 to gpu.sms = "
                    f"{self.sms}"
                )
        return self
