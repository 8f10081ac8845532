"""The report of a rehearsal: what ``zerokit rehearse --format json`` prints.

All sizes are bytes. A figure is of one rank unless its name says ``node``. Keys are only ever added.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from zerokit.reporting.verdicts import NEGATIVE, HostFit, Verdict
from zerokit.units import format_bytes, quantity

Unit = Literal["tokens", "characters", "values"]


class Part(BaseModel):
    """Of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SiteMemory(Part):
    """What one line of code has allocated and is alive at the peak."""

    site: str
    bytes: int
    blocks: int


class BlockMemory(Part):
    """One allocation."""

    bytes: int
    shape: list[int]
    dtype: str
    name: str | None
    """The parameter it belongs to, or the key of the ds_config that sizes it."""
    site: str | None
    op: str | None
    category: str
    phase: str
    """In which it was allocated."""


class AllocatorMemory(Part):
    """What the model of PyTorch's caching allocator reserves."""

    reserved_peak_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int
    active_peak_bytes: int
    inactive_split_peak_bytes: int
    num_alloc_retries: int
    num_ooms: int
    num_segments: int
    fragmentation_bytes: int
    """Reserved beyond what is allocated, each at its own peak."""


class PhaseStretch(Part):
    """A phase of a step; positions as in :class:`MemoryCurve`."""

    phase: str
    begin: float
    end: float


class MemoryCurve(Part):
    """Allocated bytes over the last requested step, which was thinned to some 200 points."""

    step: int
    unit: Literal["seconds", "events"]
    """Of positions, which begin at 0: virtual time, or allocations and releases if time was not rehearsed."""
    end: float
    at: list[float]
    """The position of each point."""
    bytes: dict[str, list[int]]
    """Of each point, by category."""
    phases: list[PhaseStretch]


class RoleDevice(Part):
    """The GPU of one rank in short. Allocated bytes are ``torch.cuda.memory_allocated``."""

    peak_bytes: int
    steady_bytes: int
    """Held after the last requested optimizer step, or at the end without steps."""
    reserved_peak_bytes: int
    """``torch.cuda.max_memory_reserved`` with the segments that the run asks for."""
    peak_phase: str


class DeviceMemory(RoleDevice):
    """The GPU of one rank."""

    peak_step: int
    """Optimizer steps completed before the peak."""
    by_phase: dict[str, int]
    """Most bytes held during each phase that occurred."""
    at_peak: dict[str, int]
    """Bytes by category at the peak."""
    sites_at_peak: list[SiteMemory]
    largest_blocks_at_peak: list[BlockMemory]
    allocator: dict[Literal["ordinary", "expandable"], AllocatorMemory]
    segments: Literal["ordinary", "expandable"]
    """Which of the two PYTORCH_CUDA_ALLOC_CONF asks for."""
    reserved_is_lower_bound: bool = False
    """Whether blocks were released that other streams still used, in a rehearsal without ``--time``. There they are
    free at the second allocation after, on a GPU once it has come past (`process_events` of CUDACachingAllocator)."""
    curve: MemoryCurve | None = None
    """None without an optimizer step."""


class HostMemory(Part):
    """Tensors in the memory of the host, without Python, libraries and page tables."""

    peak_bytes: int
    steady_bytes: int
    pinned_bytes: int
    """Most pinned bytes held; part of the above."""
    pinned_steady_bytes: int
    at_peak: dict[str, int] = Field(default_factory=dict)
    pinned_at_peak: dict[str, int] = Field(default_factory=dict)
    per_node_peak_bytes: int
    """As if all ranks of a node had their peak together."""
    per_node_steady_bytes: int
    per_node_pinned_bytes: int


class NvmeMemory(Part):
    """Files of DeepSpeed's NVMe offload; each rank has its own."""

    per_rank_bytes: int
    per_node_bytes: int
    written_bytes: int
    """In the whole run, overwriting included."""
    read_bytes: int


class StepMemory(Part):
    """One optimizer step, from the end of the one before it to its own."""

    step: int
    """Counted from 1."""
    peak_bytes: int
    peak_phase: str
    steady_bytes: int
    """At its end."""
    flops: int
    communication_bytes: int


class RankMemory(Part):
    """One of the ranks that were rehearsed, where they differ."""

    rank: int
    device_peak_bytes: int
    device_steady_bytes: int
    reserved_peak_bytes: int
    peak_phase: str
    host_peak_bytes: int
    host_steady_bytes: int
    pinned_bytes: int
    verdict: Verdict


class RoleMemory(Part):
    """The ranks that have one role, such as a stage of a pipeline."""

    role: str
    ranks: list[int]
    rehearsed: int
    """The rank of the figures."""
    device: RoleDevice


class Communication(Part):
    """The calls of one collective in one phase of an optimizer step; init is counted as a whole."""

    collective: str
    phase: str
    group_size: int
    count: int
    bytes: int


class Overhead(Part):
    """Device memory outside the allocator; always an estimate."""

    name: str
    low_bytes: int
    high_bytes: int
    source: str


class Fit(Part):
    """Whether the run fits on a GPU, and on a node."""

    gpu_memory_bytes: int
    overheads: list[Overhead]
    low_bytes: int
    """The allocated peak and the low estimates: the allocator returns its cache before it fails."""
    high_bytes: int
    """The reserved peak and the high estimates."""
    verdict: Verdict
    """Of the GPU and the host."""
    batch: str | None = None
    """The batch of the data that makes the peak, if it is not one of the first."""
    host: HostFit | None = None
    """None in the report of a single rank."""


class BatchSize(Part):
    """The size of one batch, by its largest tensor of tokens."""

    shape: list[int]
    """Rows of token ids, and the longest of them; the largest tensor if a batch has no tokens."""
    unit: Unit
    tokens: int
    """In all, padding included."""
    bytes: int
    """Of the whole batch."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.shape[-1] if self.shape else 0

    def __str__(self) -> str:
        """``"4 x 8,192 tokens"``."""
        return f"{' x '.join(f'{size:,}' for size in self.shape)} {self.unit}"


class LargestBatch(Part):
    """A batch that is larger than the first ones, and was rehearsed after them."""

    size: BatchSize
    number: int
    """In epoch 1 of its rank, counted from 1."""
    rank: int
    """Of data parallelism."""
    first_step: int
    last_step: int
    """The optimizer step, counted from 1, that it is part of, or a later one where no engine shows which."""

    def __str__(self) -> str:
        """``"4 x 8,192 tokens (batch 57 of epoch 1, rank 0)"``."""
        return f"{self.size} (batch {self.number:,} of epoch 1, rank {self.rank})"


class Batches(Part):
    """The sizes of the batches that the run was rehearsed with, and of those in its data."""

    rehearsed_tokens: int
    """Of the batch with the most, padding included; of its largest tensor where it has no tokens."""
    longest_tokens: int
    """The same of the searched data."""
    first: BatchSize
    """The largest of the requested steps, as the script made them."""
    largest: BatchSize
    """The largest of the searched data."""
    rehearsed: list[LargestBatch]
    scanned: int
    """Batches searched, of all ranks whose batches can be computed."""
    of: int | None
    """Batches of the epoch, if known."""
    is_whole: bool
    """Whether all of them were searched."""
    seconds: float
    problem: str | None
    """Why the search failed."""


class Evaluation(Part):
    """The evaluation of transformers' Trainer, rehearsed once on the largest batches of its data."""

    largest: BatchSize
    scanned: int
    of: int | None
    is_whole: bool


class TimeBreakdown(Part):
    """Seconds of a step by what happens; each moment counts for the first of these, so they add up."""

    compute: float
    """A kernel runs on some stream."""
    host_optimizer: float
    """The host updates parameters."""
    host_operators: float
    """The host computes on its own tensors, such as where it unscales gradients."""
    communication: float
    """A collective runs."""
    copies: float
    """Between host and device, or to and from drives."""
    other_ranks: float
    """A collective waits for other rehearsed ranks."""
    launch: float
    """The device has nothing to do: the host launches, allocates or waits."""


class StepTime(Part):
    """One optimizer step, from the end of the one before it."""

    step: int
    """Counted from 1."""
    seconds: float
    breakdown: TimeBreakdown


class KernelTime(Part):
    """One kind of work in a step, on all streams."""

    name: str
    seconds: float
    count: int


class DataTime(Part):
    """Reading and tokenising training batches, measured on this machine."""

    batch_seconds: float
    """Of one batch, in one process."""
    batches: int
    """Batches measured."""
    workers: int
    """Workers of the script's loader."""
    batches_of_step: int
    workers_needed: int = 1
    """Workers that make a step's batches while a step runs."""


class StreamWork(Part):
    """The work of one kind on one stream in the step of the report; close work is merged."""

    stream: str
    kind: str
    """A name of :data:`zerokit.reporting.work.WORK_WORDS`, which says what it means."""
    begin: list[float]
    """Seconds since the step began."""
    end: list[float]


class TimeReport(Part):
    """Time of the last requested step, on the rehearsed rank that others wait for."""

    rank: int
    step_seconds: float
    low_seconds: float
    """Nine of ten real runs should take between this and `high_seconds`."""
    high_seconds: float
    run_class: str
    """By which the range is calibrated."""
    narrower_with: list[str]
    """What would make the range narrower."""
    costs_low_seconds: float
    """If all costs are as low as they may be; `costs_high_seconds`: as high. Work that was hidden may then show."""
    costs_high_seconds: float
    step: int
    breakdown: TimeBreakdown
    tokens_per_second: float | None
    """Of all GPUs, padding included; None without tokens, a DataLoader or an engine, and for pipelines."""
    mfu: float | None
    """The card's 16-bit floating-point operations that the step needs: three times those of the forward
    passes, or all but recomputed ones if that is less. None for pipelines."""
    hfu: float | None
    """The same with recomputed operations."""
    peak_flops: float | None
    """Dense, of one card in 16 bits."""
    steps: list[StepTime]
    kernels: list[KernelTime]
    """The most expensive kernels of that step."""
    critical_path: list[KernelTime]
    """The work that each part of the step had to wait for."""
    by_network: dict[int, float] = Field(default_factory=dict)
    """Seconds of the step by Gbit/s of other networks between nodes, if an assumed one decides it."""
    data: DataTime | None = None
    """None if the batches come from no DataLoader."""
    host_threads: int | None = None
    """Of each rank, for CPU work; None: as many as the machine has cores."""
    streams: list[StreamWork] = Field(default_factory=list)
    """At most some 300 spans."""


class Advice(Part):
    """A change, and what it saved when it was rehearsed."""

    change: str
    saves_bytes: int
    peak_bytes: int
    """The peak with the change."""
    host_bytes: int
    """The peak of one node's host with the change."""
    verdict: Verdict
    how: str
    ds_config: dict[str, Any] = Field(default_factory=dict)
    """The changed values by dotted key."""
    step_seconds: float | None = None
    """With the change; None if time was not rehearsed."""
    faster: float | None = None
    """The share of GPU time that a token saves; of a step where tokens are not known."""


class NotRehearsed(Part):
    """A change that might help, and could not be rehearsed."""

    change: str
    why: str


class MadeUpResult(Part):
    """A result that depends on values, which a rehearsal does not have."""

    what: str
    site: str
    count: int


class ConfigFinding(Part):
    """A finding of zerokit's lint on the ds_config; see `zerokit explain RULE`."""

    rule: str
    severity: Literal["error", "warning"]
    path: str
    """Dotted; empty for the whole config."""
    message: str
    hint: str | None

    def __str__(self) -> str:
        """``"ds_config (bf16.enabled): error: ... [unfilled-auto]"``."""
        where = f"ds_config ({self.path})" if self.path else "ds_config"
        hint = f". {self.hint}" if self.hint else ""
        return f"{where}: {self.severity}: {self.message}{hint} [{self.rule}]"


class FileChanges(Part):
    """What the script would have changed outside temporary folders; nothing was changed if `guarded`."""

    written: int
    """Files that it made, changed or moved, and did not delete again."""
    written_bytes: int
    first_written: list[str]
    """Those that existed before come first."""
    deleted: int
    first_deleted: list[str]
    not_kept_bytes: int
    """Written while the disk had no room: the script would have read zeros."""
    opened_read_only: list[str]
    """Files too large to copy that it opened for reading and writing."""
    guarded: bool
    """Whether the kernel accepted the filter (seccomp) that prevents changes."""


class ScriptFacts(Part):
    """What a rank reports of its script, as it is in its recording and in the report."""

    versions: dict[str, str] = Field(default_factory=dict)
    """Installed versions by package."""
    ds_config: dict[str, Any] | None = None
    """As DeepSpeed read it; None without an engine."""
    stopped_after_steps: int | None = None
    """None if the script came to its own end."""
    refused_ds_config: dict[str, Any] | None = None
    """The last one that DeepSpeed refused."""
    idle_micro_steps: tuple[int, int] | None = None
    """Micro-steps done, of those that an optimizer step takes, if an engine made no optimizer step."""
    whole_model_bytes: int = 0
    """Of parameters that were not partitioned yet when a ZeRO-3 engine was made of them."""


class RunFacts(ScriptFacts):
    """What was rehearsed, and with which versions."""

    script: str
    arguments: list[str]
    gpu: str | None = None
    """The virtual card, as torch names it."""


class RehearsalReport(Part):
    """The whole report: rank 0's, or that of the rank that needs most where ranks have several roles."""

    world_size: int
    gpus_per_node: int
    rank: int
    steps: int
    """Optimizer steps completed."""
    elapsed_seconds: float
    device: DeviceMemory
    host: HostMemory
    nvme: NvmeMemory | None = None
    """None if nothing is offloaded to NVMe."""
    fit: Fit
    batches: Batches | None = None
    evaluation: Evaluation | None = None
    per_step: list[StepMemory]
    communication: list[Communication]
    flops_per_step: int
    model_flops_per_step: int = 0
    """The same without what checkpointing recomputes."""
    ranks: list[RankMemory] = Field(default_factory=list)
    """Empty if one rank was rehearsed, or if they agree."""
    roles: list[RoleMemory] = Field(default_factory=list)
    """Empty for data parallelism alone."""
    advice: list[Advice] = Field(default_factory=list)
    not_rehearsed: list[NotRehearsed] = Field(default_factory=list)
    interrupted: bool = False
    """Whether Ctrl-C ended the rehearsal of changes: there may be better ones."""
    ranks_rehearsed: list[int] = Field(default_factory=list)
    stuck: list[str] = Field(default_factory=list)
    """Where ranks did not make the same calls on their group, so that the cluster would hang."""
    warnings: list[str]
    mistakes: list[str] = Field(default_factory=list)
    """Those of the warnings that decide whether the run is worth starting; printed below the verdict."""
    ds_config_findings: list[ConfigFinding] = Field(default_factory=list)
    made_up: list[MadeUpResult]
    suppressed: list[str]
    """Checkpoints, trackers and uploads that were not written."""
    files: FileChanges | None = None
    """None if no rehearsed rank changes files."""
    run: RunFacts
    time: TimeReport | None = None
    """Left out of the JSON if only memory was rehearsed."""

    @property
    def ok(self) -> bool:
        """Whether the run may fit and comes to its end."""
        return not self.stuck and self.fit.verdict not in NEGATIVE

    def __bool__(self) -> bool:
        """As `ok`."""
        return self.ok

    def __repr__(self) -> str:
        """Script, GPUs, peak and verdict."""
        state = "ranks hang" if self.stuck else self.fit.verdict
        peak = format_bytes(self.device.peak_bytes)
        gpus = quantity(self.world_size, "GPU")
        return f"<{type(self).__name__}: {self.run.script} on {gpus}: peak {peak}, {state}>"

    __str__ = __repr__

    def with_warning(self, line: str, *, is_mistake: bool = True) -> RehearsalReport:
        """The same with a warning before the others; a mistake is printed below the verdict."""
        mistakes = [*self.mistakes, line] if is_mistake else self.mistakes
        return self.model_copy(update={"warnings": [line, *self.warnings], "mistakes": mistakes})

    def to_dict(self) -> dict[str, Any]:
        """What ``zerokit rehearse --format json`` prints."""
        return self.model_dump(mode="json")

    @property
    def recomputed(self) -> float:
        """Operations of a step by those that it needs: 4/3 where all layers have checkpoints, else 1."""
        return self.flops_per_step / self.model_flops_per_step if self.model_flops_per_step else 1.0

    @model_serializer(mode="wrap")
    def _without_time(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        if self.time is None:
            del data["time"]
        return data
