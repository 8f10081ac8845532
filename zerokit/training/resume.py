"""The checkpoint that a run resumes from, and whether it belongs to the same run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit import console
from zerokit.checkpoint.checksums import SUMS_FILE, check_checksums, complete_checksums, files_of
from zerokit.checkpoint.pickles import check_pickles
from zerokit.checkpoint.reshard import reshard
from zerokit.checkpoint.step_folder import LATEST, TRAINER_STATE, named_as_latest, optimizer_ranks
from zerokit.checkpoint.torch_file import read_archive
from zerokit.choices import OUTPUT_DIR
from zerokit.distributed.group import RankGroup
from zerokit.distributed.run_policy import RunPolicy
from zerokit.documents import COPY_HINT, first_unreadable, read_document
from zerokit.errors import CheckpointError, DocumentError, RecipeError, nearest, printable
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.training_keys import NO_LIMIT
from zerokit.resolving.contradictions import Resolved
from zerokit.staging import make_staging, remove
from zerokit.training.folder import RESHARDED, checkpoint_number, checkpoints, dangling_checkpoints
from zerokit.training.identity import (
    Identity,
    differences,
    in_words,
    num_examples_differ,
    read_identity,
    recipe_differences,
)
from zerokit.training.report import REPORT_FILE
from zerokit.units import quantity

if TYPE_CHECKING:
    from transformers import TrainingArguments

AUTO_RESUME = "auto"
"""Value of ``training.resume_from_checkpoint``: continue if there is a checkpoint, else start."""

_ANOTHER = "Continue from an earlier checkpoint-N"


def find_resume(group: RankGroup, resolved: Resolved, loaded: LoadedRecipe) -> Path | None:
    """The checkpoint-N of ``training.resume_from_checkpoint`` (a path, or true for the last one).

    Rank 0 chooses it for all ranks, because a file server may show new folders to other machines late.
    Removes the key from the resolved arguments.

    Raises:
        RecipeError: there is none, or it lacks the Trainer's state; in a rehearsal, also for another number
            of ranks.
        CheckpointError: a part is missing, also on one machine only, or a link or special file is not
            readable. True selects an older checkpoint only if a newer one is incomplete, and never because of
            a link.
        DataError: machines see different checkpoints of this name.
    """
    asked = resolved.training.pop("resume_from_checkpoint", None)
    where = loaded.where("training", "resume_from_checkpoint")
    if asked in (None, False):
        return None

    def choose() -> Path | None:
        if asked not in (True, AUTO_RESUME):
            return Path(asked)
        output_dir = Path(resolved.training["output_dir"])
        if asked == AUTO_RESUME and not any(map(_has_state, checkpoints(output_dir))):
            return None
        return _last_whole(output_dir, where)

    folder = group.from_main(choose)
    if folder is None:
        return None

    def check() -> str:
        try:
            _check_whole(folder, where, group.ranks.world_size)
            return hashlib.sha256((folder / TRAINER_STATE).read_bytes()).hexdigest()
        except (RecipeError, CheckpointError) as error:
            if group.ranks.is_main or not group.policy.has_all_ranks:
                raise
            raise CheckpointError(
                f"rank 0 resumes from it, and rank {group.ranks.rank} does not see it whole: {error.message}",
                where=folder,
                hint="Put it on a disk that all machines share, and wait until all of them see its files",
            ) from None

    group.from_node_main(check, where=str(folder))
    return folder


def _last_whole(output_dir: Path, where: str) -> Path:
    """The last checkpoint-N of a run that is complete, or the last one if none is.

    Raises:
        RecipeError: there is none.
        CheckpointError: a later one is a dangling link, or has a link or a special file that is not read.
    """
    found = list(filter(_has_state, checkpoints(output_dir)))
    if not found:
        raise RecipeError(
            f"'{output_dir}' has no checkpoint-N to continue from",
            where=where,
            hint="Set save_strategy and save_steps in a run that you want to resume",
        )
    problems = {checkpoint: missing_part(checkpoint) for checkpoint in found}
    whole = [checkpoint for checkpoint in found if problems[checkpoint] is None]
    # The checksums are written last.
    sealed = [checkpoint for checkpoint in whole if (checkpoint / SUMS_FILE).is_file()]
    folder = (sealed or whole or found)[-1]
    for link in dangling_checkpoints(output_dir):
        if checkpoint_number(link) > checkpoint_number(folder):
            raise CheckpointError(
                "is a link to a missing folder", where=link, hint="Restore the folder, or remove the link"
            )
    for later in found[found.index(folder) + 1 :]:
        _check_readable(later)
        why = problems[later] or f"lacks {SUMS_FILE}"
        console.note(f"{later} is not whole ({why}): the run continues from {folder}")
    return folder


def _has_state(checkpoint: Path) -> bool:
    return any(checkpoint.glob(TRAINER_STATE))


def describe_finished_run(loaded: LoadedRecipe) -> str | None:
    """A line that the run which is to be continued (``auto``) has finished; None if it has not.

    Raises:
        RecipeError: the finished run is of another recipe.
        DocumentError: its report cannot be read.
    """
    training = loaded.recipe.training
    folder = Path(training.get("output_dir") or OUTPUT_DIR)
    file = folder / REPORT_FILE
    if training.get("resume_from_checkpoint") != AUTO_RESUME or not file.is_file():
        return None
    report = read_document(file, folder=folder).data
    now = json.loads(json.dumps(loaded.recipe.model_dump(exclude_unset=True), default=str))
    try:
        was, steps = report["recipe"], int(report["steps"])
        is_longer = _is_longer(was["training"], now["training"], steps)
        different = recipe_differences(was, now)
    except (TypeError, KeyError, ValueError):
        raise RecipeError(f"'{file}' is damaged", where=loaded.where("training", "output_dir"), hint=_OTHER) from None
    if different:
        raise RecipeError(
            f"'{folder}' has the model of a run that differs: {in_words(different)}",
            where=loaded.where("training", "output_dir"),
            hint=f"Set it back; or {_OTHER[0].lower()}{_OTHER[1:]}",
        )
    return None if is_longer else f"zerokit: the run in {folder} has finished ({quantity(steps, 'step')})"


_OTHER = "Name another folder, or replace the model with --force and without --resume"


def _is_longer(was: Mapping[str, Any], now: Mapping[str, Any], steps: int) -> bool:
    """Whether a run is to be longer than the finished one of `steps`."""
    if (most := now.get("max_steps", NO_LIMIT)) != NO_LIMIT:
        return bool(most > steps)
    if was.get("max_steps", NO_LIMIT) != NO_LIMIT:
        return True  # the data decide
    return float(now.get("num_train_epochs", 3)) > float(was.get("num_train_epochs", 3))


def check_length(checkpoint: Path, args: TrainingArguments, max_steps: int, loaded: LoadedRecipe) -> str | None:
    """Compare the length of the run with that of the checkpoint's run.

    Returns:
        a line about another length.

    Raises:
        RecipeError: this run is shorter, and its length is not of the command line: its options were
            forgotten.
    """
    state = json.loads((checkpoint / TRAINER_STATE).read_bytes())
    was = state.get("max_steps") or max_steps
    if was == max_steps:
        return None
    what = f"is of a run of {quantity(was, 'step')}, and this run has {max_steps:,}"
    keys = [("training", key) for key in ("max_steps", "num_train_epochs")]
    rounds = math.ceil(args.num_train_epochs) if args.dataloader_drop_last and args.max_steps <= 0 else 0
    if max_steps >= was - rounds or loaded.origins.overrides & {*keys}:
        return f"{checkpoint} {what}: the learning rate follows the new length"
    raise RecipeError(
        f"'{checkpoint}' {what}",
        where=loaded.where("training", "max_steps" if args.max_steps > 0 else "num_train_epochs"),
        hint="Repeat the options of its first command; to shorten the run, give its length as an option: "
        f"--training.max_steps {max_steps}",
    )


def check_resume_value(value: object, where: str) -> None:
    """Check that a value of ``training.resume_from_checkpoint`` is a word or names a checkpoint-N.

    Raises:
        RecipeError: it does not.
    """
    if not isinstance(value, str) or value == AUTO_RESUME:
        return
    folder = Path(value)
    if not folder.exists():
        others = ", ".join(path.name for path in checkpoints(folder.parent)[-4:])
        hint = f"There are {others}" if others else "Name a checkpoint-N folder"
        if nearest(value.lower(), [AUTO_RESUME]):
            hint = f"Did you mean '{AUTO_RESUME}'?"
        problem = "does not exist" if "/" in value else f"is neither {AUTO_RESUME} nor a folder"
        raise RecipeError(f"'{value}' {problem}", where=where, hint=hint)
    if not (folder / TRAINER_STATE).is_file():
        raise RecipeError(
            f"'{folder}' is no checkpoint of a run: it has no {TRAINER_STATE}",
            where=where,
            hint=f"Name {next(reversed(checkpoints(folder)), 'a checkpoint-N folder')}, or {AUTO_RESUME} for "
            "the last one",
        )


def _check_whole(folder: Path, where: str, world_size: int) -> None:
    """Check that `world_size` ranks can resume from a checkpoint-N; errors as :func:`find_resume`."""
    check_resume_value(str(folder), where)
    _check_readable(folder)
    problem = missing_part(folder)
    if problem is not None:
        earlier = _earlier(folder)
        hint = _ANOTHER if earlier is None else f"Continue with --resume {printable(earlier)}"
        raise CheckpointError(problem, where=folder, hint=hint)
    num_parts = num_saving_ranks(folder)
    if not RunPolicy.current().reads_weights and num_parts not in (0, world_size):
        saved = quantity(num_parts, "rank")
        raise RecipeError(
            f"'{folder}' was saved by {saved}, each of which kept its part, and this run has {world_size}",
            where=where,
            hint=f"Rehearse it with {saved}, or rehearse a new run, which needs as much memory",
        )


def _earlier(folder: Path) -> Path | None:
    """The newest complete checkpoint-N of the run before that of `folder`; None if there is none."""
    found = checkpoints(folder.parent)
    earlier = found[: found.index(folder)] if folder in found else []
    sealed = [path for path in reversed(earlier) if (path / SUMS_FILE).is_file()]
    return next((path for path in sealed if missing_part(path) is None), None)


def _check_readable(folder: Path) -> None:
    """Refuse a checkpoint-N with a special file or a link that leads out of it (CheckpointError)."""
    with suppress(OSError):  # reported by missing_part
        if (found := first_unreadable(folder)) is not None:
            raise CheckpointError(found[1], where=found[0], hint=COPY_HINT)


def missing_part(folder: Path) -> str | None:
    """What a checkpoint-N lacks, by the names of its files; None if it is complete."""
    try:
        if (found := first_unreadable(folder)) is not None:
            return f"{found[0].name} {found[1]}"
        state, problem = (folder / TRAINER_STATE).read_bytes(), _lacks_part(folder)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except DocumentError as error:
        return f"{LATEST} {error.message}"
    try:
        json.loads(state)
    except ValueError as error:
        return f"{TRAINER_STATE} is damaged: {error}"
    return problem


def _lacks_part(folder: Path) -> str | None:
    states = _states_folder(folder)
    ranks = {rank for rank, _ in optimizer_ranks(file.name for file in states.glob("*"))}
    parts = {
        "latest, which names DeepSpeed's part": (folder / LATEST).is_file(),
        "DeepSpeed's part, which latest names": states.is_dir() and states.resolve().parent == folder.resolve(),
        "the states of the model": any(states.glob("*model_states.pt")),
        "the states of the optimizer of each rank": ranks == set(range(len(ranks)))
        and (bool(ranks) or _has_optimizer(states / "mp_rank_00_model_states.pt")),
    }
    return next((f"lacks {what}" for what, found in parts.items() if not found), None)


def _has_optimizer(model: Path) -> bool:
    """Whether the model's file contains optimizer states, as without ZeRO."""
    try:
        content = read_archive(model).content
    except CheckpointError:
        return False
    return isinstance(content, Mapping) and content.get("optimizer") is not None


def _states_folder(folder: Path) -> Path:
    """DeepSpeed's folder in a checkpoint-N, which ``latest`` names; the file ``latest`` if that is missing."""
    return folder / named_as_latest(folder).get(LATEST, LATEST)


def num_saving_ranks(folder: Path) -> int:
    """Number of ranks that saved a checkpoint-N; 0 without ZeRO, which does not partition the optimizer."""
    found = optimizer_ranks(file.name for file in _states_folder(folder).glob("*"))
    # Of tensor parallelism, ranks of a group have the same number and a model-parallel rank each.
    return (max((rank for rank, _ in found), default=-1) + 1) * len({model_rank for _, model_rank in found})


def check_resumed(group: RankGroup, folder: Path, *, verify: bool, trusted: bool) -> None:
    """Check that a checkpoint is unchanged and cannot run code; each rank checks its share of the files.

    Args:
        trusted: whether its pickles may load any class.

    Raises:
        CheckpointError: it is damaged, its checksums are incomplete, or it loads an unknown class; on every
            rank.
    """

    def check() -> None:
        sums = None
        try:
            if verify and (sums := complete_checksums(folder)) is not None:
                check_checksums(folder, {name: sums[name] for name in group.share(sorted(sums))})
        except CheckpointError as error:
            if (earlier := _earlier(folder)) is None:
                raise
            hint = f"Continue with --resume {printable(earlier)}, or with this one unverified: --no-verify"
            raise CheckpointError(error.message, where=error.where, hint=hint) from None
        if sums is None and verify and group.ranks.is_main:
            console.note(f"{folder} has no {SUMS_FILE}: it is not verified")
        if sums is not None:
            added = [name for name in files_of(folder) if name not in sums]
            if added and group.ranks.is_main:
                some = f"{quantity(len(added), 'file')}, such as '{added[0]}'"
                console.note(f"{folder} was saved without {some}: not verified")
        if not trusted:
            check_pickles(folder, group.share(files_of(folder)))

    group.together(check)


def reshard_for_run(group: RankGroup, resume: Path | None, output_dir: Path, removal: ExitStack) -> Path | None:
    """The checkpoint to resume from, with one part for each rank of this run. ZerokitError on every rank.

    Args:
        removal: gets the removal of a checkpoint that is resharded, next to this run's.
    """
    ranks = group.ranks.world_size
    if resume is None or (saving := num_saving_ranks(resume)) in (0, ranks):
        return resume
    made = output_dir / RESHARDED / f"{resume.name}-on-{quantity(ranks, 'rank').replace(' ', '-')}"

    def make() -> None:
        console.note(f"{resume} was saved by {quantity(saving, 'rank')}, and this run has {ranks}: it is resharded")
        removal.callback(_remove_resharded, made.parent)
        make_staging(made.parent)
        reshard(resume, made, num_ranks=ranks, verify=False, sums=False)

    group.together(lambda: make() if group.ranks.is_main else None)
    return made


def _remove_resharded(folder: Path) -> None:
    with suppress(OSError):
        remove(folder)


def resumed_identity(checkpoint: Path, now: Identity, *, data_ranks: int, where: str) -> Identity:
    """The identity of a run that is resumed from `checkpoint`.

    Args:
        data_ranks: ranks of the run, or groups of ranks, that read different batches.

    Raises:
        RecipeError: the checkpoint is of another recipe, data or model. Most differences would have no
            effect, because DeepSpeed loads the optimizer's settings from the checkpoint.
        CheckpointError: the identity in the checkpoint cannot be read.
    """
    was = read_identity(checkpoint)
    if was is None:
        console.note(f"{checkpoint} does not say which run it is of: recipe, data and model are not compared")
        return now
    restart = f"begin another run from its weights, with --model {checkpoint} and another output_dir"
    different = differences(was, now)
    if not different:
        return replace(now, run_id=was.run_id, started=was.started)
    fix = "Set it back"
    of = "a run that differs"
    if different == num_examples_differ(was, now):
        each, left = divmod(was.examples_per_step, data_ranks)
        fix = f"Set per_device_train_batch_size times gradient_accumulation_steps to {each}"
        if left:
            fix = f"Start a number of ranks that divides {was.examples_per_step}"
        if was.world_size != now.world_size:
            of = f"a run of {quantity(was.world_size, 'rank')}"
    raise RecipeError(f"'{checkpoint}' is of {of}: {in_words(different)}", where=where, hint=f"{fix}; or {restart}")
