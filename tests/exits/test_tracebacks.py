"""Exceptions in logs as people have them: cut off, torn, with words of other programs before each line."""

from __future__ import annotations

import pytest

from tests.exits.explained import explain
from zerokit.exits import log_lines

FRAMES = (
    '  File "/w/train.py", line 12, in main',
    "    engine.step()",
    '  File "/v/lib/python3.12/site-packages/deepspeed/runtime/engine.py", line 9, in step',
    "    self.optimizer.step()",
)
RAISED = "my.package.BatchError: two batches"


def test_an_exception_is_told_where_the_beginning_of_its_traceback_is_cut_off() -> None:
    for lines in ((*FRAMES, RAISED), (FRAMES[1], RAISED), (RAISED,)):
        found = explain(*lines)
        assert (found.cause, found.message) == ("exception", "BatchError: two batches")
    raised = "it was raised in deepspeed/runtime/engine.py:9"
    assert explain(*FRAMES, RAISED).fix == f"Look at /w/train.py:12; {raised}"
    assert explain(*FRAMES[2:], RAISED).fix == f"Read the traceback; {raised}"
    other = explain(*FRAMES, "TypeError: load_model() got an unexpected keyword argument 'device'")
    assert str(other.fix).startswith("deepspeed calls load_model() in a way that it does not accept. If you wrote")
    bare = explain(*FRAMES, "AssertionError")
    assert (bare.message, bare.line) == ("AssertionError", 6)


def test_an_exception_is_told_where_ranks_without_a_prefix_tear_each_other_apart() -> None:
    torn = (
        "Traceback (most recent call last):",
        FRAMES[0],
        "Traceback (most recent call last):",
        FRAMES[0],
        f"{FRAMES[1]}{FRAMES[1]}",
        FRAMES[2],
        RAISED,
        FRAMES[2],
        RAISED,
    )
    assert explain(*torn).message == "BatchError: two batches"


def test_a_class_alone_is_a_word() -> None:
    for line in ("Error", "see RuntimeError", "RuntimeError", "Exception ignored in: <function f>", "Error: x"):
        assert explain(line).cause == "unknown"


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank3]: ",
        "0: ",
        "node-1: [rank3]: ",
        "[1,3]<stderr>:",
        "2026-11-23T11:14:0{}.123456789Z ",
        "2026-11-23 11:14:0{},511 (worker_7) : ",
        "2026-11-23 11:14:0{}.000 [INFO] [Driver] ",
        "(TrainerActor pid=71, ip=10.0.0.2) ",
        "[stderr] ",
        "pod-0 | ",
    ],
)
def test_words_of_other_programs_may_stand_before_each_line(prefix: str) -> None:
    lines = ("Traceback (most recent call last):", *FRAMES, "{}")
    for raised, message in (
        (RAISED, "BatchError: two batches"),
        ("OSError: [Errno 28] No space left on device", "disk"),
    ):
        log = [prefix.format(number) + line.format(raised) for number, line in enumerate(lines)]
        found = explain(*log)
        assert message in found.message
        assert found.line == 7
        assert explain(*log[3:]).line == 4


def test_a_program_s_line_is_quoted_below_other_programs_words_too() -> None:
    for prefix in ("2026-11-23T11:14:0{}Z ", "0: "):
        lines = ("Traceback (most recent call last):", FRAMES[0], '    raise OSError("No space left on device")', "E")
        found = explain(*(prefix.format(number) + line for number, line in enumerate(lines)), RAISED)
        assert found.cause == "exception"
    box = ("╭─── Traceback (most recent call last) ───╮", '│ ❱ 12 │   raise OSError("No space left on device") │')
    assert explain(*box, RAISED).cause == "exception"
    shown = ("--> 713             raise RuntimeError(", '    714                 "No space left on device"')
    assert explain(*shown, RAISED).cause == "exception"


def test_a_line_that_has_no_traceback_may_have_been_printed() -> None:
    printed = "AttributeError: 'MessageFactory' object has no attribute 'GetPrototype'"
    start = "[2026-11-22 09:00:00,1] [INFO] [launch.py:245:main] process 4711 spawned with command: ['python']"
    killed = "[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9"
    left = "[2026-11-22 10:00:00,1] [INFO] [launch.py:285:main] Process 4711 exits successfully."
    assert "SIGKILL" in explain(printed, printed, killed).message
    assert explain(start, printed, left).cause == "ended-well"
    # What is left of a traceback, and what torch says of one.
    for lines in ((FRAMES[1], printed), (f"[rank0]: {printed}",), ("╰───────╯", printed)):
        assert explain(*lines, killed).cause == "exception"


def test_a_prefix_with_a_time_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once was for each line that was held against it: of a thousand ranks, a million times."""
    looks: list[str] = []

    class Times:
        def __getattr__(self, name: str) -> object:
            looks.append(name)
            return getattr(times, name)

    times = log_lines._TIMES
    monkeypatch.setattr(log_lines, "_TIMES", Times())
    log = [
        f"2026-11-23T11:14:0{rank}.5Z [rank{rank}]: {line}"
        for line in ("Traceback (most recent call last):", *FRAMES * 9, RAISED)
        for rank in range(9)
    ]
    assert explain(*log).message == "rank 0: BatchError: two batches"
    assert len(looks) < len(log)


def test_what_a_destructor_or_a_thread_raises_ends_nothing() -> None:
    ignored = (
        "Exception ignored in: <function A.__del__>",
        "Traceback (most recent call last):",
        FRAMES[0],
        "KeyError: 3",
    )
    killed = "[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9"
    assert "SIGKILL" in explain(*ignored, killed).message
    assert explain(*ignored, RAISED).message == "BatchError: two batches"
    thread = ("Exception in thread Thread-3:", *ignored[1:])
    assert "SIGKILL" in explain(*thread, killed).message
    # Nothing else is known.
    assert explain(*ignored).message == "KeyError: 3"


def test_the_rank_that_failed_first_by_its_launcher_s_word_is_told() -> None:
    def raised(rank: int, text: str) -> tuple[str, ...]:
        lines = ("Traceback (most recent call last):", FRAMES[0], f"KeyError: {text}")
        return tuple(f"[rank{rank}]: {line}" for line in lines)

    summary = ("Root Cause (first observed failure):", "[0]:", "  time      : 2026", "  host      : n1")
    end = ("  rank      : {} (local_rank: 1)", "  exitcode  : 1 (pid: 7)")
    both = (*raised(0, "'late'"), *raised(3, "'first'"), *summary)
    assert explain(*both, end[0].format(3), end[1]).message == "rank 3: KeyError: 'first'"
    assert explain(*both, end[0].format(0), end[1]).message == "rank 0: KeyError: 'late'"
    assert explain(*both[:6]).message == "rank 0: KeyError: 'late'"


def test_an_assertion_without_words_is_told_by_its_line() -> None:
    own = ('  File "/w/train.py", line 7, in f', "    assert len(batch) == 3", "           ^^^^^^^^")
    found = explain("Traceback (most recent call last):", *own, "AssertionError")
    assert (found.message, found.fix) == ("AssertionError: assert len(batch) == 3", "Look at /w/train.py:7")
    zero = "    assert len(set(p.ds_id for p in self.params_in_ipg_bucket)) == len(self.params_in_ipg_bucket)"
    assert explain("Traceback (most recent call last):", own[0], zero, "AssertionError").cause == "gradient-twice"
    assert explain("Traceback (most recent call last):", own[0], zero, "KeyError: 3").cause == "exception"


def test_a_launcher_alone_says_where_else_to_look() -> None:
    ended = "[ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py'] exits with return code = 1"
    assert "--enable_each_rank_log" in str(explain(ended).fix)


OWN = ('  File "/w/data.py", line 20, in __getitem__', '    raise ValueError("no label")', "ValueError: no label")
WORKER = (
    "Traceback (most recent call last):",
    *FRAMES,
    '  File "/v/lib/python3.12/site-packages/torch/_utils.py", line 733, in reraise',
    "    raise exception",
    "ValueError: Caught ValueError in DataLoader worker process 2.",
    "Original Traceback (most recent call last):",
    '  File "/v/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop',
    "    data = fetcher.fetch(index)",
    *OWN,
)
POOL = (
    "multiprocess.pool.RemoteTraceback: ",
    '"""',
    "Traceback (most recent call last):",
    '  File "/v/lib/python3.12/site-packages/multiprocess/pool.py", line 125, in worker',
    *OWN,
    '"""',
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    *FRAMES[:2],
    '  File "/v/lib/python3.12/site-packages/datasets/arrow_dataset.py", line 3141, in map',
    "ValueError: no label",
)
SPAWNED = (
    "Traceback (most recent call last):",
    *FRAMES[:2],
    "torch.multiprocessing.spawn.ProcessRaisedException: ",
    "",
    "-- Process 1 terminated with the following error:",
    "Traceback (most recent call last):",
    *OWN,
)

RAY = (
    "Traceback (most recent call last):",
    *FRAMES[:2],
    '  File "/v/lib/python3.12/site-packages/ray/_private/worker.py", line 864, in get_objects',
    "ray.exceptions.RayTaskError(ValueError): ray::main_task() (pid=1477, ip=172.19.242.179)",
    *OWN,
)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize(
    ("log", "where"), [(RAY, ""), (WORKER, " (in DataLoader worker process 2)"), (POOL, ""), (SPAWNED, "")]
)
def test_what_another_process_raised_is_the_cause(log: tuple[str, ...], where: str, prefix: str) -> None:
    found = explain(*(prefix + line for line in log))
    rank = "rank 3: " if prefix else ""
    assert (found.message, found.fix) == (f"{rank}ValueError: no label{where}", "Look at /w/data.py:20")


def test_a_known_cause_in_a_worker_is_found() -> None:
    full = (*WORKER[:-1], "OSError: [Errno 28] No space left on device")
    assert explain(*full).cause == "no-space"


SITE = "/v/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("raised", "advice"),
    [
        ("AttributeError: 'Engine' object has no attribute '_hooks'", "trl expects '_hooks' of Engine. If"),
        ("AttributeError: 'NoneType' object has no attribute 'x'", "trl met a state that it does not expect"),
        ("AttributeError: module 'peft.utils' has no attribute 'x'", "trl needs 'x' of peft.utils, which"),
        (f"ImportError: cannot import name 'x' from 'peft' ({SITE}/p.py)", "trl needs 'x' of peft, which"),
        (f"ImportError: cannot import name 'x' from 'trl' ({SITE}/t.py)", "files of two versions are mixed"),
        ("ImportError: cannot import name 'x' from 'peft' (/w/peft.py)", "/w/peft.py has the name of"),
        ("ModuleNotFoundError: No module named 'peft.old'", "trl needs the module 'peft.old', which the"),
        ("ModuleNotFoundError: No module named 'sacrebleu'", "trl needs the module 'sacrebleu': install"),
        ("TypeError: Engine.run() got an unexpected keyword argument 'x'", "If you wrote run()"),
        ("TypeError: forward() got an unexpected keyword argument 'x'", "a column of the batch"),
        ("KeyError: 0", "trl met a state that it does not expect"),
        ("IndexError: list index out of range", "trl met a state that it does not expect"),
    ],
)  # fmt: skip
def test_an_exception_of_a_library_is_not_the_script_s_line(raised: str, advice: str) -> None:
    frames = (
        *FRAMES[:2],
        f'  File "{SITE}/transformers/trainer.py", line 7, in train',
        f'  File "{SITE}/trl/models/utils.py", line 9, in add_hooks',
    )
    found = explain("Traceback (most recent call last):", *frames, raised)
    assert (found.cause, found.message) == ("exception", raised)
    assert advice in str(found.fix)
    assert str(found.fix).endswith(
        "It was raised in trl/models/utils.py:9, called by transformers. The script led there at /w/train.py:12"
    )


@pytest.mark.parametrize(
    "raised", ["ValueError: a batch is empty", "RuntimeError: x", "AssertionError: labels are missing"]
)
def test_an_exception_of_a_library_that_explains_itself_keeps_the_script_s_line(raised: str) -> None:
    found = explain("Traceback (most recent call last):", *FRAMES, raised)
    assert found.fix == "Look at /w/train.py:12; it was raised in deepspeed/runtime/engine.py:9"


def test_a_callback_of_the_script_is_its_own_line() -> None:
    callback = ("Traceback (most recent call last):", *FRAMES, *OWN[:1], "KeyError: 'label'")
    assert explain(*callback).fix == "Look at /w/data.py:20"


def test_the_reader_of_an_attribute_is_the_line_not_the_getattr_that_raises() -> None:
    getattr_of_torch = (
        f'  File "{SITE}/torch/nn/modules/module.py", line 1928, in __getattr__',
        "    raise AttributeError(",
        "AttributeError: 'Model' object has no attribute 'optimizer'",
    )
    of_trl = f'  File "{SITE}/trl/models/utils.py", line 9, in remove_hooks'
    found = explain("Traceback (most recent call last):", *FRAMES[:2], of_trl, *getattr_of_torch)
    assert str(found.fix).startswith("trl expects 'optimizer' of Model.")
    own = explain("Traceback (most recent call last):", *FRAMES[:2], *getattr_of_torch)
    assert own.fix == "Look at /w/train.py:12"


def test_the_import_that_failed_is_the_cause_of_a_lazy_import() -> None:
    lazy = (
        "Traceback (most recent call last):",
        f'  File "{SITE}/transformers/utils/import_utils.py", line 1793, in _get_module',
        f'  File "{SITE}/trl/core.py", line 3, in <module>',
        "    from peft import x",
        f"ImportError: cannot import name 'x' from 'peft' ({SITE}/peft/__init__.py)",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        *FRAMES[:2],
        "RuntimeError: Failed to import transformers.trainer because of the following error (look up to see its",
    )
    found = explain(*lazy)
    assert (found.line, str(found.fix).startswith("trl needs 'x' of peft")) == (6, True)
    assert explain(*lazy[-4:]).message.startswith("RuntimeError: Failed to import transformers.trainer")


RECOMPUTED = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
    "tensors "
    "have different metadata than during the forward pass.",
    "tensor at position 3:",
    "saved metadata: {'shape': torch.Size([4096]), 'dtype': torch.bfloat16}",
    "recomputed metadata: {'shape': torch.Size([{}]), 'dtype': torch.bfloat16}",
)


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_frozen_parameters_that_are_empty_as_they_are_recomputed(prefix: str) -> None:
    def found(size: str) -> str:
        return explain(*(prefix + line.replace("[{}]", size) for line in RECOMPUTED)).cause

    assert (found("[0]"), found("[2048]")) == ("versions", "checkpoint-recompute")


def test_code_of_an_optimizer_that_zero_calls_is_told_what_it_gets() -> None:
    """ZeRO gives flat partitions, which an optimizer that reads shapes does not expect."""
    step = f'  File "{SITE}/deepspeed/runtime/zero/stage_1_and_2.py", line 2198, in _optimizer_step'
    wrapper = f'  File "{SITE}/torch/optim/optimizer.py", line 493, in wrapper'
    muon = '  File "/w/muon.py", line 77, in step'
    start = ("Traceback (most recent call last):", *FRAMES)
    for last in (muon, f'  File "{SITE}/some_optimizer/muon.py", line 77, in step'):
        found = explain(*start, step, wrapper, last, "    assert g.ndim == 2", "AssertionError")
        assert "flat fp32 partitions" in str(found.fix)
    of_torch = f'  File "{SITE}/torch/optim/adamw.py", line 77, in step'
    for frames in ((step, wrapper, of_torch), (muon,), (wrapper, muon)):
        assert "flat fp32" not in str(explain(*start, *frames, "ValueError: no").fix)


def test_what_a_line_without_traceback_says_of_versions() -> None:
    unfit = "TypeError: read_video() got an unexpected keyword argument 'size'"
    for lines in ((unfit,), (FRAMES[0], FRAMES[1], unfit)):
        assert "f read_video() is a library's" in str(explain(*lines).fix)
    assert "If HfConfig is a library's" in str(
        explain("AttributeError: 'HfConfig' object has no attribute 'is_zero3'").fix
    )
    for line in (RAISED, "AttributeError: 'NoneType' object has no attribute 'x'", "TypeError: f() takes 0"):
        assert str(explain(line).fix) == "Give the lines above it too: this log has no traceback of it"


def test_an_exception_of_one_place_is_explained_there_only() -> None:
    saves = f'  File "{SITE}/deepspeed/runtime/zero/stage_1_and_2.py", line 2335, in state_dict'
    scalar = "IndexError: slice() cannot be applied to a 0-dim tensor."
    assert "0.18.2" in str(explain("Traceback (most recent call last):", *FRAMES, saves, scalar).fix)
    assert explain("Traceback (most recent call last):", *FRAMES[:2], scalar).cause == "exception"
    universal = '  File "deepspeed/checkpoint/ds_to_universal.py", line 149, in extract_zero_shards'
    assert explain(universal, '    exp_avg=state["exp_avg"],', "KeyError: 'exp_avg'").cause == "universal"
