"""Messages of zerokit itself, and of launchers about a process that has ended."""

from __future__ import annotations

from zerokit.exits.causes.entry import EXIT_CODE, ZEROKIT, Cause, Weight, cause

ENDED: tuple[Cause, ...] = (
    cause(
        "rehearsal",
        "the script that zerokit rehearsed failed",
        "Read what it printed above",  # its error, of which this line only says that it came
        r"zerokit: error: [^\n]{1,400}?: the script fails (?:before its first|after [\d,]{1,12}) "
        r"optimizer step",
        weight=Weight.EXIT,
    ),
    cause(
        ZEROKIT,
        "{what}",
        "",
        r"zerokit: error: (?!rank \d+: has (?:lost|waited))(?P<what>[^\n]{1,500})",
    ),
    cause(
        EXIT_CODE,
        "{code}",
        "",
        r"return code = (?P<code>-?\d{1,3})\b",
        r"exitcode\s*: (?P<code>-?\d{1,3})\b",
        r"died with <Signals\.(?P<code>SIG[A-Z]+)",
        r"Exit Code:\s+(?P<code>\d{1,3})\b",
        r"Exited with exit code (?P<code>\d{1,3})\b",
        r"ssh exited with exit code (?P<code>\d{1,3})\b",
        r"terminated with signal (?P<code>SIG[A-Z]{1,8})",
        r"terminated with exit code (?P<code>\d{1,3})\b",
        weight=Weight.EXIT,
    ),
    cause(
        EXIT_CODE,
        "-{signal}",  # which torchrun itself got
        "",
        r"SignalException: Process \d{1,10} got signal: (?P<signal>\d{1,2})\b",
        r"Received (?P<signal>\d{1,2}) death signal",
        weight=Weight.KILLED,
    ),
    cause(
        EXIT_CODE,
        "SIGKILL",
        "",
        r": Killed\s",
        r" Killed {2,}\S",
        r"(?<=\n)Killed(?=\n)",
        weight=Weight.EXIT,
    ),
    cause(
        EXIT_CODE,
        "SIGTERM",  # of the launcher, which its shell has seen
        "",
        r" Terminated {2,}\S",
        r"(?<=\n)Terminated(?=\n)",
        weight=Weight.KILLED,
    ),
    cause(
        EXIT_CODE,
        "SIGHUP",  # torchrun itself ends ranks by SIGTERM
        "",
        r"closing signal SIGHUP",
        weight=Weight.KILLED,
    ),
    cause(
        EXIT_CODE,
        "SIGINT",
        "",
        r"KeyboardInterrupt(?=\n)",
        weight=Weight.LEFT,
    ),
    cause(
        EXIT_CODE,
        "SIGABRT",
        "",
        r" Aborted {2,}\S",
        r"Aborted \(core dumped\)",
        weight=Weight.EXIT,
    ),
    cause(
        "native-code",
        "Rust code failed, such as that of tokenizers or safetensors: {what}",
        "RUST_BACKTRACE=1 shows where; usually a file is missing or has another version, or the data "
        "are unexpected",
        r"panicked at '(?P<what>[^\n]{1,300}?)', ",
        r"panicked at [^'\n]{1,200}:\d{1,6}:\d{1,6}:\s{0,4}\n(?P<what>[^\n]{1,300})",
        weight=Weight.EXCEPTION,
    ),
    cause(
        "native-code",
        "C++ code failed: {what}",
        "Run with PYTHONFAULTHANDLER=1, which shows the Python line; then update the package of that code",
        r"terminate called after throwing an instance of '[^'\n]{1,80}'\s{0,4}\n[^\n]{0,100}?what\(\): {1,2}"
        r"(?![^\n]{0,300}(?:NCCL|Watchdog|[Tt]imed? ?out|Connection))(?P<what>[^\n]{1,200})",
        weight=Weight.KILLED,
    ),
    cause(
        "native-code",
        "C++ code failed while the process ended: {what}",
        "If training had finished, what was saved is complete ('zerokit checkpoint verify'). End "
        "threads and profilers, and call torch.distributed.destroy_process_group(), before the "
        "script's end",
        r"pure virtual method called",
        r"terminate called without an active exception",
        weight=Weight.KILLED,
    ),
    cause(
        EXIT_CODE,
        "SIGSEGV",
        "",
        r"Segmentation fault",
        weight=Weight.EXIT,
    ),
)
