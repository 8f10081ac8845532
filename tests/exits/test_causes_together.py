"""What several lines mean together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.exits.explained import explain
from zerokit.exits import causes
from zerokit.exits.causes import CAUSES


def test_a_cause_of_two_lines_names_what_the_second_says() -> None:
    differs = (
        "[rank0]: ValueError: Please correct the following DeepSpeed config values that mismatch "
        "TrainingArguments values:",
        "[rank0]: - ds fp16.enabled=True vs hf fp16|fp16_full_eval=False",
    )
    assert explain(*differs).message.endswith("ds fp16.enabled=True vs hf fp16|fp16_full_eval=False")
    refused = ("pydantic.ValidationError: 3 validation errors for DeepSpeedZeroConfig", "zero_hpz_partition_size")
    assert explain(*refused).message == "DeepSpeed refuses a key of its config: zero_hpz_partition_size"
    loaded = (
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have",
        "\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument",
        "\tWeightsUnpickler error: Unsupported global: GLOBAL deepspeed.runtime.LossScaler was not an "
        "allowed global by default. Please use",
    )
    assert explain(*loaded).message.endswith("deepspeed.runtime.LossScaler")


def test_what_a_line_of_any_such_failure_says_comes_after_one_that_says_why() -> None:
    error = "[rank7]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error"
    assert explain(error, "[rank7]: Last error:", "[rank7]: Cuda failure 1 'invalid argument'").cause == "nccl-cuda"
    met = (
        "RuntimeError: Connection reset by peer",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    )
    assert explain(*met).cause == "no-meeting"
    lost = "n1:7:9 [0] socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<51159>"
    assert explain(lost, "n1:7:9 [3] NCCL WARN Cuda failure 'out of memory'").cause == "nccl-memory"


def test_what_a_program_s_line_and_its_exception_say_together_counts() -> None:
    line = "    step_id = self.__step_id_module_fetched_for[sub_module.id].popleft()"
    file = '  File "/v/site-packages/deepspeed/x.py", line 194, in record_parameters'
    raised = "IndexError: pop from an empty deque"
    assert explain(file, line, "              ^^^^^^^^^", raised).cause == "trace-changed"
    for own in ("    batch = batches.pop()", "    return self.buffer.popleft()"):
        assert explain('  File "/w/train.py", line 40, in f', own, "           ^^^^^^^", raised).fix == (
            "Look at /w/train.py:40"
        )


def test_an_assertion_of_a_kernel_is_no_index_though_torch_says_it_of_both() -> None:
    refused = "/a/Loss.cu:94: operator(): block: [7,0,0] Assertion `input_val >= zero && input_val <= one` failed."
    assert explain(refused, "RuntimeError: CUDA error: device-side assert triggered").cause == "kernel-assertion"


def test_what_c_plus_plus_raised_is_told_unless_it_is_a_rank_that_waited() -> None:
    ended = "E1019 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0"
    raised = "terminate called after throwing an instance of 'std::runtime_error'"
    assert explain(raised, "  what():  no such device", ended).message == "C++ code failed: no such device"
    waited = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)"
    assert explain(raised.replace("std::runtime_error", "c10::Error"), f"  what():  {waited}", ended).cause == (
        "nccl-timeout"
    )


def test_memory_that_cannot_be_pinned_is_none_of_the_gpu() -> None:
    above = ('  File "/v/site-packages/deepspeed/runtime/zero/stage3.py", line 9, in f', "    p = p.pin_memory()")
    raised = "RuntimeError: CUDA error: out of memory"
    assert explain(raised).cause == "gpu-taken"
    assert explain(*above, raised).cause == "pinned-memory"
    # Not that of a data loader, which takes memory of the GPU, nor another rank's.
    loader = '  File "/v/site-packages/torch/utils/data/_utils/pin_memory.py", line 63, in pin_memory'
    assert explain(loader, "    return data.pin_memory(device)", raised).cause == "gpu-taken"
    assert explain(*(f"[rank1]: {line}" for line in above), f"[rank0]: {raised}").cause == "gpu-taken"


def test_a_file_that_is_no_pickle_has_not_more_than_tensors() -> None:
    refused = "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value"
    why = "compatible with your use case: WeightsUnpickler error: "
    for first in (118, 60):  # of a pointer of Git LFS, and of a page
        for below in ((f"{why}Unsupported operand {first}",), (why, "", f"Unsupported operand {first}")):
            found = explain(refused, *below)
            assert found.cause == "damaged-file"
            assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in str(found.fix)
    # A pickle may be of another protocol.
    assert explain(refused, f"{why}Unsupported operand 149").cause == "weights-only"


def test_input_that_ends_is_a_damaged_file_s_where_torch_read_one() -> None:
    raised = "EOFError: Ran out of input"
    torch_file = '  File "/v/site-packages/torch/serialization.py", line 1251, in _legacy_load'
    read = "    magic_number = pickle_module.load(f, **pickle_load_args)"
    assert explain(torch_file, read, "                   ^^^^^^^^", raised).cause == "damaged-file"
    spawned = (
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 3, in f',
        "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 126, in _main',
        "    self = reduction.pickle.load(from_parent)",
        raised,
    )
    assert (explain(*spawned).cause, explain(*spawned).line) == ("no-pickle", 4)


def test_an_import_is_of_other_versions_where_it_is_of_a_library() -> None:
    def imported(path: str) -> str:
        at = ("Traceback (most recent call last):", '  File "/w/train.py", line 3, in <module>')
        return str(explain(*at, f"ImportError: cannot import name 'x' from 'models' ({path})").fix)

    assert imported("/w/models/__init__.py") == "Look at /w/train.py:3"
    assert "another version" in imported("/v/lib/python3.12/site-packages/models/__init__.py")


def test_a_process_that_cannot_be_forked_is_no_lock_that_another_has() -> None:
    raised = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    file = '  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch'
    assert explain(file, "    self.pid = os.fork()", "               ^^^^^^^^^", raised).cause == "processes"
    command = ("    self.pid = _fork_exec(", "               ^^^^^^^^^^^")
    assert explain(file, *command, raised).cause == "processes"
    assert explain('  File "/w/a.py", line 6, in f', "    fcntl.flock(file, how)", raised).cause == "exception"


def test_what_was_raised_before_a_missing_process_group_is_told_beside_it() -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 3, in <module>',
        "KeyError: 'a'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 9, in <module>',
        "ValueError: Default process group has not been initialized, please make sure to call it.",
    )
    found = explain(*lines)
    assert (found.cause, found.also) == ("no-process-group", ("line 4: KeyError: 'a'",))
    assert explain(lines[-1], "OSError: [Errno 28] No space left on device").cause == "no-space"


def test_a_folder_that_is_not_there_is_named_before_the_hub() -> None:
    found = explain(
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/output",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "OSError: output/model is not a local folder and is not a valid model identifier listed on",
    )
    assert (found.cause, "'output/model'" in found.message) == ("no-model", True)
    assert str(found.fix).startswith("A folder: it must be on every machine")


def test_a_time_limit_that_ended_ranks_that_waited_is_not_the_cause() -> None:
    limit = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-23T10:00:00 DUE TO TIME LIMIT ***"
    raised = (
        "5: Traceback (most recent call last):",
        '5:   File "/w/train.py", line 9, in <module>',
        "5:     model.load_state_dict(state)",
        "5: RuntimeError: Error(s) in loading state_dict for Net: size mismatch for head.weight",
    )
    found = explain(*raised, limit)
    assert found.cause != "time-limit"
    assert any("time limit" in other for other in found.also)
    went_on = tuple(f"{{'loss': 2.{step}, 'epoch': 0.{step}}}" for step in range(40))
    assert explain(*raised, *went_on, limit).cause == "time-limit"


def test_what_is_raised_is_told_though_a_program_logs_it_as_information() -> None:
    level = "2026-11-23 10:00:00.000 [INFO] [Driver] "
    lines = ('File "/w/train.py", line 7, in f', "engine.step()", "OSError: [Errno 28] No space left on device")
    assert explain(*(level + line for line in lines)).cause == "no-space"
    survived = level + "saving again after OSError: [Errno 28] No space left on device"
    assert explain(survived, "my.BatchError: two").cause == "exception"


def test_each_cause_has_words_and_patterns_that_begin_with_plain_text() -> None:
    for cause in CAUSES:
        assert cause.patterns
        assert not cause.fix.endswith(".")
        for pattern in cause.patterns:
            assert not pattern.pattern.startswith(("^", r"\s", r"\S", r"\w", r"\d", "["))


IN_DEEPSPEED = '  File "/v/lib/python3.12/site-packages/deepspeed/runtime/zero/stage3.py", line 9, in backward'


@pytest.mark.parametrize(
    ("source", "raised", "cause", "message"),
    [
        ("bucket = self.ipg_buckets[dt]", "KeyError: torch.float32", "versions", "before 0.18.5"),
        (
            "new_grad_tensor = bucket.buffer[bucket.index].narrow(0, bucket.elements, param.numel())",
            "RuntimeError: start (0) + length (9) exceeds dimension size (4).",
            "versions",
            "before 0.18.5",
        ),
        ("if self.sub_group_to_param_num[index] == 1:", "KeyError: 0", "versions", "SuperOffload"),
        ("assert len(self.ckpt_list) > 0", "AssertionError", "no-checkpoint", "no file of the model's weights"),
    ],
)
def test_a_library_s_line_says_what_its_exception_means(source: str, raised: str, cause: str, message: str) -> None:
    for carets in ((), ("    " + "^" * len(source),)):
        found = explain("Traceback (most recent call last):", IN_DEEPSPEED, f"    {source}", *carets, raised)
        assert (found.cause, message in found.message, found.also) == (cause, True, ())
    # Another line of DeepSpeed may raise the same.
    assert explain("Traceback (most recent call last):", IN_DEEPSPEED, "    x = y[z]", raised).cause != cause


LOADING = (
    '  File "/w/a.py", line 4, in main',
    "    model = BertModel.from_pretrained(path)",
    '  File "/v/lib/python3.12/site-packages/deepspeed/runtime/zero/partition_parameters.py", line 5, in f',
)
EMPTY = "IndexError: index 0 is out of bounds for dimension 0 with size 0"


def test_a_model_loaded_in_zero_init_is_named() -> None:
    init = '  File "/v/lib/python3.12/site-packages/transformers/modeling_utils.py", line 7, in _init_weights'
    mismatch = "TypeError: Signature mismatch between <function get_new_tensor_fn_for_dtype.<locals>.new_tensor"
    for lines in ((*LOADING, init, EMPTY), (*LOADING, mismatch)):
        found = explain("Traceback (most recent call last):", *lines)
        assert (found.cause, found.message.startswith("from_pretrained() was called inside")) == ("zero-init", True)
    for lines in ((*LOADING, EMPTY), (LOADING[0], init, EMPTY)):
        assert explain("Traceback (most recent call last):", *lines).cause == "empty-tensor"


@pytest.mark.parametrize("raised", ["RuntimeError: Socket Timeout", "RuntimeError: Connection reset by peer"])
@pytest.mark.parametrize(
    ("frame", "cause", "message"),
    [
        ('elastic/agent/server/api.py", line 550, in _rendezvous', "no-meeting", "launchers of the machines did not"),
        ('elastic/agent/server/api.py", line 901, in _exit_barrier', "no-meeting", "the ranks of this machine had"),
        ('distributed_c10d.py", line 9, in barrier', "lost-rank", "a rank lost the connection"),
    ],
)
def test_launchers_that_do_not_meet_are_no_lost_rank(frame: str, cause: str, message: str, raised: str) -> None:
    place = f'  File "/v/lib/python3.12/site-packages/torch/distributed/{frame}'
    found = explain("Traceback (most recent call last):", place, "    store.wait(keys)", raised)
    assert (found.cause, message in found.message) == (cause, True), found.message


def test_a_gather_that_not_all_ranks_reach_names_other_modules() -> None:
    timeout = (
        "[rank7]:[E821 16:40:45.2 ProcessGroupNCCL.cpp:632] [Rank 7] Watchdog caught collective operation "
        "timeout: "
        "WorkNCCL(SeqNum=5, OpType={}, NumelIn=6, NumelOut=48, Timeout(ms)=1800000) ran for 1800006 "
        "milliseconds"
    )
    assert "different modules" in str(explain(timeout.format("_ALLGATHER_BASE")).fix)
    assert "different modules" not in str(explain(timeout.format("ALLREDUCE")).fix)


def test_a_changed_order_of_modules_is_no_cause_of_another_end() -> None:
    changed = ["Invalidate trace cache @ step 10: expected module 11, but got module 19"] * 3
    assert explain(*changed).cause == "trace-changed"
    killed = "[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9"
    assert "SIGKILL" in explain(*changed, killed).message


def test_a_model_type_that_transformers_does_not_know() -> None:
    auto = '  File "/v/site-packages/transformers/models/auto/configuration_auto.py", line 740, in {}'
    lines = ("    raise KeyError(key)", "KeyError: 'qwen9'")
    found = explain("Traceback (most recent call last):", auto.format("__getitem__"), *lines)
    assert (found.cause, found.message.endswith("support the model: qwen9")) == ("new-model", True)
    of_script = '  File "/w/train.py", line 7, in main'
    assert explain("Traceback (most recent call last):", of_script, *lines).cause == "exception"


def test_each_pair_of_versions_has_a_source() -> None:
    rows = json.loads(Path(causes.__file__).with_name("versions.json").read_text())["causes"]
    assert [row["message"] for row in rows if not row.get("source")] == []
