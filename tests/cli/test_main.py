import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.main import get_command

from tests import processes
from tests.cli.conftest import refused
from zerokit import __version__
from zerokit.cli.main import command_line

Run = Callable[..., tuple[int, str, str]]
RunProcess = Callable[..., subprocess.CompletedProcess[str]]


def test_version_and_help_without_a_command(zerokit: Run) -> None:
    assert zerokit("--version") == (0, f"zerokit {__version__}\n", "")
    code, out, _ = zerokit()
    assert code == 0
    assert all(command in out for command in ("config", "check", "schema"))


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [(("estimate", "--model", "x"), "--model", "MODEL"), (("check", "--files=x"), "--files", "FILE")],
)
def test_an_argument_written_as_an_option_is_told_from_an_unknown_one(
    zerokit: Run, words: tuple[str, ...], name: str, value: str
) -> None:
    assert f"{name} is no option here: write {value} by itself, as in zerokit {words[0]} {value}" in refused(
        zerokit, *words
    )


def commands(group: Any = None) -> Iterator[Any]:
    """Those of groups, too."""
    for one in (get_command(command_line()) if group is None else group).commands.values():
        yield from commands(one) if hasattr(one, "commands") else [one]


def test_names_of_options_are_taken_with_underscores() -> None:
    taken = []
    for command in commands():
        context = command.make_context(command.name, [], resilient_parsing=True)
        for option in command.params:
            for name in (*option.opts, *option.secondary_opts):
                written = "--" + name.removeprefix("--").replace("-", "_")
                if name.startswith("--"):
                    words = [written] if option.is_flag else [written, *["1"] * option.nargs]
                    given, *_ = command.make_parser(context).parse_args(words)
                    assert option.name in given
                    taken.append(written)
    assert {"--num_gpus", "--no_verify", "--ds_config", "--local_rank"} <= {*taken}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "No such command 'chek'"),
        (["config"], "--zero-stage"),
        (["config", "--zero-stage", "7"], "--zero-stage"),
        (["config", "--zero-stage", "two"], "--zero-stage"),
        (["config", "--zero-stage", "2", "--precision", "int8"], "--precision"),
        (["config", "--zero-stage", "2", "--micro-batch-size", "0"], "--micro-batch-size"),
        (["config", "--zero-stage", "2", "--nope"], "--nope"),
        (["config", "--zero-stage", "2", "--offload-param", "cpu"], "needs ZeRO stage 3"),
        (["config", "--zero-stage", "3", "--offload-param", "nvme"], "--nvme-path"),
        (["config", "--zero-stage", "2", "--target", "deepspeed", "--precision", "auto"], "precision"),
        (["check"], "FILE"),
        (["rehearse", "x.py", "--num_gpus", "2"], "--num_gpus stands after SCRIPT"),
        (["estimate", "gpt2", "--attention", "flash_attention"], "'flash_attention_2'"),
        (["check", "absent.json"], "absent.json: no such file"),
        (["check", "a.txt"], "no such file"),
        (["schema", "extra"], "extra"),
        (["check", "zero3"], "zero3: no such file. To write that preset: zerokit config --preset zero3 -o zero3"),
        (["diff", "configs/zero2.json", "b"], "zerokit config --preset zero2 -o zero2.json"),
        (["diff", "a", "b"], "a: no such file. Check the path"),
        (["config", "--zero-stage"], "'--zero-stage' requires an argument. Run 'zerokit config --help'"),
        (["config", "--explain=1"], "Run 'zerokit config --help'"),
        (["diff"], "Missing argument 'A', argument 'B'. Run 'zerokit diff --help'"),
        (["resolve"], "Missing argument 'FILE'. Give it, or name a recipe with --recipe."),
        (["generate", "--do_sample"], "Missing option '--model', option '--prompts'. Run 'zerokit generate"),
        (["generate", "--modle", "m", "--prompt", "a"], "--modle: unknown option. Did you mean '--model'?"),
        (["generate", "--max_new_tokens", "4", "--prompt", "a"], "Missing option '--model'"),
        (["rehearse"], "Missing option '--num-gpus', argument 'SCRIPT'. Run 'zerokit rehearse --help'"),
        (
            ["estimate"],
            "Missing argument 'MODEL', option '--num-gpus', option '--seq-len', option '--zero-stage'. For ",
        ),
        (["estimate", "7B", "--precision", "bf16"], "Missing option '--num-gpus', option '--zero-stage'. For "),
    ],
)
def test_unusable_input_is_one_line_and_exit_code_2(zerokit: Run, arguments: list[str], message: str) -> None:
    assert message in refused(zerokit, *arguments)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("estim", {"estimate"}),
        ("resolve --target a", {"accelerate"}),
        ("check --disab", {"--disable"}),
        ("train --stuck", {"--stuck-after"}),
    ],
)
def test_a_shell_completes_commands_options_and_closed_lists(
    typed: str, offered: set[str], zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ZEROKIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"zerokit {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    code, out, err = zerokit()
    assert (code, set(out.split()), err) == (0, offered, "")


def test_a_closed_pipe_is_no_traceback() -> None:
    script = "from zerokit.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", script, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize(
    ("redirection", "variables", "code", "said"),
    [
        (">/dev/full", {}, 2, "stdout: nothing more can be written: No space left on device"),
        (">&-", {}, 0, ""),
        (">/dev/null", {"PYTHONIOENCODING": "ascii"}, 0, ""),
    ],
    ids=["full", "closed", "ascii"],
)
def test_every_stream_is_written_to(redirection: str, variables: dict[str, str], code: int, said: str) -> None:
    words = "explain zero_optimization.stage"
    shell = f'{sys.executable} -c "from zerokit.cli.main import main; main()" {words} {redirection}'
    done = processes.run(["sh", "-c", shell], env={**os.environ, **variables})
    assert (done.returncode, done.stderr) == (code, said and f"zerokit: error: {said}\n")


def test_a_bug_of_zerokit_shows_its_traceback(zerokit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import zerokit.config.schema as schema_module

    def broken() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(schema_module, "json_schema", broken)
    monkeypatch.setattr(sys, "argv", ["zerokit", "schema"])
    from zerokit.cli.main import main

    with pytest.raises(KeyError):
        main()


LONG = "a" * 300


@pytest.mark.parametrize(
    "command",
    [
        ["check", LONG],
        ["check", f"{LONG}.json"],
        ["diff", f"{LONG}.json", LONG],
        ["resolve", f"{LONG}.json", "--num-gpus", 8],
        ["resolve", LONG, "--num-gpus", 8],
        ["config", "--zero-stage", 2, "-o", f"{LONG}.json"],
        ["schema", "-o", LONG],
        ["estimate", LONG, "--num-gpus", 8],
        ["estimate", "7B", "--num-gpus", 8, "--ds-config", LONG],
        ["estimate", "7B", "--num-gpus", 8, "--recipe", LONG],
    ],
    ids=lambda command: " ".join(map(str, command)).replace(LONG, "LONG"),
)
def test_a_name_that_no_file_system_takes_is_one_line(zerokit: Run, command: list[object]) -> None:
    refused(zerokit, *command)
