"""The report of a rehearsal: what ``zerokit rehearse --format json`` prints.

All sizes are bytes. A figure is of one rank unless its name says ``node``. Keys are only ever added.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from zerokit.reporting.verdicts import HostFit, Verdict
from zerokit.units import ordinal

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
    """One allocation that is alive at the peak."""

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
    """What PyTorch's caching allocator would have reserved, by the model of it."""

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


class DeviceMemory(Part):
    """The GPU of one rank. Allocated bytes are ``torch.cuda.memory_allocated``."""

    peak_bytes: int
    steady_bytes: int
    """Held after the last optimizer step that was asked for, or at the end if there is none."""
    reserved_peak_bytes: int
    """``torch.cuda.max_memory_reserved`` with the segments that the run asks for."""
    peak_phase: str
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


class HostMemory(Part):
    """Tensors in the memory of the host; Python, libraries and page tables are not in it."""

    peak_bytes: int
    steady_bytes: int
    pinned_bytes: int
    """Most pinned bytes held; part of the above."""
    pinned_steady_bytes: int
    at_peak: dict[str, int] = Field(default_factory=dict)
    """Bytes by category at the peak, of the rank."""
    pinned_at_peak: dict[str, int] = Field(default_factory=dict)
    """What of them is pinned."""
    per_node_peak_bytes: int
    """As if all ranks of a node reached their peak together."""
    per_node_steady_bytes: int
    per_node_pinned_bytes: int


class NvmeMemory(Part):
    """Files of DeepSpeed's NVMe offload; each rank has its own."""

    per_rank_bytes: int
    per_node_bytes: int
    written_bytes: int
    """By this rank in the whole run, overwriting included."""
    read_bytes: int


class StepMemory(Part):
    """One optimizer step, from the end of the one before it to its own."""

    step: int
    """Counted from 1."""
    peak_bytes: int
    peak_phase: str
    steady_bytes: int
    """Held at its end."""
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


class RoleDevice(Part):
    """Device memory of a role; as of :class:`DeviceMemory`."""

    peak_bytes: int
    steady_bytes: int
    reserved_peak_bytes: int
    peak_phase: str


class RoleMemory(Part):
    """The ranks that have one role, such as a stage of a pipeline."""

    role: str
    ranks: list[int]
    rehearsed: int
    """The one of them that the figures are of."""
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
    """Needed at the least: the allocated peak and the low estimates. What the allocator caches beyond that
    it gives back before it gives up."""
    high_bytes: int
    """Needed at the most: the reserved peak and the high estimates."""
    verdict: Verdict
    """Of both."""
    batch: str | None = None
    """The batch of the data that makes the peak, if it is not one of the first."""
    host: HostFit | None = None
    """None where one rank's report is written, before anybody has looked at the node."""


class BatchSize(Part):
    """The size of one batch, by its largest tensor of tokens."""

    shape: list[int]
    """Of the token ids, padding included: rows, and the longest of them. Of the largest tensor if a batch has
    no tokens."""
    unit: Unit
    tokens: int
    """What that holds in all: padding, too, but for rows that are not padded yet."""
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
    """The optimizer step that it is part of, counted from 1."""
    last_step: int
    """The same, unless no engine shows which of several it is."""

    def __str__(self) -> str:
        """``"the batch of 4 x 8,192 tokens, the 57th of epoch 1, rank 0"``."""
        return f"the batch of {self.size}, the {ordinal(self.number)} of epoch 1, rank {self.rank}"


class Batches(Part):
    """How large the batches were that the run was rehearsed with, and those of its data are."""

    rehearsed_tokens: int
    """Of the batch with the most, padding included; of its largest tensor where it has no tokens."""
    longest_tokens: int
    """Of the batch of the data with the most, as far as it was looked through."""
    first: BatchSize
    """The largest of those that came by themselves, in the steps that were asked for."""
    largest: BatchSize
    """The largest of the data, as far as it was looked through."""
    rehearsed: list[LargestBatch]
    """Larger batches that were found and rehearsed."""
    scanned: int
    """Batches searched, of all ranks whose batches can be computed; 0 if none were."""
    of: int | None
    """Batches of the epoch; None if that is not known."""
    is_whole: bool
    """Whether all batches of the epoch were looked through."""
    seconds: float
    problem: str | None
    """Why it ended early, where it was not for the time."""


class Evaluation(Part):
    """The evaluation of transformers' Trainer, rehearsed once on the largest batches of its data."""

    largest: BatchSize
    """Of those that it was rehearsed with."""
    scanned: int
    """Batches of its data that were looked through."""
    of: int | None
    is_whole: bool


class TimeBreakdown(Part):
    """Seconds of a step, by the first of these that goes on at each moment; they add up to it."""

    compute: float
    """A kernel runs on some stream."""
    host_optimizer: float
    """The host updates parameters, while no kernel runs."""
    host_operators: float
    """The host computes on its own tensors, as where it unscales gradients, and none of these goes on."""
    communication: float
    """A collective runs, and none of these."""
    copies: float
    """Between host and device, or to and from drives, and none of these."""
    data: float
    """The host reads the next batch: only where that is part of the time."""
    other_ranks: float
    """A collective waits for ranks that are rehearsed together with this one and have not come to it yet."""
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


class ReadingTime(Part):
    """Reading and tokenising training batches, measured on this machine."""

    batch_seconds: float
    """Of one batch, in one process."""
    is_in_step: bool
    """Whether steps wait for it, as far as workers do not hide it; the breakdown reports how long."""
    batches: int
    """Batches measured."""
    workers: int
    """Workers of the script's loader; without any, the script reads between steps."""
    batches_of_step: int


class DataTime(ReadingTime):
    """Time to read data, and how many workers would hide it."""

    workers_needed: int
    """Workers that make a step's batches while a step runs."""


class TimeReport(Part):
    """Time of the last requested step, on the rehearsed rank that others wait for."""

    rank: int
    """That one."""
    step_seconds: float
    low_seconds: float
    """If all costs are as low as they may be; `high_seconds`: as high. Work that was hidden may then show."""
    high_seconds: float
    step: int
    breakdown: TimeBreakdown
    tokens_per_second: float | None
    """Of all GPUs, padding included; None if the batches are not of tokens or come from no DataLoader, if
    there is no DeepSpeed engine that knows how many ranks have other batches, and for pipelines."""
    mfu: float | None
    """Floating-point operations that the step needs, by what the card can do in 16 bits: three times those of
    the forward passes, or all but recomputed ones if that is less. None for pipelines."""
    hfu: float | None
    """All floating-point operations that the step does, recomputed ones among them, by the same."""
    peak_flops: float | None
    """Dense, of one card in 16 bits."""
    steps: list[StepTime]
    kernels: list[KernelTime]
    """The most expensive kernels of that step."""
    critical_path: list[KernelTime]
    """What that step consists of, going back from its end each time to what had to be over before."""
    data: DataTime | None = None
    """No part of the step's time, unless that was asked for; None if the batches come from no DataLoader."""
    host_threads: int | None = None
    """Of each rank, for the host's own work; None: as many as the machine has cores."""


class Advice(Part):
    """A change, and what it saved when it was rehearsed."""

    change: str
    saves_bytes: int
    peak_bytes: int
    """The peak with the change."""
    host_bytes: int
    """The host's peak with the change, of one node."""
    verdict: Verdict
    how: str
    ds_config: dict[str, Any] = Field(default_factory=dict)
    """The changed values by dotted key, if it is the ds_config that changes."""
    step_seconds: float | None = None
    """Of a step with the change; None if time was not rehearsed."""
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
    """What the script would have changed outside temporary folders. None of it was done, if `guarded`."""

    written: int
    """Files that it made or changed and did not delete again, moved ones included."""
    written_bytes: int
    first_written: list[str]
    """Those that were there before come first."""
    deleted: int
    """Files that were there before."""
    first_deleted: list[str]
    not_kept_bytes: int
    """Written while there was no room left to keep it: the script would have read zeros."""
    opened_read_only: list[str]
    """Files too large to copy that it opened for reading and writing."""
    guarded: bool
    """Whether the kernel took the filter (seccomp) that holds changes back."""


class RunFacts(Part):
    """What was rehearsed, and with which versions."""

    script: str
    arguments: list[str]
    versions: dict[str, str]
    ds_config: dict[str, Any] | None
    stopped_after_steps: int | None
    """None if the script came to its own end."""
    gpu: str | None = None
    """The card that it was shown, as torch names it."""
    refused_ds_config: dict[str, Any] | None = None
    """The last one that DeepSpeed refused."""
    idle_micro_steps: tuple[int, int] | None = None
    """Micro-steps done, of those that an optimizer step takes, where the script ended before an engine that
    was made to train made a step."""


class RehearsalReport(Part):
    """The whole report. Where several ranks were rehearsed, it is rank 0's, and of several roles that of the
    rank that needs most."""

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
    """None if the run took none from a DataLoader for training."""
    evaluation: Evaluation | None = None
    """None if none was rehearsed."""
    per_step: list[StepMemory]
    communication: list[Communication]
    flops_per_step: int
    model_flops_per_step: int = 0
    """Of these, what forward and backward passes do once, without what checkpointing computes again."""
    ranks: list[RankMemory] = Field(default_factory=list)
    """Empty if one rank was rehearsed, or if they agree."""
    roles: list[RoleMemory] = Field(default_factory=list)
    """Empty if ranks differ by their place among data-parallel ones at most."""
    advice: list[Advice] = Field(default_factory=list)
    not_rehearsed: list[NotRehearsed] = Field(default_factory=list)
    """Other changes that might help."""
    ranks_rehearsed: list[int] = Field(default_factory=list)
    stuck: list[str] = Field(default_factory=list)
    """Where ranks did not make the same calls on their group: the cluster would wait there for ever."""
    warnings: list[str]
    ds_config_findings: list[ConfigFinding] = Field(default_factory=list)
    """What DeepSpeed ignores silently, or will stop at later, in its config."""
    made_up: list[MadeUpResult]
    suppressed: list[str]
    """Checkpoints, trackers and uploads that were not written."""
    files: FileChanges | None = None
    """None if the script changes no files, all ranks that were rehearsed taken together."""
    run: RunFacts
    time: TimeReport | None = None
    """Left out of the JSON if only memory was rehearsed."""

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
