"""Each checkpoint of a run gets the checksums of its files, which a resumed run compares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from zerokit import console
from zerokit.checkpoint.checksums import (
    SUMS_FILE,
    check_checksums,
    checksums,
    files_of,
    read_checksums,
    write_checksums,
)
from zerokit.checkpoint.pickles import check_pickles
from zerokit.errors import ZerokitError

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from zerokit.distributed.group import RankGroup


class ChecksumsOnSave(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Writes ``SHA256SUMS`` into each checkpoint-N; every rank reads its share of the files."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        group = self._group
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        group.gather_objects(None)  # every rank has written its part
        names = group.broadcast_object(files_of(folder) if group.ranks.is_main else [])
        if not names:  # it could not be written
            return
        sums = group.gather_objects(group.together(lambda: checksums(folder, _share(names, group))))
        whole = {name: digest for part in sums for name, digest in part.items()}
        if group.ranks.is_main:
            try:
                write_checksums(folder, whole)
            except ZerokitError as error:
                console.note(f"zerokit: {error}. A run that goes on from there is not verified")


def check_resumed(group: RankGroup, folder: Path, *, verify: bool, trusted: bool) -> None:
    """See that a checkpoint is what was saved and can run no code; each rank looks at its share.

    Args:
        group: all ranks.
        folder: the checkpoint-N.
        verify: compare checksums, if it has them.
        trusted: its pickles may load whatever they name.

    Raises:
        CheckpointError: it is damaged, or would load what is unknown; the same on every rank.
    """

    def check() -> None:
        sums = read_checksums(folder) if verify else None
        if sums is None and verify and group.ranks.is_main:
            console.note(f"{folder} has no {SUMS_FILE}: it is not verified")
        if sums is not None:
            check_checksums(folder, {name: sums[name] for name in _share(sorted(sums), group)})
        if not trusted:
            check_pickles(folder, _share(files_of(folder), group))

    group.together(check)


def _share(names: list[str], group: RankGroup) -> list[str]:
    return names[group.ranks.rank :: group.ranks.world_size]
