"""Messages of ranks that cannot reach each other, or wait for a missing rank."""

from __future__ import annotations

from zerokit.exits.causes.entry import GLOO_TIMEOUT, NCCL_TIMEOUT, RUNS_ALONE, STILL_RAN, Cause, Weight, cause

COMMUNICATION: tuple[Cause, ...] = (
    cause(
        "interface",
        "NCCL or gloo found no network interface by which the machines reach each other",
        "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the one that 'ip route get OTHER_HOST' names",
        r"Bootstrap : no socket interface found",
        r"No interface found",
        r"unable to find interface for",
        r"Unable to resolve hostname to a \(local\) address",
    ),
    cause(
        "desync",
        "the ranks came to different collectives: {what}",
        RUNS_ALONE,
        r"ismatch between collectives[^\n]{0,60}",
        r"Mismatched collective[^\n]{0,60}",
        r"Received data size doesn't match expected size",  # gloo
    ),
    cause(
        NCCL_TIMEOUT,
        "ranks waited in a collective for others that did not come",
        "",  # depends on who waited where: see zerokit.exits.nccl
        r"Watchdog caught collective operation timeout",
        r"Timeout at NCCL work: ",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        GLOO_TIMEOUT,  # more, where ranks are named: see zerokit.exits.gloo
        "a rank waited in a collective for another one that did not come",
        f"Look at what the others said first. If they still ran: {STILL_RAN}",
        r"Timed out waiting \d{1,12}ms for (?:recv|send) operation",  # gloo
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        GLOO_TIMEOUT,
        "ranks that did not come to a barrier: {who}",
        f"Look at what they said first. If they still ran: {STILL_RAN}",
        r"anks? (?P<who>\d[\d, ]{0,200}) failed to pass monitoredBarrier",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "lost-rank",
        "a rank lost the connection to another one, which says nothing of why it ended",
        "Look at that rank's own log and at 'dmesg -T' of its machine: one that ended without a word was "
        "killed, mostly because host memory ran out, or crashed in native code",
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
        "See that rank 0 runs there, that --master_addr is its address on the network that all share (not "
        "127.0.1.1), and that no firewall closes the port",
        r"client socket has timed out after \d{1,9}m?s while trying to connect to "
        r"(?P<where>\([^)]{1,120}\)|[^\s.]{1,100}(?:\.[^\s.]{1,60}){0,8})",
        r"network addresses of (?P<where>\([^)]{1,120}\)) cannot be retrieved",
        r"client socket has failed to connect to any network address of (?P<where>\([^)]{1,120}\))",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "no-meeting",
        "only {came} of {all} processes came to where they were to meet",
        "See that it is started on every machine, with the same --nnodes and a --node-rank of its own, and "
        "that --master_addr is reached from each",
        r"(?P<came>\d{1,7})/(?P<all>\d{1,7}) clients joined",
        r"Timed out initializing process group in store based barrier on rank:? \d{1,7}, for key: "
        r"[^\n(]{1,80}"
        r"\(world_size=(?P<all>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<came>\d{1,7})",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "no-meeting",
        "the machines did not meet, or lost the one where they met: {what}",
        "See that torchrun runs on every machine, with the same --rdzv-id and --nnodes, that "
        "--rdzv-endpoint is one of them as all others reach it, and what the others said first",
        r"Rendezvous(?P<what>ConnectionError|TimeoutError|ClosedError)",
        r"connect\(\) timed out\. Original timeout was (?P<what>\d{1,9} ms)",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-stuck",
        "a thread of a rank did not come on for minutes, and NCCL's watchdog ended it",
        "'py-spy dump' of such a run shows who holds the interpreter (a data loader, a compiler, a save); "
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC allows more",
        r"watchdog got stuck for \d{1,9} ?seconds",
        r"Heartbeat monitor timed out!",
        r"due to ProcessGroupNCCL watchdog hang",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-link",
        "NCCL could not reach another rank: {what}",
        "If no rank has failed before: set NCCL_SOCKET_IFNAME to the interface that 'ip route get "
        "OTHER_HOST' names, on every machine, and see that no firewall closes its ports; 'zerokit doctor "
        "--hostfile FILE' looks",
        r"Connect to (?P<what>\S{1,120} failed : [^\n]{1,60})",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-link",
        "NCCL's InfiniBand or RoCE link to another rank failed: {what}",
        "If no rank has failed before: see 'ibstat' and 'ibdev2netdev' on both machines, NCCL_IB_HCA for "
        "the cards, NCCL_IB_GID_INDEX for RoCE; NCCL_IB_DISABLE=1 tells whether it is that",
        r"Got completion from peer (?P<what>\S{1,80}(?: with [^\n(]{1,100}[^\s(])?)",
        r"Got completion with error (?P<what>[^\n]{1,80})",
        r"ibv_modify_qp failed with (?P<what>error [^\n]{1,60})",
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "nccl-cuda",
        "a call of CUDA by NCCL failed: {what}",
        "A CUDA error further up is the cause. Else the driver or container lacks something: try "
        "NCCL_P2P_DISABLE=1, NCCL_CUMEM_ENABLE=0, NCCL_NVLS_ENABLE=0 one by one, and a newer driver",
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
