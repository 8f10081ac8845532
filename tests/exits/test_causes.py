"""What a line alone means, in the words that libraries, launchers and schedulers print."""

from __future__ import annotations

import pytest

from tests.exits.explained import explain

ENDED = (
    "[2026-11-22 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = {}"
)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[12345.6] Out of memory: Killed process 4711 (python) total-vm:1kB", "host-memory"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks", "host-memory"),
        ("srun: error: node1: task 3: Out Of Memory", "host-memory"),
        ("      Reason:       OOMKilled", "host-memory"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***",
            "time-limit",
        ),
        ("zerokit: preempted after step 7 (rank 1: SIGTERM). Resume with --training.resume", "preempted"),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T10:00 DUE TO PREEMPTION ***",
            "preempted",
        ),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO NODE FAILURE",
            "node-failed",
        ),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***", "cancelled"),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi", "evicted"),
        ("0/8 nodes are available: 8 Insufficient nvidia.com/gpu.", "no-room-in-cluster"),
        ("RuntimeError: CUDA error: invalid device ordinal", "no-such-gpu"),
        ("AssertionError: Not enough buffers 0 for swapping 1", "nvme-buffer"),
        ("RuntimeError: CUDA error: device-side assert triggered", "index-out-of-range"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "no-kernel-image",
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-broken"),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible",
            "shared-memory",
        ),
        (
            "node1: NCCL WARN Error while creating shared memory segment /dev/shm/nccl-4F (size 9)",
            "shared-memory",
        ),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.", "host-memory"),
        (
            "RuntimeError: [enforce fail at CPUAllocator.cpp] DefaultCPUAllocator: can't allocate memory",
            "host-memory",
        ),
        ("OSError: [Errno 28] No space left on device: 'out/checkpoint-5'", "no-space"),
        ("OSError: [Errno 24] Too many open files: 'a'", "open-files"),
        (
            "RuntimeError: The server socket has failed to listen on any local address. EADDRINUSE",
            "port-in-use",
        ),
        ("node2: Permission denied (publickey,password).", "ssh"),
        ("ModuleNotFoundError: No module named 'mpi4py'", "no-launcher"),
        (
            "ZeRORuntimeException: The checkpoint being loaded used a DP world size "
            "of 16 but the current world size is 8. Automatic adjustment of ZeRO's optimizer state",
            "other-ranks",
        ),
        ("NCCL WARN Bootstrap : no socket interface found", "interface"),
        # What gloo and torch have said in tests.validation.exits.real_deaths.
        (
            "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
            "collective-timeout",
        ),
        (
            "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 12 vs 4. Received "
            "data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
            "desync",
        ),
        ("/v/bin/python: can't open file '/w/a.py': [Errno 2] No such file or directory", "no-script"),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", "no-space"),
        (
            "torch.elastic.multiprocessing.api.SignalException: Process 2 got signal: 15",
            "exit-code",
        ),
        ("/usr/include/a.h:3:10: fatal error: curand_kernel.h: No such file or directory", "extension"),
        ("CalledProcessError: Command '['which', 'c++']' returned non-zero exit status 1.", "extension"),
        ("CalledProcessError: Command '['which', 'aws']' returned non-zero exit status 1.", "exception"),
        ("RuntimeError: Using hostfile at h but host=n1 was not reachable via ssh. If you", "ssh"),
        ("AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'", "extension"),
        ("RuntimeError: 'weight' must be 2-D", "partitioned-parameter"),
        ("RuntimeError: mat2 must be a matrix, got 1-D tensor", "partitioned-parameter"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "loss-scale"),
        ("AssertionError: Check batch related parameters. train_batch_size is not equal to", "batch-sizes"),
        ("AssertionError: zero stage 2 requires an optimizer", "no-optimizer"),
        ("ValueError: ZeRO inference only makes sense with ZeRO Stage 3 - please adjust", "evaluate-only"),
        ("AssertionError: More elements 524709888 than buffer size 100,000,000", "nvme-buffer"),
        (
            "AssertionError: The parameter 12 has already been reduced. Gradient computed twice",
            "gradient-twice",
        ),
        ("zerokit: error: a.yaml:3: there is no such key. Did you mean 'b'?", "zerokit"),
        ("RuntimeError: [gloo/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:9", "lost-rank"),
        (
            "DistNetworkError: The client socket has timed out after 6ms while trying to connect to (n1, 2)",
            None,
        ),
        (ENDED.format(-9), "exit-code"),
        ("  exitcode  : -11 (pid: 4711)", "exit-code"),
        ("srun: error: node1: task 3: Killed", "exit-code"),
        ("run.sh: line 3: 4711 Killed                  python a.py", "exit-code"),
    ],
)
def test_a_line_is_told_by_its_words(line: str, cause: str | None) -> None:
    found = explain(line)
    assert found.cause == (cause or "no-meeting")
    assert found.line == 2
    assert found.text == " ".join(line.split())
    assert "{" not in found.message + (found.fix or "")


MISMATCH = (
    "        size mismatch for lm_head.weight: copying a param with shape torch.Size([{}]) from checkpoint, "
    "the shape in current model is torch.Size([{}])."
)


@pytest.mark.parametrize(
    ("line", "cause", "message"),
    [
        # Schedulers.
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
         "host-memory", "Ray"),
        ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker "
         "exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
         "ray-worker", "Ray worker"),
        ("The actor died because its node has died. Node Id: 3f", "node-failed", "Ray"),
        ("srun: error: Unable to create step for job 7: More processors requested than permitted",
         "no-room-in-cluster", "More processors requested"),
        ("srun: error: Task launch for StepId=36.0 failed on node n7: Job credential expired",
         "node-failed", "node n7: Job credential expired"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
         "ray-worker", "a Ray worker"),
        ("srun: error: Unable to create step for job 7: Job/step already completing or completed",
         "unknown", "does not show"),
        ("srun: error: Unable to allocate resources: Socket timed out on send/recv operation",
         "unknown", "does not show"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available",
         "no-room-in-cluster", "node configuration"),
        # GPUs.
        ("n1:7:9 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
         "nccl-memory", "NCCL's buffers"),
        ("n1:7:9 [3] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'",
         "nccl-memory", "NCCL's buffers"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
         "vllm-memory", "vLLM"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle`",
         "cuda-library", "CUBLAS_STATUS_EXECUTION_FAILED"),
        ("ValueError: Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",
         "no-bf16", "bf16"),
        ("RuntimeError: No CUDA GPUs are available", "no-gpu", "no GPU"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
         "calling NumCudaDevices() that might have already set an error? Error 802: system not yet "
         "initialized",
         "fabric-manager", "Fabric Manager"),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware "
         "limit: 101376.",
         "kernel-too-large", "Required: 131072"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing",
         "forked-cuda", "forked"),
        ("        rtFftsPlusTaskLaunch execute failed, reason=[driver error:out of memory][FUNC:Reason]",
         "gpu-taken", "no memory left"),
        ("RuntimeError: CUDA error: unspecified launch failure",
         "illegal-memory-access", "unspecified launch"),
        ("[1.2] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.",
         "gpu-broken", "fallen off"),
        ("[1.2] NVRM: Xid (PCI:0000:09:00): 94, Contained: SM (0x1)", "gpu-broken", "94"),
        ("[1.2] NVRM: Xid (PCI:0000:09:00): 31, pid=71, Ch 00000010", "illegal-memory-access", "31"),
        ("[1.2] NVRM: Xid (PCI:0000:09:00): 63, Row remapping event: pending", "unknown", "does not show"),
        ("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
         "gpu-unavailable", "compute mode"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         "cuda-library", "ALLOC_FAILED"),
        ("[1.2] NVRM: Xid (PCI:0000:09:00): 45, pid=71, Ch 00000010", "unknown", "does not show"),
        ("../aten/src/ATen/native/cuda/IndexKernel.cu:92: operator(): block: [2,0,0], thread: [5,0,0] "
         'Assertion `index >= -sizes[i] && index < sizes[i] && "index out of bounds"` failed.',
         "index-out-of-range", "token id"),
        ("/a/aten/src/ATen/native/cuda/Loss.cu:94: operator(): block: [7,0,0], thread: [2,0,0] Assertion "
         "`input_val >= zero && input_val <= one` failed.", "kernel-assertion", "input_val >= zero"),
        ("ptxas fatal   : Value 'sm_100' is not defined for option 'gpu-name'", "no-kernel-image",
         "no code for"),
        # Hosts.
        ("RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, "
         "disable multiprocessing.",
         "host-memory", "datasets.map"),
        ("n1:7:9 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
         "locked-memory", "ulimit"),
        ("run.sh: fork: retry: Resource temporarily unavailable", "processes", "ulimit -u"),
        ("thread '<unnamed>' panicked at 'The global thread pool has not been initialized.: "
         "ThreadPoolBuildError { kind: IOError }', /c/registry.rs:168:5", "processes", "threads"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable: 'data.lock'",
         "exception", "data.lock"),
        ("/nvme/rank3/0_param.tensor.swp: buffer nbytes != file bytes 28824000 != 28311552",
         "nvme", "28311552"),
        ("python: deepspeed_aio_common.cpp:125: int _do_io_complete(): Assertion `n_completes >= "
         "min_completes' failed.",
         "nvme", "n_completes"),
        # Starts.
        ("[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to "
         "10.0.0.1:1234", "no-meeting", "10.0.0.1:1234"),
        ("DistNetworkError: The IPv4 network addresses of (node-1, 29500) cannot be retrieved (gai error: "
         "-2 - Name or service not known).",
         "no-meeting", "(node-1, 29500)"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "no-meeting", "TimeoutError"),
        ("DistStoreError: Timed out initializing process group in store based barrier on rank 1, for key: "
         "store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00 error=x)",
         "no-meeting", "only 3 of 4"),
        ("[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - "
         "Address already in use).",
         "port-in-use", "rendezvous"),
        ("[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 97 - "
         "Address family not supported by protocol).",
         "unknown", "does not show"),
        ("OSError: [Errno 98] Address already in use", "port-in-use", "another process"),
        ("ValueError: Hostfile contains multiple entries for node-1, unable to proceed with launching",
         "hostfile", "node-1"),
        ("train.py: error: unrecognized arguments: --local_rank=0", "local-rank", "--local_rank"),
        ("ValueError: Default process group has not been initialized, please make sure to call "
         "init_process_group.",
         "no-process-group", "before there was a process group"),
        ("node-2: bash: line 1: ninja: command not found", "no-command", "ninja"),
        ("wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
         "wandb", "api_key"),
        ("wandb.errors.AuthenticationError: The API key you provided is either invalid or missing.",
         "wandb", "invalid or missing"),
        ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", "wandb", "timed out"),
        ("wandb.errors.errors.CommError: returned error 403: permission denied", "exception", "denied"),
        ("wandb.errors.errors.Error: You must call wandb.init() before wandb.log()", "exception", "You"),
        # Files.
        (MISMATCH.format("32000, 4096", "0"), "partitioned-parameter", "lm_head.weight"),
        (MISMATCH.format("0", "32000, 4096"), "empty-weights", "shape [0]"),
        (MISMATCH.format("1", "32000, 4096"), "empty-weights", "shape [1]"),
        (MISMATCH.format("32000, 4096", "32016, 4096"), "other-shape", "[32000, 4096] there, and [32016"),
        ('        Missing key(s) in state_dict: "model.norm.weight".', "other-keys", "model.norm.weight"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
         "damaged-file", "InvalidHeader"),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
         "damaged-file", "central directory"),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so",
         "exception", "Weights only load failed"),
        ("OSError: You seem to have cloned a repository without having git-lfs installed. Please install",
         "damaged-file", "git-lfs"),
        ("EOFError: Ran out of input", "exception", "Ran out of input"),
        ("ValueError: loaded state dict contains a parameter group that doesn't match the size of "
         "optimizer's group",
         "other-optimizer", "other parameter groups"),
        ("ValueError: Can't find a valid checkpoint at out/checkpoint-5",
         "no-checkpoint", "out/checkpoint-5"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find "
         "them in the cached files.",
         "no-hub", "cache"),
        ("OSError: You are trying to access a gated repo.", "hub-access", "gated"),
        ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/m/n",
         "hub-access", "401"),
        ("ValueError: The checkpoint you are trying to load has model type `x9` but Transformers does not "
         "recognize this architecture.",
         "new-model", "x9"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/o/checkpoint-5/global_step5/"
         "bf16_zero_pp_rank_4_mp_rank_00_optim_states.pt'", "missing-part", "bf16_zero_pp_rank_4_mp_rank_00"),
        # Software.
        ("      The detected CUDA version (11.8) mismatches the version that was used to compile",
         "extension", "11.8"),
        ("Installed CUDA version 12.2 does not match the version torch was compiled with 12.1 but since the "
         "APIs are compatible, accepting this combination", "unknown", "does not show"),
        ("CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 12.2 does not match the "
         "version torch was compiled with 11.7, unable to compile cuda/cpp extensions", "extension", "11.7"),
        ("ERROR: No supported gcc/g++ host compiler found, but clang-14 is available.",
         "extension", "host compiler"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_89'", "extension", "compute_89"),
        ("RuntimeError: Unable to JIT load the async_io op due to it not being compatible due to "
         "hardware/software issue. None",
         "op-incompatible", "async_io"),
        ("ImportError: /c/torch_extensions/py310_cu118/fused_adam/fused_adam.so: cannot open shared object "
         "file: No such file or directory",
         "extension", "in part"),
        ("ImportError: /c/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /c/a.so)",
         "library-missing", "GLIBCXX_3.4.30"),
        ("ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
         "library-missing", "libcudart.so.11.0"),
        ("ImportError: /v/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined "
         "symbol: _ZN3c10",
         "other-binary", "_ZN3c10"),
        ("ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following "
         "error: the package for FlashAttention2 doesn't seem to be installed.",
         "flash-attention", "seem to be installed"),
        # Training.
        ("RuntimeError: weight should have at least three dimensions", "partitioned-parameter", "had part"),
        ("RuntimeError: Expected weight to be of same shape as normalized_shape, but got weight of shape "
         "[0] and",
         "partitioned-parameter", "partitioned"),
        ("IndexError: index 0 is out of bounds for dimension 0 with size 0", "empty-tensor", "empty"),
        ("AssertionError: {'id': 41, 'status': 'INFLIGHT', 'numel': 16, 'ds_numel': 16, 'shape': (4, 4)}",
         "trace-changed", "another order"),
        ("RuntimeError: Expected to mark a variable ready only once. This error is caused by",
         "gradient-twice", "twice"),
        ("RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors",
         "backward-twice", "earlier backward"),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new "
         "one.",
         "unused-parameters", "DDP waits"),
        ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
         "loss-scale", "fp16"),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "not-finite", "NaN"),
        ("AssertionError: Micro batch size per gpu: 0 has to be greater than 0",
         "batch-sizes", "train_batch_size"),
        ("ValueError: Please specify the ZeRO optimization config in the DeepSpeed config.",
         "config-key", "ZeRO"),
        ("ValueError: You can't train a model that has been loaded with `device_map='auto'` in any "
         "distributed mode.",
         "device-map", "device_map"),
        ("AssertionError: You can't use same `Accelerator()` instance with multiple models when using "
         "DeepSpeed",
         "two-models", "several models"),
        ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
         "cuda:0 and cpu!",
         "devices-differ", "different devices"),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
         "dtypes-differ", "BFloat16"),
        ("NotImplementedError: Cannot copy out of meta tensor; no data!", "meta-tensor", "meta"),
        ("ValueError: Unable to create tensor, you should probably activate truncation and/or padding with",
         "padding", "padded"),
        ("AssertionError: [rank=0] The checkpoint tag name 'a' is not consistent across all ranks.",
         "checkpoint-tag", "different names"),
        ("RuntimeError: disagreement between rank0 and rank2: rank0: [1, 2], rank2: [2, 3]",
         "trace-changed", "not on all ranks"),
        # Launchers.
        ("W0920 09:10:41.194 84933 site-packages/torch/api.py:719] Received 1 death signal, shutting down "
         "workers",
         "exit-code", "SIGHUP"),
        ("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 5 closing signal SIGHUP",
         "exit-code", "SIGHUP"),
        ("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 5 closing signal SIGTERM",
         "unknown", "does not show"),
        ("pdsh@n1: n2: ssh exited with exit code 127", "exit-code", "no such command"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
         "exit-code", "SIGKILL"),
        ("run.sh: line 7: 4711 Aborted                 (core dumped) python a.py", "exit-code", "SIGABRT"),
        ("terminate called without an active exception", "native-code", "while the process ended"),
        ("thread '<unnamed>' panicked at 'Missing additional token', /t/src/added_vocabulary.rs:293:26",
         "native-code", "Missing additional token"),
        ("PanicException: failed printing to stdout: Broken pipe (os error 32)", "exception", "stdout"),
        # Communication.
        ("n1:7:9 [5] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to fe80::9:cf0%ib1<17943> "
         "failed : Software caused connection abort",
         "nccl-link", "fe80::9:cf0%ib1<17943>"),
        ("n1:7:9 [0] include/alloc.h:112 NCCL WARN Cuda failure 999 'unknown error'", "nccl-cuda", "999"),
        ("[rank0]:[F ProcessGroupNCCL.cpp:1250] [PG 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for "
         "600 seconds without making progress in monitoring enqueued collectives.",
         "nccl-stuck", "made no progress"),
        ("n1:7:9 [4] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<548> with status=12 opcode=0 len=0 "
         "vendor err 129 (Recv)", "nccl-link", "10.0.0.2<548> with status=12 opcode=0 len=0 vendor err 129"),
        ("18:19 [rank2]:[F205 ProcessGroupNCCL.cpp:1614] [PG ID 17 Rank 2] Terminating the process after "
         "attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.", "nccl-stuck",
         "made no progress"),
        ("RuntimeError: NCCL error in: /p/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8",
         "nccl", "invalid argument"),
        ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/ProcessGroupNCCL.cpp:1331, "
         "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1",
         "nccl", "unhandled system error"),
    ],
)  # fmt: skip
def test_a_line_says_its_cause(line: str, cause: str, message: str) -> None:
    found = explain(line)
    assert (found.cause, message in found.message) == (cause, True), found.message
    assert "{" not in found.message.replace("{'id'", "") + (found.fix or "").replace("{'': local_rank}", "")
