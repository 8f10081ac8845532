"""Messages of the kernel, Slurm, Kubernetes, Ray or a cloud that ends a run."""

from __future__ import annotations

from zerokit.exits.causes.entry import HOST_MEMORY, REASON, TIME_LIMIT, Cause, Weight, cause

SCHEDULERS: tuple[Cause, ...] = (
    cause(
        "host-memory",
        "the kernel killed the process because host memory ran out",
        HOST_MEMORY,
        r"Out of memory: Kill(?:ed)? process",
        r"emory cgroup out of memory",
        r"oom-kill:constraint",
        r"oom_reaper: ",
        weight=Weight.ENDED,
    ),
    cause(
        "host-memory",
        "Slurm killed the job because it used more host memory than it requested",
        "Ask for more by --mem or --mem-per-cpu; " + HOST_MEMORY[0].lower() + HOST_MEMORY[1:],
        r"oom[-_]kill event\S{0,3} in [Ss]tep",
        r"Exceeded job memory limit",
        r"slurmstepd: error: [^\n]{0,200}exceeded (?:\w{1,10} )?memory limit",
        r"task \d+: Out Of Memory",
        weight=Weight.ENDED,
    ),
    cause(
        "host-memory",
        "Kubernetes killed the container because it used more host memory than its limit",
        "Raise resources.limits.memory (an emptyDir in memory at /dev/shm counts, too); " + HOST_MEMORY,
        REASON + "OOMKilled",
        r"OOMKilled\s{1,20}\d",
        r"Warning\s{1,20}OOMKilling",
        weight=Weight.ENDED,
    ),
    cause(
        "host-memory",
        "Ray killed a worker because its machine ran low on host memory",
        HOST_MEMORY + "; Ray's own limit is RAY_memory_usage_threshold",
        r"Task was killed due to the node running low on memory",
        r"killed due to memory pressure \(OOM\)",
        weight=Weight.ENDED,
    ),
    cause(
        TIME_LIMIT,
        "Slurm ended the job at its time limit",
        "Request more with --time, and resume from the last checkpoint (training.resume_from_checkpoint)",
        r"DUE TO TIME LIMIT",
        r"slurmstepd: error: [^\n]{0,200}TIMEOUT",
        weight=Weight.ENDED,
    ),
    cause(
        TIME_LIMIT,
        "Kubernetes ended the job at its time limit (activeDeadlineSeconds)",
        "Raise it, and resume from the last checkpoint",
        REASON + "DeadlineExceeded",
        r"Warning\s{1,20}DeadlineExceeded",
        weight=Weight.ENDED,
    ),
    cause(
        "preempted",
        "the scheduler preempted the job",
        "Submit it again and resume from the last checkpoint; save more often, or request machines "
        "that are not preempted",
        r"DUE TO PREEMPTION",
        REASON + "Preempt(?:ed|ing|ionByScheduler)",
        r"Warning\s{1,20}Preempt(?:ed|ing)",
        r"Normal\s{1,20}Preempt(?:ed|ing)",
        r"instance was preempted",
        r"instance has been preempted",
        r"Spot instance interruption notice",
        weight=Weight.ENDED,
    ),
    cause(
        "preempted",
        "the run was asked to stop, and saved a checkpoint first",
        "Resume from it: --training.resume_from_checkpoint true",
        r"zerokit: preempted after step \d",
        weight=Weight.ENDED,
    ),
    cause(
        "evicted",
        "Kubernetes evicted the pod because its node ran low on {what}",
        "Set what it needs in resources.requests (memory, ephemeral-storage), and write to a volume",
        r"The node was low on resource: (?P<what>[\w-]{1,40})",
        weight=Weight.ENDED,
    ),
    cause(
        "node-failed",
        "a machine of the job failed",
        "Submit it again without that machine (sbatch --exclude), and resume from the last checkpoint",
        r"DUE TO NODE FAILURE",
        r"error: Node failure on ",
        REASON + "NodeLost",
        REASON + "NodeNotReady",
        r"Warning\s{1,20}NodeNotReady",
        weight=Weight.ENDED,
    ),
    cause(
        "cancelled",
        "the job was cancelled",
        "See who did: sacct -j JOB -o State,User",
        r"JOB [\d.]+ ON \S{1,200} CANCELLED AT(?![^\n]{0,200}DUE TO)",
        r"STEP [\d.]+ ON \S{1,200} CANCELLED AT(?![^\n]{0,200}DUE TO)",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "no-room-in-cluster",
        "no node of the cluster has the resources that the pod requests: {what}",
        "Request fewer GPUs per node, or what 'kubectl describe nodes' lists as allocatable",
        r"/\d{1,6} nodes are available: (?P<what>[^\n]{1,200})",
    ),
    cause(
        "no-image",
        "the container's image cannot be pulled",
        "Check its name and imagePullSecrets: kubectl describe pod POD",
        r"ErrImagePull",
        r"ImagePullBackOff",
        r"manifest unknown",
    ),
    cause(
        "ray-worker",
        "a Ray worker ended without a message: usually killed because host memory ran out, or "
        "crashed in native code",
        "Look at 'dmesg -T' of its machine, and at what it said: /tmp/ray/session_latest/logs/worker-*; "
        + HOST_MEMORY[0].lower()
        + HOST_MEMORY[1:],
        r"Worker unexpectedly exits with a connection error code",
        r"Worker exit type: SYSTEM_ERROR",
        r"actor died unexpectedly before finishing this task",
        weight=Weight.KILLED,
    ),
    cause(
        "node-failed",
        "a machine of Ray's cluster is gone",
        "Check whether that machine still runs ('ray status'), and resume from the last checkpoint",
        r"actor (?:died|is dead) because its node has died",
        weight=Weight.KILLED,
    ),
    cause(
        "no-room-in-cluster",
        "Slurm cannot allocate what the job requests: {what}",
        "Compare --gres, --ntasks-per-node, --cpus-per-task and --mem with 'scontrol show partition' and "
        "'sinfo'",
        # Others are about a job that has ended, or a server that does not answer.
        r"srun: error: Unable to (?:create step|allocate resources)[^\n:]{0,80}: "
        r"(?!Job/step already|Socket timed out|Unable to contact)(?P<what>[^\n]{1,120})",
        r"sbatch: error: Batch job submission failed: (?!Socket timed out|Unable to contact)"
        r"(?P<what>[^\n]{1,120})",
    ),
    cause(
        "node-failed",
        "Slurm could not start the job on a machine: {what}",
        "Exclude that machine (sbatch --exclude) and report it; an expired credential means that its "
        "clock is off: 'zerokit doctor --hostfile FILE' compares clocks",
        r"srun: error: Task launch for [^\n]{1,60} failed on (?P<what>node [^\n]{1,160})",
    ),
)
