"""Whether a run fits, and the largest sizes that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm

from zerokit.errors import ZerokitError
from zerokit.estimation.request import Question, Runs
from zerokit.memory import Estimate, estimate
from zerokit.models import ModelShape
from zerokit.reporting.verdicts import HostFit, Verdict, host_fit, judge, worst

_SEQ_MULTIPLE = 64
"""Sequence lengths are tried in multiples of this, and of the ranks that share a sequence."""
_LONGEST = 2**24
_MOST_SEQUENCES = 2**16
_MOST_NODES = 2**13


@dataclass(frozen=True)
class Fit:
    """The memory that a run needs, compared with one GPU and one node."""

    verdict: Verdict
    """For GPU and node together."""
    needed_low_bytes: int
    needed_high_bytes: int
    gpu_memory_bytes: int
    host: HostFit


@dataclass(frozen=True)
class Limits:
    """The limit of one size while the others stay; None: nothing fits, or the size cannot vary."""

    micro_batch_size: int | None
    """The largest that certainly fits."""
    seq_len: int | None
    """The longest multiple of 64 tokens that certainly fits; at most the model's maximum, unless `seq_len` is
    longer."""
    num_gpus: int | None
    """The smallest number that certainly fits."""


def verdict(answer: Estimate, gpu_memory_bytes: int) -> Fit:
    """Compare the minimum and maximum of the peaks with the memory of the GPU and the node."""
    low, high = answer.device_low_bytes, answer.device_high_bytes
    host = _judge_host(answer)
    return Fit(worst(judge(low, high, gpu_memory_bytes), host.verdict), low, high, gpu_memory_bytes, host)


def judge_given_host(answer: Estimate) -> HostFit | None:
    """Judge a node whose memory the user gave; None: it was not given."""
    return None if answer.run.cluster.host_bytes is None else _judge_host(answer)


def _judge_host(answer: Estimate) -> HostFit:
    return host_fit(answer.run.cluster, answer.host.per_node_bytes, answer.nvme.per_node_bytes)


def find_limits(question: Question, gpu_memory_bytes: int, runs: Runs | None = None) -> Limits:
    """Find the largest micro-batch, the longest sequence and the fewest GPUs, each with the others unchanged.

    Raises:
        ZerokitError: the question itself is invalid.
    """
    runs = runs or Runs()

    def fits(**sizes: int) -> bool:
        answer = estimate(runs.training_run(question.with_sizes(**sizes)))
        return verdict(answer, gpu_memory_bytes).verdict == "fits"

    counted = isinstance(question.model, ModelShape)
    batch = seq_len = None
    if counted and question.seq_len is not None:
        batch = _largest(lambda size: fits(micro_batch_size=size), _MOST_SEQUENCES)
        seq_len = _longest(question, fits)
    return Limits(batch, seq_len, _fewest(question, fits))


def _longest(question: Question, fits: Callable[..., bool]) -> int | None:
    assert isinstance(question.model, ModelShape)
    positions = question.model.max_position_embeddings
    longest = positions if positions and positions >= (question.seq_len or 0) else _LONGEST
    multiple = lcm(_SEQ_MULTIPLE, question.parallelism.sequence)
    if fits(seq_len=longest):
        return longest
    multiples = _largest(lambda number: fits(seq_len=number * multiple), max(1, longest // multiple))
    return None if multiples is None else multiples * multiple


def _largest(fits: Callable[[int], bool], most: int) -> int | None:
    """The largest number from 1 to `most` that fits, if larger numbers never fit better."""
    if not fits(1):
        return None
    good, bad = 1, 2
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _fewest(question: Question, fits: Callable[..., bool]) -> int | None:
    """Try each number of GPUs within a node, then whole nodes."""

    def possible(num_gpus: int) -> bool:
        try:
            return fits(num_gpus=num_gpus)
        except ZerokitError:
            return False  # a batch or a sharding that does not divide among so many

    per_node = question.cluster.gpus_per_node
    for num_gpus in range(1, per_node + 1):
        if possible(num_gpus):
            return num_gpus
    if question.zero_stage in (0, "none"):
        return None
    too_few = _largest(lambda nodes: not possible(nodes * per_node), _MOST_NODES)
    return None if too_few in (None, _MOST_NODES) else (too_few + 1) * per_node
