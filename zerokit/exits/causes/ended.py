"""What zerokit itself says, and what launchers see of a process that has ended."""

from __future__ import annotations

from zerokit.exits.causes.entry import EXIT_CODE, ZEROKIT, Cause, Weight, cause

ENDED: tuple[Cause, ...] = (
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
        "SIGSEGV",
        "",
        r"Segmentation fault",
        weight=Weight.EXIT,
    ),
)
