"""The report of a run, ``run.json``, and names of other files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zerokit.documents import replace_nonfinite
from zerokit.errors import ZerokitError
from zerokit.files import write_file

REPORT_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"


def git_commit() -> str | None:
    """The commit of the current folder, with ``-dirty`` if tracked files differ; None outside of a
    repository.

    The folder may be an unpacked archive whose git config names programs: git runs none of them here.
    """
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    return f"{commit}-dirty" if commit and _has_changes(commit) else commit or None


def _has_changes(commit: str) -> bool:
    """Whether tracked files differ from `commit`.

    git would run filters, file monitors and submodule commands of the repository's config. So the comparison
    runs in a scratch repository with its own config, which borrows objects and index.
    """
    top = _git("rev-parse", "--show-toplevel")
    objects, index = (_git("rev-parse", "--git-path", name) for name in ("objects", "index"))
    if not top or not objects or not index or not _is_index(Path(index)):
        return False
    # -z: a value may have a line break, and what follows it would be read as another key.
    settings = _git("config", "-z", "--get-regexp", rf"^core\.({'|'.join(_COMPARISON_SETTINGS)})$") or ""
    entries = [entry.replace("\n", "=", 1) for entry in settings.split("\0") if entry]
    options = [option for entry in entries for option in ("-c", entry)]
    with suppress(OSError, ZerokitError), tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in ("refs", "objects"):
            (scratch / name).mkdir()
        write_file(scratch / "HEAD", f"{commit}\n")
        write_file(scratch / "config", _SCRATCH_CONFIG[len(commit)])
        shutil.copyfile(index, scratch / "index")
        for shared in Path(index).absolute().parent.glob("sharedindex.*"):  # of a split index
            (scratch / shared.name).symlink_to(shared)
        environment = {name: value for name, value in os.environ.items() if name not in _GIT_VARIABLES}
        environment |= {"GIT_DIR": folder, "GIT_WORK_TREE": top}
        environment |= {"GIT_OBJECT_DIRECTORY": str(Path(objects).absolute())}
        refresh = ("update-index", "-q", "--refresh", "--ignore-submodules")
        _git(*options, *refresh, cwd=top, environment=environment)
        compare = ("diff-index", "--name-only", "--no-ext-diff", "--ignore-submodules=dirty", commit, "--")
        return bool(_git(*options, *compare, cwd=top, environment=environment))
    return False  # the disk is full


def _is_index(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MOST_INDEX_BYTES


_MOST_INDEX_BYTES = 1 << 30
"""Size of the index of a repository with five million files."""
_COMPARISON_SETTINGS = ("filemode", "symlinks", "ignorecase", "autocrlf", "eol", "trustctime", "checkstat")
"""Keys of git's section ``core`` that decide how files are compared. None of them names a program."""
_SCRATCH_CONFIG = {
    40: "[core]\nrepositoryformatversion = 0\n",
    64: "[core]\nrepositoryformatversion = 1\n[extensions]\nobjectformat = sha256\n",
}
"""Config of a repository by the length of its commit ids."""
_GIT_VARIABLES = frozenset(
    ("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_PREFIX")
)
"""Variables by which a caller, such as a git hook, points git to its own repository."""


def _git(*words: str, cwd: str | None = None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The output of a git command, without the line end; None if it fails or there is no git."""
    quiet = ("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
    command = ["git", *quiet, *words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            timeout=30,  # a disk may hang
            cwd=cwd,
            env={**environment, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(done.stdout).removesuffix("\n")


@dataclass(frozen=True)
class RunReport:
    run_id: str
    """Id of the run, which a resumed run keeps; also in its checkpoints."""
    zerokit_version: str
    versions: dict[str, str]
    """Versions of :data:`zerokit.extras.PACKAGES` when the run began."""
    git_commit: str | None
    """Commit of the working directory when the run began; with ``-dirty`` if files differed."""
    seed: int
    data_seed: int
    """Seed of the order of the examples."""
    num_parameters: int
    num_trainable_parameters: int
    zero_stage: int
    world_size: int
    parallel: dict[str, int]
    """Ranks that read different examples (`data`), that share each sequence (`sequence`) and each layer (`tensor`)."""
    precision: str
    device: str
    num_train_examples: int | None
    """None of streamed data."""
    num_eval_examples: int
    steps: int
    resumed_from_step: int
    """0 for a new run. Seconds, speed, `train_loss` and peak are of the steps after it."""
    train_seconds: float
    tokens: int
    """Tokens trained on, without padding, over all ranks and all steps."""
    tokens_per_second: float
    """Over all ranks, from the first step (after a resume) to the last, evaluation included."""
    step_seconds: float | None
    """The median, without evaluations and checkpoints; None where nothing was left to train."""
    mfu: float | None
    """Model FLOPs utilization in these steps (:mod:`zerokit.training.throughput`); None if unknown."""
    loss_before: float | None
    """Mean held-out loss per token (or example) before the first step; None without held-out data."""
    loss_after: float | None
    metrics_before: dict[str, float]
    """Metrics on held-out data before the first step, such as ``accuracy``; empty without held-out data."""
    metrics_after: dict[str, float]
    train_loss: float | None
    """None where nothing was left to train."""
    model_states_bytes: int | None
    """Expected on each rank's device, without offloaded states; None for an unknown optimizer."""
    expected_peak_bytes: int | None
    """On the fullest rank's GPU, as it was estimated before the first step; None where it was not."""
    peak_memory_bytes: int
    """Largest measured peak of any rank: allocated bytes on a GPU, growth of the process on CPU."""
    padding: dict[str, float] | None
    """Padding: `share`, `share_if_padded` (with one row per document), `examples_per_step` (documents).

    None if batches are padded in their order; for a stream, of the first buffer.
    """
    recipe: dict[str, Any]
    ds_config: dict[str, Any]
    files: list[str] = field(default_factory=list)
    """Names of all files of the model."""

    def write(self, output_dir: Path) -> Path:
        """Write ``run.json`` into `output_dir`, whole or not at all."""
        file = output_dir / REPORT_FILE
        text = json.dumps(replace_nonfinite(asdict(self)), indent=2, default=str, allow_nan=False)
        write_file(file, text + "\n")
        return file
