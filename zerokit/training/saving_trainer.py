"""transformers' Trainer, whose checkpoints are whole or not there, and which outlives a full disk."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from zerokit import console, staging
from zerokit.checkpoint.source import is_rehearsal
from zerokit.checkpoint.step_folder import LATEST, TRAINER_STATE
from zerokit.checkpoint.unfinished import UNFINISHED, remove_all_unfinished, unfinished_path
from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.patches import overriding
from zerokit.training.checksums import publish
from zerokit.training.disks import DiskProblems, bytes_of, lacks_room
from zerokit.training.folder import SAVING, checkpoints, remove_old
from zerokit.training.peft.prompts import saved_whole

if TYPE_CHECKING:
    from zerokit.distributed.group import RankGroup


@overriding(
    "transformers.trainer:Trainer",
    _init_training_state="outlive a full disk",
    _finalize_training="remove no checkpoint by halves",
    _save="let others read the weights, as they may read all else that is saved, and try a second place",
    _get_output_dir="give a checkpoint its name when it is whole",
    _save_checkpoint="outlive a full disk, and give a checkpoint its name when it is whole",
    _save_optimizer_and_scheduler="outlive a full disk",
    _save_rng_state="outlive a full disk",
)
class SavingTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped here
    """Writes each checkpoint aside, and gives it its name once every rank's part of it is on the disk."""

    def __init__(self, *, group: RankGroup, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._group = group
        self.disk_problems = DiskProblems()
        """Of what is saved now."""
        self.other_places: list[Path] = []
        """Where to save weights that cannot be written where they belong."""
        self._aside: Path | None = None
        """Where a checkpoint is written, while one is."""
        self._checkpoint_bytes = 0
        """Of the last checkpoint that this rank has given a name; other ranks have none."""
        self._best_saved: tuple[Any, Any, Any] = (None, None, None)
        """What the state said of the best checkpoint when the last one was saved."""

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        done = super()._init_training_state(*args, **kwargs)
        self._best_saved = self._best()  # of the checkpoint that is resumed
        return done

    def _best(self) -> tuple[Any, Any, Any]:
        state = self.state
        return state.best_metric, state.best_global_step, state.best_model_checkpoint

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            done = super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit
        best = self.state.best_model_checkpoint
        if limit == 1 and best is not None and self.args.should_save:  # the last one stays no longer
            remove_old(Path(self.args.output_dir), limit, last=Path(best), best=best)
        return done

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        for folder in (Path(output_dir or self.args.output_dir), *self.other_places):
            with self.disk_problems.noted(), saved_whole(self.model, state_dict):
                if folder.name == SAVING and self.args.should_save:
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    staging.make_staging(folder)
                super()._save(str(folder), state_dict)
                for file in folder.glob("*.safetensors") if self.args.should_save else ():
                    file.chmod(folder.stat().st_mode & 0o666)  # made readable for the owner alone
                return
            if self.args.should_save:
                with suppress(OSError):
                    staging.remove(folder)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The Trainer's, written aside; what is whole gets its name, and of what is not nothing stays."""
        folder = Path(self.args.output_dir)
        saved = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        problem = self._write_checkpoint(model, trial, folder, saved)
        if problem is None:
            self._best_saved = self._best()
        else:  # the Trainer would go back to what is removed, and pass over any that is saved later
            state = self.state
            state.best_metric, state.best_global_step, state.best_model_checkpoint = self._best_saved
            if self._group.ranks.is_node_main:  # each machine has written, whether it shares its disk or not
                remove_all_unfinished(folder)
        if not self.args.should_save:
            return
        if problem is None:
            self._checkpoint_bytes = bytes_of(saved)
            remove_old(folder, self.args.save_total_limit, last=saved, best=self.state.best_model_checkpoint)
        else:
            left = checkpoints(folder)
            stays = f"{left[-1].name} stays" if left else "there is none yet"
            console.note(f"zerokit: {saved} cannot be saved: {problem}. The run goes on; {stays}")

    def _write_checkpoint(self, model: Any, trial: Any, folder: Path, saved: Path) -> str | None:
        """Returns why a checkpoint is not whole, the same on every rank; None if it is."""
        self.disk_problems.clear()
        # No rank writes before all have a folder to write into: what lies there may be a link.
        begun = self._group.gather_objects(self._begin_checkpoint(folder))
        if problem := next((problem for problem in begun if problem is not None), None):
            return problem
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._aside = None if is_rehearsal() else folder / UNFINISHED
        try:
            with self.disk_problems.noted():  # from here on, what can fail makes no other rank wait
                super()._save_checkpoint(model, trial)
                self._name_best(saved)
        finally:
            self.args.save_total_limit, self._aside = limit, None
        problems = self._group.gather_objects(next(iter(self.disk_problems), None))
        problem = next((problem for problem in problems if problem is not None), None)
        if problem is not None or is_rehearsal():  # which writes no weights
            return problem
        return publish(self._group, unfinished_path(saved), saved)

    def _begin_checkpoint(self, folder: Path) -> str | None:
        """Make the folder that checkpoints are written into, on each machine; returns why there is none."""
        if problem := lacks_room(folder, self._checkpoint_bytes):
            return problem
        if is_rehearsal() or not (self.args.should_save or self._group.ranks.is_node_main):
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = staging.make_staging(folder / UNFINISHED)
            if self.args.should_save:
                staging.clear(unfinished)
        except (OSError, ZerokitError) as error:
            return str(error) if isinstance(error, ZerokitError) else error.strerror or str(error)
        return None

    def _name_best(self, saved: Path) -> None:
        """Have the state of the checkpoint that is written say where the best one will be, if this is it."""
        written = unfinished_path(saved)
        if self.state.best_model_checkpoint == str(written):
            self.state.best_model_checkpoint = str(saved)
            if self.args.should_save:
                self.state.save_to_json(str(written / TRAINER_STATE))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self.disk_problems.noted():
            super()._save_optimizer_and_scheduler(output_dir)
        with self.disk_problems.noted():
            if self.args.should_save:
                write_file(Path(output_dir, LATEST), f"global_step{self.deepspeed.global_steps}")

    def _save_rng_state(self, output_dir: str) -> None:
        with self.disk_problems.noted():
            super()._save_rng_state(output_dir)
