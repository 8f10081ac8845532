"""What several lines mean together."""

from __future__ import annotations

from tests.exits.told import told
from zerokit.exits.causes import CAUSES


def test_a_cause_of_two_lines_names_what_the_second_says() -> None:
    differs = (
        "[rank0]: ValueError: Please correct the following DeepSpeed config values that mismatch "
        "TrainingArguments values:",
        "[rank0]: - ds fp16.enabled=True vs hf fp16|fp16_full_eval=False",
    )
    assert told(*differs).says.endswith("ds fp16.enabled=True vs hf fp16|fp16_full_eval=False")
    refused = (
        "pydantic.ValidationError: 3 validation errors for DeepSpeedZeroConfig",
        "zero_hpz_partition_size",
    )
    assert told(*refused).says == "DeepSpeed refuses a key of its config: zero_hpz_partition_size"
    loaded = (
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have",
        "\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument",
        "\tWeightsUnpickler error: Unsupported global: GLOBAL deepspeed.runtime.LossScaler was not",
    )
    assert told(*loaded).says.endswith("deepspeed.runtime.LossScaler")


def test_what_a_line_of_any_such_failure_says_comes_after_one_that_says_why() -> None:
    error = (
        "[rank7]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error"
    )
    assert (
        told(error, "[rank7]: Last error:", "[rank7]: Cuda failure 1 'invalid argument'").cause == "nccl-cuda"
    )
    met = (
        "RuntimeError: Connection reset by peer",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    )
    assert told(*met).cause == "no-meeting"
    lost = "n1:7:9 [0] socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<51159>"
    assert told(lost, "n1:7:9 [3] NCCL WARN Cuda failure 'out of memory'").cause == "nccl-memory"


def test_what_a_program_s_line_and_its_exception_say_together_counts() -> None:
    line = "    step_id = self.__step_id_module_fetched_for[sub_module.id].popleft()"
    file = '  File "/v/site-packages/deepspeed/x.py", line 194, in record_parameters'
    raised = "IndexError: pop from an empty deque"
    assert told(file, line, "              ^^^^^^^^^", raised).cause == "trace-changed"
    assert told(file, "    batch = batches.pop()", raised).cause == "exception"


def test_an_assertion_of_a_kernel_is_no_index_though_torch_says_it_of_both() -> None:
    refused = (
        "/a/Loss.cu:94: operator(): block: [7,0,0] Assertion `input_val >= zero && input_val <= one` failed."
    )
    assert told(refused, "RuntimeError: CUDA error: device-side assert triggered").cause == "kernel-assertion"


def test_what_c_plus_plus_raised_is_told_unless_it_is_a_rank_that_waited() -> None:
    ended = "E1019 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0"
    raised = "terminate called after throwing an instance of 'std::runtime_error'"
    assert told(raised, "  what():  no such device", ended).says == "C++ code gave up: no such device"
    waited = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)"
    assert told(raised.replace("std::runtime_error", "c10::Error"), f"  what():  {waited}", ended).cause == (
        "nccl-timeout"
    )


def test_memory_that_cannot_be_pinned_is_none_of_the_gpu() -> None:
    above = (
        '  File "/v/site-packages/deepspeed/runtime/zero/stage3.py", line 9, in f',
        "    p = p.pin_memory()",
    )
    raised = "RuntimeError: CUDA error: out of memory"
    assert told(raised).cause == "gpu-taken"
    assert told(*above, raised).cause == "pinned-memory"


def test_what_is_raised_is_told_though_a_program_logs_it_as_information() -> None:
    level = "2026-11-23 10:00:00.000 [INFO] [Driver] "
    lines = (
        'File "/w/train.py", line 7, in f',
        "engine.step()",
        "OSError: [Errno 28] No space left on device",
    )
    assert told(*(level + line for line in lines)).cause == "no-space"
    survived = level + "saving again after OSError: [Errno 28] No space left on device"
    assert told(survived, "my.BatchError: two").cause == "exception"


def test_each_cause_has_words_and_patterns_that_begin_with_plain_text() -> None:
    for cause in CAUSES:
        assert cause.patterns
        assert not cause.mend.endswith(".")
        for pattern in cause.patterns:
            assert not pattern.pattern.startswith(("^", r"\s", r"\S", r"\w", r"\d", "["))
