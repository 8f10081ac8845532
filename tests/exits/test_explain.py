"""What is said of logs, in the words that libraries, launchers and schedulers print."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import refused
from tests.exits.explained import explain
from zerokit.errors import DocumentError
from zerokit.exits.explain import explain_log
from zerokit.exits.log import HEAD_BYTES, TAIL_BYTES, Log, read_log

Run = Callable[..., tuple[int, str, str]]

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 3 has a total capacity "
    "of 79.15 GiB of which {free} GiB is free. Including non-PyTorch memory, this process has {own} GiB "
    "memory in use. Of the allocated memory 70.20 GiB is allocated by PyTorch, and {idle} GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF"
)
TIMEOUT = (
    "[rank{rank}]:[E1122 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={number}, OpType={call}, NumelIn={size}, NumelOut={size}, "
    "Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
)
ENDED = "[2026-11-22 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = {}"


def out_of_memory(asked: float = 2, free: float = 1.44, own: float = 77.7, idle: float = 1) -> str:
    return "[rank3]: " + OUT_OF_MEMORY.format(asked=asked, free=free, own=own, idle=idle)


def timeout(rank: int, number: int = 41, call: str = "ALLREDUCE", size: int = 1) -> str:
    return TIMEOUT.format(rank=rank, number=number, call=call, size=size)


def test_the_cause_comes_before_what_follows_from_it() -> None:
    found = explain(
        "[rank0]: RuntimeError: [gloo] Connection closed by peer",
        timeout(0),
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "train.py", line 7, in <module>',
        '[rank3]:   File "/x/site-packages/torch/_tensor.py", line 9, in backward',
        out_of_memory(),
        ENDED.format(-6),
    )
    assert (found.cause, found.line) == ("cuda-out-of-memory", 7)
    assert found.message == (
        "rank 3: a GPU ran out of memory in backward: 2.00 GiB more were requested, and 1.44 GiB of 79.15 "
        "GiB were free"
    )
    assert found.also == (
        "line 3: timeout after 10 min 00 s: rank 0 waited in ALLREDUCE (number 41, 1 elements); the "
        "log does not say whether other ranks are missing",
    )


def test_out_of_memory_is_mended_by_what_its_figures_say() -> None:
    assert "6.10 GiB are reserved, but fragmented" in str(explain(out_of_memory(idle=6.1)).fix)
    assert str(explain(out_of_memory()).fix) == (
        "Try in this order: half the micro-batch and twice the gradient accumulation; "
        "gradient_checkpointing; ZeRO stage 3. 'zerokit estimate' shows beforehand whether it fits"
    )
    assert "Another process holds about 40.00 GiB" in str(explain(out_of_memory(own=37.71)).fix)
    old = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.59 GiB total capacity; 30.00"
    old += " GiB already allocated; 1.00 GiB free; 38.00 GiB reserved in total by PyTorch)"
    assert "expandable_segments" in str(explain(old).fix)
    # What is allocated when the engine starts depends on no batch.
    own = ('[rank3]:   File "a.py", line 3, in main', "[rank3]:     engine = deepspeed.initialize(model)")
    start = explain(*own, "[rank2]:     loss.backward()", out_of_memory())
    assert "the engine's start" in start.message
    assert "accumulation" not in str(start.fix)


SITE = "/v/lib/python3.12/site-packages"


def gloo_timeout(
    rank: int,
    line: int = 40,
    call: str = "all_reduce",
    kind: str = "recv",
    *,
    prefix: str = "",
    between: tuple[str, ...] = (),
    packages: str = SITE,
) -> str:
    """What torch prints of a rank whose collective of gloo has timed out.

    Args:
        prefix: a launcher's, of each line.
        between: files of the frames between the script and torch.
        packages: the folder of torch.
    """
    site = f"{packages}/torch/distributed"
    lines = (
        "Traceback (most recent call last):",
        f'  File "/w/train.py", line {line}, in main',
        f"    dist.{call}(loss)",
        *(f'  File "{file}", line 137, in passes_on' for file in between),
        f'  File "{site}/c10d_logger.py", line 83, in wrapper',
        f'  File "{site}/distributed_c10d.py", line 3252, in {call}',
        "    work.wait()",
        f"RuntimeError: [/g/unbound_buffer.cc:78] Timed out waiting 90000ms for {kind} operation to complete",
    )
    return "\n".join(f"{prefix}[rank{rank}]: {one}" for one in lines)


def test_ranks_that_all_waited_are_told_by_the_lines_at_which_they_did() -> None:
    apart = explain(gloo_timeout(0), gloo_timeout(1, 60, "all_gather", "send"))
    assert apart.cause == "collective-timeout"
    assert apart.message == (
        "timeout after 1 min 30 s: rank 0 at train.py:40 (all_reduce), rank 1 at train.py:60 "
        "(all_gather): they called different collectives"
    )
    assert "rehearse" in str(apart.fix)
    mixed = "\n".join(
        line
        for pair in zip(gloo_timeout(0).split("\n"), gloo_timeout(1, 60).split("\n"), strict=True)
        for line in pair
    )
    assert "rank 0 at train.py:40 (all_reduce), rank 1 at train.py:60" in explain(mixed).message
    sized = explain("dist_world_size=2", gloo_timeout(0), gloo_timeout(1, 60))
    assert sized.message.endswith("different collectives; no rank is missing")


@pytest.mark.parametrize(
    ("packages", "between"),
    [
        # with training_args.main_process_first():
        (SITE, ("/usr/lib/python3.12/contextlib.py", f"{SITE}/transformers/training_args.py")),
        (SITE, ("/opt/python/contextlib.py", f"{SITE}/accelerate/state.py")),
        ("/usr/local/lib/python3.12/dist-packages", ("<frozen runpy>", "<eval_with_key>.3")),
        ("/usr/lib/python3/dist-packages", ()),
    ],
)
def test_a_line_of_python_or_of_a_library_is_none_of_the_script(packages: str, between: tuple[str, ...]) -> None:
    waited = [gloo_timeout(rank, between=between, packages=packages) for rank in (0, 1)]
    assert "min 30 s: ranks 0-1 at train.py:40 (all_reduce); " in explain(*waited).message
    frames = "\n".join(
        f'  File "{file}", line 7, in f' for file in ("/w/train.py", *between, f"{packages}/torch/nn.py")
    )
    raised = explain("Traceback (most recent call last):", frames, "ValueError: bad")
    assert (raised.cause, raised.fix) == ("exception", "Look at /w/train.py:7; it was raised in torch/nn.py:7")


def test_a_script_that_came_by_stdin_has_lines_and_what_a_dataclass_has_made_none() -> None:
    for script in ("<stdin>", "/w/train.py"):
        files = ("<frozen runpy>", script, "<string>", f"{SITE}/transformers/training_args.py")
        frames = "\n".join(f'  File "{file}", line 7, in f' for file in files)
        raised = explain("Traceback (most recent call last):", frames, "ValueError: bad")
        assert str(raised.fix).startswith(f"Look at {script}:7; it was raised in transformers/training_args")


def test_ranks_came_to_different_collectives_by_line_or_by_call() -> None:
    same_line = explain(gloo_timeout(0), gloo_timeout(1, call="broadcast"))
    assert same_line.message.endswith("(broadcast): they called different collectives")
    # One call may be several collectives: the rank that is gone is the cause, unless lines differ, too.
    gone = ("dist_world_size=3", gloo_timeout(0), gloo_timeout(1, call="broadcast"))
    assert explain(*gone).message.endswith("(broadcast); rank 2 did not reach it")
    lines = ("dist_world_size=3", gloo_timeout(0), gloo_timeout(1, 60, call="broadcast"))
    assert explain(*lines).message.endswith("(broadcast): they called different collectives")
    # Of a rank whose traceback is cut off nothing is known.
    cut = "\n".join(gloo_timeout(1).split("\n")[-1:])
    unknown = explain("dist_world_size=2", gloo_timeout(0), cut)
    assert "different collectives" not in unknown.message
    assert unknown.message.endswith("rank 0 at train.py:40 (all_reduce), rank 1; none is missing")


@pytest.mark.parametrize("prefix", ["beta: ", "1: ", "[default1]:", "2026-11-23T11:14:0{rank}.1Z beta: "])
def test_ranks_are_told_apart_below_what_launchers_write_before_their_lines(prefix: str) -> None:
    ranks = [
        gloo_timeout(rank, line, prefix=prefix.format(rank=rank)).split("\n") for rank, line in ((0, 40), (1, 60))
    ]
    found = explain(*("\n".join(pair) for pair in zip(*ranks, strict=True)))
    assert "rank 0 at train.py:40 (all_reduce), rank 1 at train.py:60 (all_reduce): they" in found.message


def test_ranks_that_waited_at_one_line_name_those_that_did_not_come_if_the_log_says_how_many_there_are() -> None:
    waited = [gloo_timeout(0), gloo_timeout(1)]
    assert explain(*waited).message == (
        "timeout after 1 min 30 s: ranks 0-1 at train.py:40 (all_reduce); the log does not say "
        "whether other ranks are missing"
    )
    assert explain("dist_world_size=3", *waited).message.endswith("(all_reduce); rank 2 did not reach it")
    whole = explain("dist_world_size=2", *waited)
    assert whole.message.endswith("(all_reduce); none is missing")
    assert "a step later" in str(whole.fix)
    lost = explain(gloo_timeout(0), "[rank1]: RuntimeError: Connection closed by peer")
    assert lost.message.startswith("timeout after 1 min 30 s: rank 0 at train.py:40")


@pytest.mark.parametrize(
    ("line", "cause", "message"),
    [
        (
            "[rank0]: RuntimeError: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms",
            "collective-timeout",
            "ranks that did not reach a barrier: 1, 3",
        ),
        (
            "[rank0]: torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 "
            "clients joined.",
            "no-meeting",
            "rank 0: only 1 of 2 processes reached the rendezvous",
        ),
    ],
)
def test_torch_itself_names_who_did_not_come(line: str, cause: str, message: str) -> None:
    found = explain(line)
    assert (found.cause, found.message) == (cause, message)


def test_a_lock_for_which_a_run_said_that_it_waits_is_named() -> None:
    started = "[2026-11-23 09:00:00,1] [INFO] [launch.py:245:main] process 4711 spawned with command: ['a']"
    waits = "waiting for /c/ext/deepspeed_shm_comm/lock to go: remove it if no program compiles there"
    ended = "run.sh: line 3:  4700 Terminated              deepspeed train.py"
    found = explain(started, waits, ended)
    assert "(SIGTERM)" in found.message
    assert str(found.fix).endswith(
        "It waited for /c/ext/deepspeed_shm_comm/lock: remove it if no program compiles there"
    )


def test_a_flight_recorder_is_read_where_it_is_plain_data_and_named_where_not(tmp_path: Path) -> None:
    dump = tmp_path / "nccl_trace_rank_0"
    entries = [{"state": "completed"}, {"state": "started", "profiling_name": "nccl:x", "collective_seq_id": 5}]
    dump.write_text(json.dumps({"entries": entries}))
    said = f"Finished writing Flight Recorder debug info to {dump}"
    assert explain(timeout(0), said).also == (f"{dump}: collective 5 (nccl:x) was started",)
    dump.write_bytes(pickle.dumps({"entries": entries}, protocol=2))
    assert explain(timeout(0), said).also == (f"{dump}: collective 5 (nccl:x) was started",)
    dump.write_text(json.dumps({"entries": [{"state": {}, "profiling_name": [1], "input_sizes": [[[1]]]}]}))
    assert explain(timeout(0), said).also == (f"{dump}: collective ? (?) was ?",)
    lists: object = [1]
    tuples: object = (1,)
    for _ in range(60):
        lists, tuples = [lists, lists], (tuples, tuples)
    dump.write_bytes(pickle.dumps({"entries": [{"state": lists, "input_sizes": lists}]}))
    assert explain(timeout(0), said).also == (f"{dump}: collective ? (?) was ?",)
    of_one_hash = [pickle.dumps(number * (2**61 - 1), 2)[2:-1] for number in range(1, 20_000)]
    mark = tmp_path / "mark"
    refused = "are pickles of more than plain data, or damaged"
    for content, why in (
        (b"\x80\x04pickle", refused),
        (pickle.dumps([tuples]), "have no entries"),
        (b"\x80\x02cposix\nsystem\n(S'touch %s'\ntR." % bytes(mark), refused),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93(S'touch %s'\ntR." % bytes(mark), refused),
        (b"\x80\x02}r\xff\xff\xff\x7f.", refused),
        (b"\x80\x02}(" + b"".join(key + b"N" for key in of_one_hash) + b"u.", refused),
        (b"\x80\x02}(" + b"".join(key + b"\x85N" for key in of_one_hash) + b"u.", refused),
        (b" " * (5 << 20), "are larger than 4.00 MiB"),
        (b"[]", "have no entries"),
        (b"{", "are no JSON"),
        (None, "are not on this machine"),
    ):
        dump.unlink()
        if content is not None:
            dump.write_bytes(content)
        (line,) = explain(timeout(0), said).also
        assert line == f"the flight recorder's dumps, such as {dump}, {why}: torchfrtrace reads them"
    assert not mark.exists()


@pytest.mark.torch
def test_what_torch_records_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RECORDED)
    variables = {**os.environ, "TORCH_FR_BUFFER_SIZE": "9", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, script, tmp_path], env=variables, check=True, capture_output=True)
    for kind, at in (("pickle", f" at {script}:7"), ("json", "")):  # which has no lines
        said = f"Finished writing Flight Recorder debug info to {tmp_path / kind}"
        (line,) = explain(timeout(0), said).also
        last = f"the last of them collective 2 (gloo:all_reduce of [[9]]){at}"
        assert line == f"{tmp_path / kind}: all 2 collectives were done, {last}"


RECORDED = """\
import sys
from pathlib import Path
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as recorder
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
dist.all_reduce(torch.ones(9))
while recorder._dump_fr_trace_json().count(b'"retired":true') < 2:
    pass  # a thread of gloo's records it
Path(sys.argv[1], "pickle").write_bytes(recorder._dump_fr_trace())
Path(sys.argv[1], "json").write_bytes(recorder._dump_fr_trace_json())
"""
"""A run that keeps what it has called, and writes it as a watchdog does."""


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (ENDED.format(-6), "exit code -6 (SIGABRT)"),
        ("  exitcode  : 3 (pid: 9)", "exit code 3: the program's own code"),
        ("x.SignalException: Process 2 got signal: 2", "exit code -2 (SIGINT): Ctrl-C was pressed"),
        ("Terminated", "exit code -15 (SIGTERM)"),
        ("run.sh: line 3: 4711 Terminated              torchrun a.py", "exit code -15 (SIGTERM)"),
        ("Killed", "exit code -9 (SIGKILL)"),
        ("KeyboardInterrupt", "exit code -2 (SIGINT)"),
        (ENDED.format(1), "rank 0: a rank lost the connection"),
    ],
)
def test_how_a_rank_ended_tells_more_than_that_another_one_lost_it(ended: str, message: str) -> None:
    lost = "[rank0]: RuntimeError: [pair.cc:537] Read error: Connection reset by peer"
    assert explain(lost, ended).message.startswith(message)
    # NCCL ends a rank with it after a timeout.
    assert explain(timeout(0), ENDED.format(-6)).cause == "nccl-timeout"


def test_a_rank_that_aborts_as_another_one_has_left_it_is_a_consequence() -> None:
    lost = "[gloo/pair.cc:547] Connection closed by peer [10.0.0.2]:9"
    raised = ("terminate called after throwing an instance of 'gloo::EnforceNotMet'", f"  what():  {lost}")
    code = "  exitcode  : -6 (pid: 4711)"
    assert explain(f"[rank1]: RuntimeError: {lost}", *raised, code).cause == "lost-rank"
    waited = "[gloo/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"
    assert explain(f"[rank1]: RuntimeError: {waited}", raised[0], f"  what():  {waited}", code).cause == (
        "collective-timeout"
    )
    # A log in which ranks speak is not only a launcher's.
    aborted = explain(f"[rank1]: RuntimeError: {lost}", code)
    assert "SIGABRT" in aborted.message
    assert "The log has only the launcher" not in str(aborted.fix)
    assert "The log has only the launcher" in str(explain(code).fix)
    assert "find what ended it" in str(explain("Terminated").fix)


def test_an_exception_is_told_with_its_line_though_ranks_speak_at_once() -> None:
    found = explain(
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        '[rank0]:   File "/w/train.py", line 12, in <module>',
        '[rank1]:   File "/w/train.py", line 12, in <module>',
        '[rank0]:   File "/v/site-packages/torch/x.py", line 3, in y',
        "[rank0]: KeyError: 'labels'",
        "[rank0]: During handling of the above exception, another exception occurred:",
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/w/train.py", line 14, in <module>',
        "[rank0]: ValueError: no labels",
        ENDED.format(1),
    )
    assert (found.cause, found.message, found.fix, found.line) == (
        "exception",
        "rank 0: ValueError: no labels",
        "Look at /w/train.py:14",
        11,
    )


def test_what_a_run_has_survived_did_not_end_it() -> None:
    steps = [f"{{'loss': 2.{step}}}" for step in range(13)]
    killed = explain(out_of_memory(), *steps, ENDED.format(-9))
    assert killed.cause == "exit-code"
    assert killed.also[0].startswith("line 2: a GPU ran out of memory")
    assert explain(*steps).message == "the log does not show why the run ended, nor that it failed"
    silent = explain(out_of_memory(), *steps)
    assert not silent.message.endswith("failed")
    assert (silent.cause, silent.also[0][:25]) == ("unknown", "line 2: a GPU ran out of ")
    assert explain(*steps, out_of_memory(), *steps[:2], ENDED.format(1)).cause == "cuda-out-of-memory"
    # A later one, after which only other ranks have gone on, is the one that ended it.
    assert explain(out_of_memory(), *steps, "KeyError: 3", "Disk quota exceeded", ENDED.format(1)).cause == (
        "no-space"
    )


def test_other_ranks_go_on_for_a_moment() -> None:
    bars = [f" {step}%|#| {step}/100 [00:09, 1.2s/it, loss=2.3]" for step in range(7)]
    for after in (bars, [f"{{'loss': 2.{step}}}" for step in range(7)], [" \r".join(bars)]):
        assert explain(out_of_memory(), *after, "  exitcode  : 1 (pid: 9)").cause == "cuda-out-of-memory"
    # Lines of all kinds of programs look like steps; but an exception has ended it.
    shards = [f"Loading shards: {step}/99 [1.0it/s]" for step in range(99)]
    assert explain(out_of_memory(), *shards, ENDED.format(1)).cause == "cuda-out-of-memory"


@pytest.mark.parametrize(
    "line",
    [
        "google.api_core.exceptions.DeadlineExceeded: 504 Deadline Exceeded",
        "Found 3 checkpoints; 2 nodes are available: using both",
        "The cache exceeded memory limit: evicting",
        "Raise limits.memory if a pod is OOMKilled",
        "W1122 10:00:00 7 tensorboard.py:9] Address already in use",
        "WARNING: TensorBoard: Address already in use",
        "TensorBoard: Address already in use, tries 6007",
        "/x/a.py:3: ResourceWarning: Too many open files",
    ],
)
def test_words_of_another_program_are_not_the_cause(line: str) -> None:
    traceback = ["Traceback (most recent call last):", '  File "train.py", line 7, in f', "KeyError: 3"]
    assert explain(line, *traceback, ENDED.format(1)).message == "KeyError: 3"


def test_a_program_that_a_traceback_quotes_says_nothing() -> None:
    quoted = 'raise ValueError("Cannot allocate memory") if x else MemoryError'
    for rank, other in (("", ""), ("[rank1]: ", "[rank0]: "), ("  | ", "  | ")):
        lines = ["Traceback (most recent call last):", '  File "train.py", line 7, in f']
        lines += [f"    {quoted}", "    .g('No space left on device')", "       ^^^^", "KeyError: 3"]
        both = [f"{one}{line}" for line in lines for one in {rank, other}]
        assert explain(*both).cause == "exception"
    warned = explain("/x/a.py:3: UserWarning: slow", '  warnings.warn("Too many open files")')
    assert warned.cause == "unknown"
    # What is raised stands less deep.
    assert explain(*lines[:3], "OSError: [Errno 28] No space left on device").cause == "no-space"
    grouped = ["  + Exception Group Traceback (most recent call last):", '  |   File "a.py", line 7, in f']
    assert explain(*grouped, f"  |     {quoted}", "  | MemoryError: No space left on device").cause != "unknown"


def test_of_many_lines_alike_few_are_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def explain_memory(line: str, frames: Sequence[str]) -> tuple[str, str]:
        read.append(line)
        return "ran out", "fix"

    monkeypatch.setattr("zerokit.exits.gpu_memory.explain", explain_memory)
    assert explain(*[out_of_memory() + "x" * 99_999] * 9).message == "rank 3: ran out"
    assert len(read) == 1
    assert len(read[0]) < 5000


def test_lines_that_end_as_those_of_bars_are_lines() -> None:
    """They once were one line, which was read anew for each of its words."""
    log = Log("a.log", "\r".join(["x", *[out_of_memory()] * 3, "y"]) + "\nz")
    begin, end = log.bounds(log.text.index("Tried"))
    assert log.text[begin:end] == out_of_memory()
    assert [line for _, line in log.lines_from(begin, 9)] == [*[out_of_memory()] * 3, "y", "z"]
    assert [line for _, line in log.lines_above(end + 1, 9)] == [out_of_memory(), "x"]
    assert (log.line_at(end), log.line_at(len(log.text))) == (1, 2)


def test_the_end_of_a_long_log_keeps_its_line_numbers(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    many = (HEAD_BYTES + 2 * TAIL_BYTES) // 10
    log.write_text("x" * 9 + "\n" + ("y" * 9 + "\n") * many + out_of_memory() + "\n")
    found = explain_log(read_log(str(log)))
    assert (found.cause, found.line) == ("cuda-out-of-memory", many + 2)


def test_hostile_bytes_are_shown_as_escapes(tmp_path: Path, zerokit: Run) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\xff\0\x1b]0;owned\x07 Traceback\nzerokit: error: \x1b]0;owned\x07 {x} " + b"y" * 9000 + b"\n")
    code, out, err = zerokit("explain-exit", log)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\\x1b]0;owned\\x07 {x}" in out
    assert max(map(len, out.splitlines())) < 1500


def test_the_command_says_cause_line_and_mend(tmp_path: Path, zerokit: Run) -> None:
    log = tmp_path / "a.log"
    log.write_text("start\n" + out_of_memory() + "\n")
    code, out, err = zerokit("explain-exit", log)
    assert (code, err) == (0, "")
    assert out.startswith(f"{log}:2: rank 3: a GPU ran out of memory")
    assert "half the micro-batch and twice the gradient accumulation; gradient_checkpointing; ZeRO" in out
    found = json.loads(zerokit("explain-exit", log, "--format", "json")[1])
    assert (found["cause"], found["line"]) == ("cuda-out-of-memory", 2)


def test_an_error_of_zerokit_s_own_is_told_once(tmp_path: Path, zerokit: Run) -> None:
    log = tmp_path / "a.log"
    log.write_text("start\nzerokit: error: a.yaml: no such file. Check the path\n")
    assert zerokit("explain-exit", log) == (0, f"{log}:2: a.yaml: no such file. Check the path\n", "")


def test_a_log_that_does_not_say_it_gives_1(tmp_path: Path, zerokit: Run) -> None:
    (tmp_path / "a.log").write_text("all is well\n")
    code, out, err = zerokit("explain-exit", tmp_path / "a.log")
    assert (code, err) == (1, "")
    assert "ended from outside" in out


def test_a_run_that_stood_still_from_its_start_may_wait_for_a_compiler() -> None:
    start = "[2026-11-22 09:00:00,1] [INFO] [launch.py:245:main] process 7 spawned with command: ['python']"
    for end in ("Setting accelerator to CPU", "Terminated"):
        assert "'zerokit doctor' finds the lock" in str(explain(start, end).fix)
        for steps in (
            ["{'loss': 2.0}"],
            ["[Rank 0] step=1000, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]"],
            ["Epoch [1/10]"],
            ["words of a script's own"] * 1000,
        ):
            assert "doctor" not in str(explain(start, *steps, end).fix)


def test_only_a_watchdog_that_ends_a_rank_explains_its_abort() -> None:
    code = "[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -6"
    lost = "[rank1]: RuntimeError: [pair.cc:537] Read error: Connection reset by peer"
    starts = "n1:7:9 [0] NCCL INFO ProcessGroupNCCL watchdog thread started!"
    assert "SIGABRT" in explain(starts, code, lost).message
    ends = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)"
    assert "SIGABRT" not in explain(ends, code, lost).message


def test_all_mistakes_that_zerokit_told_at_once_are_named() -> None:
    mistakes = [f"a.yaml:{line}: no such key '{line}'" for line in (3, 4, 3, 5, 6, 7)]
    found = explain(*(f"zerokit: error: {mistake}" for mistake in mistakes), ENDED.format(2))
    assert (found.cause, found.message, found.line) == ("zerokit", mistakes[0], 2)
    told_lines = ((3, mistakes[1]), (5, mistakes[3]), (6, mistakes[4]), (7, mistakes[5]))
    assert found.also == tuple(f"line {line}: {mistake}" for line, mistake in told_lines)
    found = explain(*(f"zerokit: error: {number}" for number in range(1000)))
    assert found.also[49:] == ("line 52: 50", "949 more errors of zerokit")


def test_a_run_that_ended_well_is_no_riddle() -> None:
    left = "[2026-11-22 10:00:00,1] [INFO] [launch.py:285:main] Process 4711 exits successfully."
    trained = "{'train_runtime': 12.5}"
    start = "[2026-11-22 09:00:00,1] [INFO] [launch.py:245:main] process 4711 spawned with command: ['python']"
    assert explain(start, trained, left).cause == "ended-well"
    ignored = ("Exception ignored in: <function A.__del__>", "Traceback (most recent call last):", "KeyError: 3")
    assert explain(start, trained, *ignored, left).cause == "ended-well"
    assert explain(start, "OSError: [Errno 28] No space left on device", left).cause == "no-space"
    killed = explain(start, trained, "Writing model shards:  30%|###       | 3/10")
    assert (killed.cause, "what is saved after it may be missing" in killed.message) == ("unknown", True)
    stuck = explain(start, start.replace("4711", "4712"), trained, left)
    assert (stuck.cause, "it does not show that 1 rank reached" in stuck.message) == ("unknown", True)
    assert explain(left, *["another run"] * 1000).cause == "unknown"
    assert explain(left, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 ***").cause == "cancelled"


@pytest.mark.parametrize(
    ("word", "signal"),
    [
        *(("-9", "SIGKILL"), ("137", "SIGKILL"), ("247", "SIGKILL"), ("sigbus", "SIGBUS"), ("-7", "SIGBUS")),
        *(("134", "SIGABRT"), ("-11", "SIGSEGV"), ("143", "SIGTERM"), ("241", "SIGTERM")),
        *(("1", None), ("255", None)),
    ],
)
def test_a_code_is_told_however_it_is_written(word: str, signal: str | None, zerokit: Run) -> None:
    code, out, err = zerokit("explain-exit", word)
    assert (code, err) == (0, "")
    assert (f"({signal})" in out) == (signal is not None)


@pytest.mark.parametrize("word", ["999", "-99", "none.log", "/dev/zero", "/", "x" * 300])
def test_what_is_neither_log_nor_code_gives_2(word: str, zerokit: Run) -> None:
    refused(zerokit, "explain-exit", word)


@pytest.mark.parametrize("packed", [b"\x28\xb5\x2f\xfdxxxx", b"PK\x03\x04xxxx", b"\x1f\x8bxxxx"])
def test_a_compressed_log_is_refused(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "a.log").write_bytes(packed)
    with pytest.raises(DocumentError, match="is compressed"):
        read_log(str(tmp_path / "a.log"))


def test_what_is_no_log_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "run.log").symlink_to("/proc/self/environ")
    os.mkfifo(tmp_path / "pipe")
    for path in ("/proc/kmsg", "/dev/zero", tmp_path / "run.log", tmp_path / "pipe"):
        with pytest.raises(DocumentError, match=r"not a regular file\. Name a log file; for a pipe"):
            read_log(str(path))
