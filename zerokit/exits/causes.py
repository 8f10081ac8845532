"""What the lines of a log mean: a pattern, what it says of the run, and what to do.

An entry speaks of words that a library prints, so that it holds for any script. `{name}` in its texts is
a group of its pattern, and `{what}` all that the pattern covers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How near a line is to the cause: the smallest is told, and of those the first in the log."""

    ENDED = 0
    """The system or the scheduler says that it ended the run."""
    CAUSE = 1
    EXCEPTION = 2
    """A traceback of which nothing more is known."""
    KILLED = 3
    """A launcher saw a signal, of which the process itself could say nothing."""
    LEFT = 4
    """A launcher saw a code that a rank has chosen itself, such as by sys.exit(3)."""
    CONSEQUENCE = 5
    """What is seen where another rank has failed; or where it waits."""
    MENTIONED = 6
    """Words of a cause in a line that is no error by its own word: a warning, or something tried again."""
    EXIT = 7
    """A launcher saw that something had failed."""


@dataclass(frozen=True)
class Cause:
    """One entry of the table."""

    name: str
    says: str
    mend: str
    patterns: tuple[re.Pattern[str], ...]
    """Each begins with plain text, for which re looks quickly."""
    weight: Weight = Weight.CAUSE


def _cause(name: str, says: str, mend: str, *patterns: str, weight: Weight = Weight.CAUSE) -> Cause:
    return Cause(name, says, mend, tuple(map(re.compile, patterns)), weight)


_HOST_MEMORY = (
    "Start fewer ranks per node, use fewer data loader workers or less offload, or ask for more memory; "
    "'zerokit estimate' says what the host needs"
)
_PARTITIONED = (
    "Under ZeRO-3 read it inside the module's forward, or in deepspeed.zero.GatheredParameters; save by "
    "stage3_gather_16bit_weights_on_model_save"
)
RUNS_ALONE = (
    "Some line runs on some ranks alone (if rank == 0, a batch less, an expert unused): 'zerokit rehearse' "
    "names both lines"
)
STILL_RAN = (
    "some line runs on some ranks alone, which 'zerokit rehearse' names; or one takes long (a save, a slow "
    "disk): 'py-spy dump' shows its line"
)
"""Why a rank did not come to a collective that has not failed."""
_REASON = r"eason\"?:\s{0,20}\"?"
"""Before the words by which Kubernetes says why, which are words of other programs, too."""

OUT_OF_MEMORY = "cuda-out-of-memory"
NCCL_TIMEOUT = "nccl-timeout"
GLOO_TIMEOUT = "collective-timeout"
ZEROKIT = "zerokit"
EXIT_CODE = "exit-code"

CAUSES = (
    # The system and the scheduler.
    _cause(
        "host-memory",
        "the kernel killed it, because host memory ran out",
        _HOST_MEMORY,
        r"Out of memory: Kill(?:ed)? process",
        r"emory cgroup out of memory",
        r"oom-kill:constraint",
        r"oom_reaper: ",
        weight=Weight.ENDED,
    ),
    _cause(
        "host-memory",
        "Slurm killed it, because the job used more host memory than it asked for",
        "Ask for more by --mem or --mem-per-cpu; " + _HOST_MEMORY[0].lower() + _HOST_MEMORY[1:],
        r"oom[-_]kill event\S{0,3} in [Ss]tep",
        r"Exceeded job memory limit",
        r"slurmstepd: error: [^\n]{0,200}exceeded (?:\w{1,10} )?memory limit",
        r"task \d+: Out Of Memory",
        weight=Weight.ENDED,
    ),
    _cause(
        "host-memory",
        "Kubernetes killed it, because the container used more host memory than its limit",
        "Raise resources.limits.memory (an emptyDir in memory at /dev/shm counts, too); " + _HOST_MEMORY,
        _REASON + "OOMKilled",
        r"OOMKilled\s{1,20}\d",
        r"Warning\s{1,20}OOMKilling",
        weight=Weight.ENDED,
    ),
    _cause(
        "time-limit",
        "Slurm ended it at its time limit",
        "Ask for more by --time, and go on from the last checkpoint (training.resume_from_checkpoint)",
        r"DUE TO TIME LIMIT",
        r"slurmstepd: error: [^\n]{0,200}TIMEOUT",
        weight=Weight.ENDED,
    ),
    _cause(
        "time-limit",
        "Kubernetes ended it at its time limit (activeDeadlineSeconds)",
        "Raise it, and go on from the last checkpoint",
        _REASON + "DeadlineExceeded",
        r"Warning\s{1,20}DeadlineExceeded",
        weight=Weight.ENDED,
    ),
    _cause(
        "preempted",
        "the scheduler took its machines for another job",
        "Submit it again and go on from the last checkpoint; save more often, or ask for machines that stay",
        r"DUE TO PREEMPTION",
        _REASON + "Preempt(?:ed|ing|ionByScheduler)",
        r"Warning\s{1,20}Preempt(?:ed|ing)",
        r"Normal\s{1,20}Preempt(?:ed|ing)",
        r"instance was preempted",
        r"instance has been preempted",
        r"Spot instance interruption notice",
        weight=Weight.ENDED,
    ),
    _cause(
        "preempted",
        "the run was asked to leave, and saved a checkpoint first",
        "Go on from it: --training.resume_from_checkpoint true",
        r"zerokit: preempted after step \d",
        weight=Weight.ENDED,
    ),
    _cause(
        "evicted",
        "Kubernetes evicted the pod, because its node ran low on {what}",
        "Ask for what it needs in resources.requests (memory, ephemeral-storage), and write to a volume",
        r"The node was low on resource: (?P<what>[\w-]{1,40})",
        weight=Weight.ENDED,
    ),
    _cause(
        "node-failed",
        "a machine of the job failed",
        "Submit it again without that machine (sbatch --exclude), and go on from the last checkpoint",
        r"DUE TO NODE FAILURE",
        r"error: Node failure on ",
        _REASON + "NodeLost",
        _REASON + "NodeNotReady",
        r"Warning\s{1,20}NodeNotReady",
        weight=Weight.ENDED,
    ),
    _cause(
        "cancelled",
        "the job was cancelled",
        "See who did: sacct -j JOB -o State,User",
        r"JOB [\d.]+ ON \S{1,200} CANCELLED AT(?![^\n]{0,200}DUE TO)",
        r"STEP [\d.]+ ON \S{1,200} CANCELLED AT(?![^\n]{0,200}DUE TO)",
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        "no-room-in-cluster",
        "no node of the cluster has what the pod asks for: {what}",
        "Ask for fewer GPUs per node, or for what 'kubectl describe nodes' lists as allocatable",
        r"/\d{1,6} nodes are available: (?P<what>[^\n]{1,200})",
    ),
    _cause(
        "no-image",
        "the container's image cannot be had",
        "Look at its name and at imagePullSecrets: kubectl describe pod POD",
        r"ErrImagePull",
        r"ImagePullBackOff",
        r"manifest unknown",
    ),
    # Devices.
    _cause(
        OUT_OF_MEMORY,
        "a GPU ran out of memory: {asked} more were asked for",
        "",  # depends on the figures: see zerokit.exits.gpu_memory
        r" out of memory\. Tried to allocate (?P<asked>[\d.]+ ?[KMGT]i?B)",
    ),
    _cause(
        "gpu-taken",
        "the GPU's driver has no memory left, as where another process holds it",
        "See who: nvidia-smi; end what is left of an earlier run",
        r"CUDA error: out of memory",
        r"cudaErrorMemoryAllocation",
        r"CUBLAS_STATUS_ALLOC_FAILED",
    ),
    _cause(
        "gpu-broken",
        "the GPU or its link failed: {what}",
        "Leave that machine out (its hosts' 'dmesg | grep Xid' names the GPU) and have it mended",
        r"uncorrectable ECC error",
        r"uncorrectable NVLink error",
        r"GPU is lost",
        r"Unable to determine the device handle",
        r"has fallen off the bus",
        r"NVRM: Xid \([^)]{1,40}\): \d{1,4}",
    ),
    _cause(
        "no-kernel-image",
        "this build of torch, or of an extension, has no code for this GPU",
        "Install a torch whose torch.cuda.get_arch_list() has the GPU's capability, and compile extensions "
        "anew with TORCH_CUDA_ARCH_LIST",
        r"no kernel image is available for execution",
        r"is not compatible with the current PyTorch installation",
    ),
    _cause(
        "driver-too-old",
        "the NVIDIA driver is older than this build of torch needs",
        "Update the driver, or install the torch of an older CUDA",
        r"NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient",
    ),
    _cause(
        "no-such-gpu",
        "a rank has no GPU of its own: there are more ranks than GPUs on its machine",
        "Start as many ranks per node as GPUs: --num_gpus, --nproc-per-node, slots in the hostfile; see "
        "CUDA_VISIBLE_DEVICES",
        r"CUDA error: invalid device ordinal",
        r"Duplicate GPU detected",
    ),
    _cause(
        "index-out-of-range",
        "an index was out of range in a kernel: mostly a token id beyond the embedding, or a label",
        "Compare len(tokenizer) with the model's vocab_size, and labels with num_labels; "
        "CUDA_LAUNCH_BLOCKING=1 shows the line",
        r"device-side assert triggered",
        r"Assertion `(?:srcIndex < srcSelectDimSize|t >= 0 && t < n_classes|-sizes\[i\] <= index)",
    ),
    _cause(
        "illegal-memory-access",
        "a kernel wrote or read where it may not",
        "Run with CUDA_LAUNCH_BLOCKING=1 to see which, and update what brings it (flash-attn, bitsandbytes)",
        r"an illegal memory access was encountered",
        r"CUDA error: misaligned address",
    ),
    # Host.
    _cause(
        "shared-memory",
        "shared memory ran out (/dev/shm)",
        "Start the container with --shm-size=16g or --ipc=host; on Kubernetes mount an emptyDir with "
        "medium: Memory at /dev/shm",
        r"is killed by signal: Bus error",
        r"unable to (?:open|write to|allocate) (?:file|shared memory)[^\n]{0,200}(?:torch_|/dev/shm)",
        r"Error while (?:creating|attaching to) shared memory segment",
        r"insufficient shared memory \(shm\)",
        r"No space left on device: '/dev/shm",
        r"Bus error \(core dumped\)",
    ),
    _cause(
        "host-memory",
        "a data loader worker was killed, mostly because host memory ran out",
        "Set dataloader_num_workers lower; " + _HOST_MEMORY,
        r"DataLoader worker \(pid[^\n]{0,80}killed by signal: Killed",
    ),
    _cause(
        "host-memory",
        "host memory ran out",
        _HOST_MEMORY,
        r"DefaultCPUAllocator: (?:can't|not enough)",
        r"Cannot allocate memory",
        r"\nMemoryError",
        r": MemoryError",
        r"_ArrayMemoryError",
        r"std::bad_alloc",
    ),
    _cause(
        "no-space",
        "a disk is full",
        "Make room on that disk, keep fewer checkpoints (training.save_total_limit), or name another "
        "output_dir; caches lie in HF_HOME and TORCH_EXTENSIONS_DIR",
        r"No space left on device",
        r"Disk quota exceeded",
        r"file write failed",
        r"PytorchStreamWriter failed writing",
    ),
    _cause(
        "no-space",
        "torch could not write a file to its end: mostly, a disk is full",
        "See 'df -h' for the folder that was written to; make room, or name another one",
        r"basic_ios::clear: iostream error",
        r"inline_container\.cc:\d{1,6}\] \. unexpected pos \d{1,18} vs \d{1,18}",
    ),
    _cause(
        "read-only",
        "a file system is read-only",
        "Name an output_dir, HF_HOME and TORCH_EXTENSIONS_DIR that may be written to",
        r"Read-only file system",
    ),
    _cause(
        "file-server",
        "a file server was lost, or a file was replaced on it",
        "Look at the mount on that machine, and write from one machine at a time",
        r"Stale file handle",
        r"Transport endpoint is not connected",
    ),
    _cause(
        "open-files",
        "a process had more files open than 'ulimit -n' allows",
        "Raise it: ulimit -n 65536; or torch.multiprocessing.set_sharing_strategy('file_system')",
        r"Too many open files",
        r"received 0 items of ancdata",
    ),
    _cause(
        "processes",
        "no more threads or processes may be started ('ulimit -u', or the container's pids limit)",
        "Raise it, or set OMP_NUM_THREADS and dataloader_num_workers lower",
        r"Resource temporarily unavailable",
        r"can't start new thread",
        r"pthread_create failed",
    ),
    _cause(
        "locked-memory",
        "memory cannot be locked for InfiniBand ('ulimit -l')",
        "Set it to unlimited: ulimit -l unlimited, or --ulimit memlock=-1 of the container",
        r"ibv_reg_mr\w{0,10} failed",
        r"ibv_create_cq failed",
        r"Call to ibv_\w{1,30} failed with error Cannot allocate",
    ),
    # Network and launch.
    _cause(
        "port-in-use",
        "the port at which the ranks meet is taken",
        "Choose another one: --master_port 29511 (deepspeed, torchrun), --main_process_port (accelerate); "
        "'ss -ltnp' says who has it",
        r"EADDRINUSE",
        r"Address already in use",
        r"port is taken",
    ),
    _cause(
        "no-script",
        "Python cannot open the script: {what}",
        "Mend its path: it counts from the folder of the start, on every machine",
        r"can't open file '(?P<what>[^'\n]{1,300})'",
    ),
    _cause(
        "ssh",
        "ssh does not let the first machine into another one: {what}",
        "Try 'ssh -o BatchMode=yes HOST true' from the first machine; set up a key, or start without ssh",
        r"Permission denied \([\w,-]{1,80}\)",
        r"Host key verification failed",
        r"host=\S{1,100} was not reachable via ssh",  # DeepSpeed's launcher
        r"Could not resolve hostname [^\n:]{1,100}",
        r"ssh: connect to host [^\n]{1,120}",
    ),
    _cause(
        "no-pdsh",
        "DeepSpeed's launcher needs pdsh on the first machine",
        "apt install pdsh, or --launcher openmpi, or torchrun on each machine",
        r"launcher 'pdsh' not installed",
        r"pdsh: (?:command )?not found",
    ),
    _cause(
        "other-ranks",
        "the checkpoint is divided among {saved} ranks, and this run has {ranks}",
        "'zerokit checkpoint reshard PATH --num-gpus N -o DIR' divides it anew, as 'zerokit train' does",
        r"The checkpoint being loaded used a DP world size of (?P<saved>\d{1,7}) but the current world size "
        r"is (?P<ranks>\d{1,7})",
    ),
    _cause(
        "no-launcher",
        "it was started without a launcher, and DeepSpeed then asks MPI for its rank",
        "Start it by deepspeed, torchrun or accelerate launch",
        r"No module named 'mpi4py'",
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected",
    ),
    _cause(
        "interface",
        "NCCL or gloo found no network interface by which the machines reach each other",
        "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the one that 'ip route get OTHER_HOST' names",
        r"Bootstrap : no socket interface found",
        r"No interface found",
        r"unable to find interface for",
        r"Unable to resolve hostname to a \(local\) address",
    ),
    _cause(
        "desync",
        "the ranks came to different collectives: {what}",
        RUNS_ALONE,
        r"ismatch between collectives[^\n]{0,60}",
        r"Mismatched collective[^\n]{0,60}",
        r"Received data size doesn't match expected size",  # gloo
    ),
    # DeepSpeed, transformers.
    _cause(
        "extension",
        "an extension cannot be compiled: {what}",
        "Mend what the compiler names: a missing header is a missing -dev package; CUDA_HOME and c++ must "
        "suit torch: see zerokit doctor",
        r"fatal error: [^\n]{1,200}",
        r"unsupported GNU version![^\n]{0,100}",
        r"cannot find -l[\w.-]{1,40}",
        r"Ninja is required to load C\+\+ extensions",
        r"CUDA_HOME does not exist",
        r"No such file or directory: '(?:c\+\+|g\+\+|gcc|clang\+\+)'",
        r"Command '\['which', '[^'\n]{1,100}'\]' returned non-zero",
        r"Command '\['[^'\n]{1,200}', '--version'\]' returned non-zero",
        r"CUDA_HOME environment variable is not set",
        r"Installed CUDA version [\d.]+ does not match[^\n]{0,120}",
    ),
    _cause(
        "extension",
        "an extension could not be compiled: {what}",
        "The compiler's first error stands above; 'zerokit doctor' looks at what it needs",
        r"Error building extension '\w{1,60}'",
        r"object has no attribute 'ds_opt_\w{1,20}'",
    ),
    _cause(
        "partitioned-parameter",
        "a parameter was used while ZeRO-3 had it in parts on all ranks, where its shape is [0]",
        _PARTITIONED,
        r"'weight' must be 2-D",
        r"mat2 must be a matrix, got 1-D tensor",
        r"The size of tensor a \(0\)",
        r"hape \[?0\]? is invalid",
        r"torch\.Size\(\[0\]\)",
        r"'status': 'NOT_AVAILABLE'",
        r"ZeroParamStatus\.NOT_AVAILABLE",
    ),
    _cause(
        "trace-changed",
        "ZeRO-3 saw the modules in another order than in the step before, or not on all ranks",
        "Declare modules that choose (mixture of experts) as leaves: deepspeed.utils.set_z3_leaf_modules, or "
        "zero_optimization.leaf_module",
        r"tracing error at step",
        r"still have inflight params",
        r"not all parameters were reset",
    ),
    _cause(
        "gradient-twice",
        "a parameter's gradient came twice in one backward pass",
        "Checkpoint activations with use_reentrant=False, and call a shared module once per backward",
        r"has already been reduced",
    ),
    _cause(
        "loss-scale",
        "fp16 overflowed at the smallest loss scale: the gradients are not finite",
        "Train in bf16 (bf16.enabled): models that were trained in it do not fit fp16; or a "
        "smaller learning rate",
        r"loss scale already at minimum",
    ),
    _cause(
        "no-gradient",
        "the loss depends on no parameter that is trained",
        "With PEFT and gradient checkpointing: model.enable_input_require_grads(), or use_reentrant=False",
        r"does not require grad and does not have a grad_fn",
    ),
    _cause(
        "batch-sizes",
        "train_batch_size is not micro batch x accumulation steps x ranks",
        'Leave train_batch_size out, or "auto" with transformers; zerokit check --num-gpus N names them',
        r"Check batch related parameters",
    ),
    _cause(
        "nvme-buffer",
        "offload_param.buffer_size holds {buffer} elements, and the largest parameter has {elements}",
        "Set zero_optimization.offload_param.buffer_size above it",
        r"More elements (?P<elements>[\d,]+) than buffer size (?P<buffer>[\d,]+)",
    ),
    _cause(
        "no-sync",
        "no_sync() was entered with ZeRO-2 or ZeRO-3, which reduce gradients in every backward pass",
        "Have the engine accumulate: gradient_accumulation_steps in the ds_config",
        r"no_?sync context manager is incompatible",
    ),
    _cause(
        "evaluate-only",
        "the engine was made without an optimizer, which ZeRO-1 and ZeRO-2 need",
        "Evaluate after training, at stage 3, or without DeepSpeed",
        r"zero stage \d requires an optimizer",
        r"only makes sense with ZeRO Stage 3",
    ),
    _cause(
        "device-map",
        "device_map and low_cpu_mem_usage do not go with ZeRO-3",
        "Leave both out of from_pretrained",
        r"Zero-3 is not compatible with [^\n]{0,40}low_cpu_mem_usage",
    ),
    _cause(
        ZEROKIT,
        "{what}",
        "",
        r"zerokit: error: (?!rank \d+: has (?:lost|waited))(?P<what>[^\n]{1,500})",
    ),
    # What a launcher saw.
    _cause(
        EXIT_CODE,
        "{code}",
        "",
        r"return code = (?P<code>-?\d{1,3})\b",
        r"exitcode\s*: (?P<code>-?\d{1,3})\b",
        r"died with <Signals\.(?P<code>SIG[A-Z]+)",
        r"Exit Code:\s+(?P<code>\d{1,3})\b",
        r"Exited with exit code (?P<code>\d{1,3})\b",
        weight=Weight.EXIT,
    ),
    _cause(
        EXIT_CODE,
        "-{signal}",  # which torchrun itself got
        "",
        r"SignalException: Process \d{1,10} got signal: (?P<signal>\d{1,2})\b",
        weight=Weight.KILLED,
    ),
    _cause(
        EXIT_CODE,
        "SIGKILL",
        "",
        r": Killed\s",
        r" Killed {2,}\S",
        r"(?<=\n)Killed(?=\n)",
        weight=Weight.EXIT,
    ),
    _cause(
        EXIT_CODE,
        "SIGTERM",  # of the launcher, which its shell has seen
        "",
        r" Terminated {2,}\S",
        r"(?<=\n)Terminated(?=\n)",
        weight=Weight.KILLED,
    ),
    _cause(
        EXIT_CODE,
        "SIGINT",
        "",
        r"KeyboardInterrupt(?=\n)",
        weight=Weight.LEFT,
    ),
    _cause(
        EXIT_CODE,
        "SIGSEGV",
        "",
        r"Segmentation fault",
        weight=Weight.EXIT,
    ),
    # What is seen where another rank has failed.
    _cause(
        NCCL_TIMEOUT,
        "ranks waited in a collective for others that did not come",
        "",  # depends on who waited where: see zerokit.exits.nccl
        r"Watchdog caught collective operation timeout",
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        GLOO_TIMEOUT,  # more, where ranks are named: see zerokit.exits.gloo
        "a rank waited in a collective for another one that did not come",
        f"Look at what the others said first. If they still ran: {STILL_RAN}",
        r"Timed out waiting \d{1,12}ms for (?:recv|send) operation",  # gloo
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        GLOO_TIMEOUT,
        "ranks that did not come to a barrier: {who}",
        f"Look at what they said first. If they still ran: {STILL_RAN}",
        r"anks? (?P<who>\d[\d, ]{0,200}) failed to pass monitoredBarrier",
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        "lost-rank",
        "a rank lost the connection to another one, which says nothing of why it ended",
        "Look at that rank's own log and at 'dmesg -T' of its machine: one that ended without a word was "
        "killed, mostly because host memory ran out, or crashed in native code",
        r"remote process exited or there was a network error",
        r"Connection closed by peer",
        r"Connection reset by peer",
        r"Broken pipe",
        r"ncclRemoteError",
        r"zerokit: error: rank \d+: has (?:lost|waited)",
        r"DistBackendError",
        r"Socket Timeout",
        r"recvValue failed",
        r"TCPStore[^\n]{0,80}(?:fail|error|timeout)",
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        "no-meeting",
        "a rank could not reach rank 0 at {where}",
        "See that rank 0 runs there, that --master_addr is its address on the network that all share (not "
        "127.0.1.1), and that no firewall closes the port",
        r"client socket has timed out after \d+ms while trying to connect to (?P<where>\([^)]{1,120}\))",
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        "no-meeting",
        "only {came} of {all} processes came to where they were to meet",
        "See that it is started on every machine, with the same --nnodes and a --node-rank of its own, and "
        "that --master_addr is reached from each",
        r"(?P<came>\d{1,7})/(?P<all>\d{1,7}) clients joined",
        weight=Weight.CONSEQUENCE,
    ),
    _cause(
        "nccl",
        "NCCL failed: {what}",
        "Run again with NCCL_DEBUG=WARN, which names the call; then explain that log",
        r"unhandled (?:system|cuda) error",
        r"ncclInternalError",
        r"ncclSystemError",
        r"ncclUnhandledCudaError",
        weight=Weight.CONSEQUENCE,
    ),
)
"""The table, of which a line means the first entry that suits it."""
