"""Fine-tune: what ``zerokit train`` runs on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zerokit import console
from zerokit.checkpoint.source import check_before_launch, read_model_config
from zerokit.data.files import common_format, find_files
from zerokit.distributed.cores import share_threads, use_all_cores
from zerokit.distributed.group import RankGroup, check_launch, run_on_all_ranks
from zerokit.errors import ZerokitError, collect_errors, raise_together
from zerokit.extras import require
from zerokit.garbage import paused_collection
from zerokit.recipe.load import LoadedRecipe, load_recipe
from zerokit.recipe.training_keys import check_without_imports
from zerokit.training.datasets import data_sources


def main(
    recipe: Path | None, overrides: Sequence[str], *, stuck_after: float, save_within: float, **options: Any
) -> int:
    """Run on this rank; returns the exit code. Options are those of :func:`train`."""
    return run_on_all_ranks(
        lambda group: train(group, recipe, overrides, **options), stuck_after=stuck_after, save_within=save_within
    )


def train(
    group: RankGroup,
    recipe: Path | None,
    overrides: Sequence[str],
    *,
    previewed: int | None = None,
    push_to_hub: str | None = None,
    **options: bool,
) -> None:
    """Prepare, train, save and report. ZerokitError on every rank for bad input.

    Args:
        recipe: its file; None for an embedded one.
        previewed: number of sequences to print instead of training.
    """
    loaded = read_recipe(group, partial(load_recipe, recipe, overrides), "zerokit train")
    if group.policy.uses_this_machine:
        share_threads(group.ranks)
    else:
        use_all_cores()  # as all ranks of a node do together

    if previewed is None:
        from zerokit.training.resume import describe_finished_run

        finished = group.from_main(lambda: describe_finished_run(loaded))
        if finished is not None:
            if group.ranks.is_main:
                console.note(finished)
            return

    # Imported here: a mistake in the recipe is reported before transformers and DeepSpeed load.
    with paused_collection():
        from zerokit.distributed.nvme import clear_swap_folder, locked_swap_folders
        from zerokit.training.arguments import ds_config_place
        from zerokit.training.prepare import prepare, preview

    if previewed is not None:
        preview(group, loaded, previewed)
        return
    if push_to_hub is not None:
        from zerokit.training.upload import check_upload, upload

        group.together(lambda: check_upload(push_to_hub) if group.ranks.is_main else None)
    context = prepare(group, loaded, **options)

    with paused_collection():
        from zerokit.training.run import run  # imports transformers, whose words prepare has set up

    zero = context.resolved.ds_config["zero_optimization"] if group.policy.uses_this_machine else {}
    with (
        context.output.locked(group, context.identity.run_id),
        locked_swap_folders(group, zero, partial(ds_config_place, loaded)),
    ):
        clear_swap_folder(zero, group.ranks.rank)
        run(context)
        if push_to_hub is not None:
            address = group.together(lambda: upload(context.output_dir, push_to_hub) if group.ranks.is_main else "")
            if group.ranks.is_main:
                console.note(f"uploaded to {address}")


def read_recipe(group: RankGroup, load: Callable[[], LoadedRecipe], command: str) -> LoadedRecipe:
    """The recipe of a command, for a launch that fits this machine. ZerokitError on every rank."""

    def read() -> LoadedRecipe:
        loaded = load()
        require("train", where=command)
        if group.ranks.is_node_main:
            check_recipe_quickly(loaded)
        check_launch(group.ranks)
        return loaded

    return group.together(read)


def check_recipe_quickly(loaded: LoadedRecipe) -> None:
    """Check the recipe's keys, and that its model and local data exist. Raises all errors together."""
    looks: list[Callable[[], object]] = [
        partial(check_without_imports, loaded.recipe.training, loaded.origins),
        partial(_look_for_model, loaded),
        *(partial(_look_for_data, *named) for named in data_sources(loaded)),
    ]
    errors: list[ZerokitError] = []
    for look in looks:
        with collect_errors(errors):
            look()
    raise_together(errors)


def _look_for_model(loaded: LoadedRecipe) -> None:
    model = loaded.recipe.model
    if model.path is not None:
        check_before_launch(model.path, where=loaded.where("model", "path"), revision=model.revision)
    elif isinstance(model.from_config, str):
        read_model_config(Path(model.from_config).expanduser(), where=loaded.where("model", "from_config"))


def _look_for_data(source: str | list[str], where: str, split: str) -> None:
    if files := find_files(source, where, split):
        common_format(files, where)
