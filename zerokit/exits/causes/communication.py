"""Messages of ranks that cannot reach each other, or wait for a missing rank."""

from __future__ import annotations

from zerokit.exits.causes.entry import GLOO_TIMEOUT, NCCL_TIMEOUT, RUNS_ALONE, STILL_RAN, Cause, Weight, cause

COMMUNICATION: tuple[Cause, ...] = (
    cause(
        "interface",
        "NCCL or gloo found no network interface that connects the machines",
        "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the one that 'ip route get OTHER_HOST' names",
        r"Bootstrap : no socket interface found",
        r"No interface found",
        r"unable to find interface for",
        r"Unable to resolve hostname to a \(local\) address",
    ),
    cause(
        "desync",
        "the ranks called different collectives: {what}",
        RUNS_ALONE,
        r"ismatch between collectives[^\n]{0,60}",
        r"Mismatched collective[^\n]{0,60}",
        r"Received data size doesn't match expected size",  # gloo
    ),
    cause(
        NCCL_TIMEOUT,
        "ranks waited in a collective for ranks that did not reach it",
        "",  # depends on who waited where: see zerokit.exits.nccl
        r"Watchdog caught collective operation timeout",
        r"Timeout at NCCL work: ",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        GLOO_TIMEOUT,  # more, where ranks are named: see zerokit.exits.gloo
        "a rank waited in a collective for a rank that did not reach it",
        f"See what the others printed first. If they still ran: {STILL_RAN}",
        r"Timed out waiting \d{1,12}ms for (?:recv|send) operation",  # gloo
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        GLOO_TIMEOUT,
        "ranks that did not reach a barrier: {who}",
        f"See what they printed first. If they still ran: {STILL_RAN}",
        r"anks? (?P<who>\d[\d, ]{0,200}) failed to pass monitoredBarrier",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "lost-rank",
        "a rank lost the connection to another one; its log does not show why that one ended",
        "Look at that rank's own log and at 'dmesg -T' of its machine: a rank that ends without a "
        "message was killed, usually because host memory ran out, or crashed in native code",
        r"remote process exited or there was a network error",
        r"Connection closed by peer",
        r"Connection reset by peer",
        r"Broken pipe(?! \(os error)",  # of Rust's: its own output was closed
        r"ncclRemoteError",
        r"zerokit: error: rank \d+: has (?:lost|waited)",
        r"Socket Timeout",
        r"recvValue failed",
        r"TCPStore[^\n]{0,80}(?:fail|error|timeout)",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "no-meeting",
        "a rank could not reach rank 0 at {where}",
        "Check that rank 0 runs there, that --master_addr is its address on the shared network (not "
        "127.0.1.1), and that no firewall blocks the port",
        r"client socket has timed out after \d{1,9}m?s while trying to connect to "
        r"(?P<where>\([^)]{1,120}\)|[^\s.]{1,100}(?:\.[^\s.]{1,60}){0,8})",
        r"network addresses of (?P<where>\([^)]{1,120}\)) cannot be retrieved",
        r"client socket has failed to connect to any network address of (?P<where>\([^)]{1,120}\))",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "no-meeting",
        "only {came} of {all} processes reached the rendezvous",
        "Check that it is started on every machine, with the same --nnodes and its own --node-rank, "
        "and that each reaches --master_addr",
        r"(?P<came>\d{1,7})/(?P<all>\d{1,7}) clients joined",
        r"Timed out initializing process group in store based barrier on rank:? \d{1,7}, for key: "
        r"[^\n(]{1,80}"
        r"\(world_size=(?P<all>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<came>\d{1,7})",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "no-meeting",
        "the rendezvous failed or was lost: {what}",
        "Check that torchrun runs on every machine with the same --rdzv-id and --nnodes, that all "
        "machines reach --rdzv-endpoint, and what the others printed first",
        r"Rendezvous(?P<what>ConnectionError|TimeoutError|ClosedError)",
        r"connect\(\) timed out\. Original timeout was (?P<what>\d{1,9} ms)",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-stuck",
        "a thread of a rank made no progress for minutes, and NCCL's watchdog ended the rank",
        "'py-spy dump' of such a run shows what holds the interpreter (a data loader, a compiler, a "
        "save); TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC allows more time",
        r"watchdog got stuck for \d{1,9} ?seconds",
        r"Heartbeat monitor timed out!",
        r"due to ProcessGroupNCCL watchdog hang",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-link",
        "NCCL could not reach another rank: {what}",
        "If no rank failed before: set NCCL_SOCKET_IFNAME to the interface that 'ip route get "
        "OTHER_HOST' names, on every machine, and check that no firewall blocks its ports; 'zerokit "
        "doctor --hostfile FILE' checks the machines",
        r"Connect to (?P<what>\S{1,120} failed : [^\n]{1,60})",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-link",
        "NCCL's InfiniBand or RoCE link to another rank failed: {what}",
        "If no rank failed before: check 'ibstat' and 'ibdev2netdev' on both machines, NCCL_IB_HCA "
        "for the cards, NCCL_IB_GID_INDEX for RoCE; NCCL_IB_DISABLE=1 shows whether InfiniBand is "
        "the cause",
        r"Got completion from peer (?P<what>\S{1,80}(?: with [^\n(]{1,100}[^\s(])?)",
        r"Got completion with error (?P<what>[^\n]{1,80})",
        r"ibv_modify_qp failed with (?P<what>error [^\n]{1,60})",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-cuda",
        "a CUDA call of NCCL failed: {what}",
        "An earlier CUDA error is the cause. Without one, the driver or container lacks something: "
        "try NCCL_P2P_DISABLE=1, NCCL_CUMEM_ENABLE=0, NCCL_NVLS_ENABLE=0 one by one, and a newer "
        "driver",
        r"Cuda failure (?P<what>\d{1,4} '[^'\n]{1,60}')",
        r"Cuda failure '(?P<what>[^'\n]{1,60})'",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl",
        "NCCL failed: {what}",
        "Run again with NCCL_DEBUG=WARN, which names the call; then explain that log",
        r"unhandled (?:system|cuda) error",
        r"ncclInternalError",
        r"ncclSystemError",
        r"ncclUnhandledCudaError",
        r"ncclInvalidUsage",
        r"NCCL error in: [^\n]{1,300}?, (?P<what>[^,\n]{1,120}), NCCL version",
        r"NCCL error in: ",
        weight=Weight.GENERAL,
    ),
)
