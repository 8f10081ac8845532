"""Many mistakes of one command, all made by one launch of two ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.tiny import launch

_MAIN = """
import json
from pathlib import Path
from zerokit.distributed.group import leave, run_on_all_ranks
from zerokit.errors import ZerokitError

def main(group):
    for words in json.loads(Path("mistakes.json").read_text()):
        try:
            run(group, words)
            said = "nothing"
        except ZerokitError as error:
            said = f"{error.exit_code} {error}"
        everyone = group.gather_objects(said)
        if group.ranks.is_main:
            print("SAID", json.dumps(everyone))

leave(run_on_all_ranks(main))
"""


def both_ranks_say(mistakes: Mapping[str, Sequence[str]], run: str, folder: Path) -> None:
    """Make each mistake, and see that both ranks raise one error for it, of one line and with exit code 2.

    Args:
        mistakes: the command's words, by how the error begins that they lead to.
        run: Python that defines ``run(group, words)``.
        folder: where it runs.
    """
    (folder / "script.py").write_text(run + _MAIN, encoding="utf-8")
    (folder / "mistakes.json").write_text(json.dumps(list(mistakes.values())), encoding="utf-8")
    done = launch(["script.py"], ranks=2, launcher="none", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line.removeprefix("SAID ")) for line in done.stdout.splitlines() if "SAID " in line]
    assert len(said) == len(mistakes)
    for message, (first, second) in zip(mistakes, said, strict=True):
        assert first == second, (first, second)
        assert first.startswith(f"2 {message}"), first
        assert "\n" not in first
