"""``zerokit evaluate`` on every rank: the metrics of a saved model, by the evaluator of training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zerokit.checkpoint.adapter_names import find_adapter, read_adapter
from zerokit.checkpoint.pretrained import load_adapter
from zerokit.checkpoint.source import check_files, check_weights
from zerokit.distributed.cores import share_threads
from zerokit.distributed.group import RankGroup, count_gpus, run_on_all_ranks
from zerokit.distributed.libraries import set_up_libraries
from zerokit.documents import Document, KeyPath, read_document, replace_nonfinite
from zerokit.errors import ModelError, RecipeError
from zerokit.generation.output import claim_stdout, write_results
from zerokit.recipe.load import LoadedRecipe, load_recipe
from zerokit.training.main import check_recipe_quickly, read_recipe
from zerokit.training.report import REPORT_FILE

if TYPE_CHECKING:
    import torch

    from zerokit.training.run_context import RunContext
    from zerokit.training.tasks.task import Task

_OF_MODEL = ("path", "from_config", "tokenizer", "revision")
_OF_SOURCE = (
    *("train", "train_split", "eval", "eval_split", "eval_fraction", "max_examples", "streaming"),
    "buffer_size",
)
"""Keys of a recipe's `model` and `data` that name what the run was trained on."""
_TOKEN_TASKS = ("causal_lm", "seq2seq")
"""Tasks whose loss has a perplexity."""


def main(
    model: str, data: str, recipe: Path | None, overrides: Sequence[str], *, stuck_after: float, **options: Any
) -> int:
    """Run on this rank; returns the exit code. Only the metrics (rank 0) go to stdout."""
    with claim_stdout() as results:
        return run_on_all_ranks(
            lambda group: evaluate(group, model, data, recipe, overrides, results=results, **options),
            stuck_after=stuck_after,
        )


def check_before_start(model: str, data: str, recipe: Path | None, overrides: Sequence[str]) -> None:
    """Check the input in the process that starts the ranks. Raises ZerokitError."""
    check_recipe_quickly(recipe_for(model, data, recipe, overrides))


def evaluate(
    group: RankGroup,
    model: str,
    data: str,
    recipe: Path | None,
    overrides: Sequence[str],
    *,
    batch_size: int,
    as_json: bool,
    results: IO[str],
) -> None:
    """Load the model, measure it, and print the metrics. ZerokitError on every rank for bad input."""
    loaded = read_recipe(group, partial(recipe_for, model, data, recipe, overrides), "zerokit evaluate")
    if group.policy.uses_this_machine:
        share_threads(group.ranks)
    set_up_libraries(group.ranks)

    # Imported here: a mistake in the recipe is reported before transformers loads.
    import torch

    from zerokit.training.evaluator import Evaluator
    from zerokit.training.prepare import ARGUMENTS, EXAMPLES, run_steps
    from zerokit.training.prepare_data import tokenize_reported
    from zerokit.training.run_context import RunContext

    context = RunContext(group, loaded)
    run_steps(context, (*ARGUMENTS, *EXAMPLES))
    task: Any = context.task
    if hasattr(task, "measures_accuracy"):
        task = context.task = replace(task, measures_accuracy=True)
    adapter = find_adapter(model)
    if task.needs_reference and adapter is None:
        raise RecipeError(
            f"{task.section.type} compares a model with the one that it started from, which is not known",
            where=model,
            hint="Evaluate an adapter, or name the data as data.eval when you train",
        )
    tokenized = tokenize_reported(context, context.examples, "evaluation").dataset
    tokenized = group.node_main_first(lambda: task.with_fixed_targets(tokenized, context.tokenizer))
    network = group.together(partial(_load, context, adapter))
    evaluator = Evaluator(task, lambda total: torch.stack(group.gather_objects(total)).sum(0))
    metrics, _ = evaluator.measure(
        network, network, _batches(context, tokenized, network, batch_size), context.tokenizer
    )
    if task.section.type in _TOKEN_TASKS:
        metrics["perplexity"] = math.exp(metrics["loss"]) if metrics["loss"] < 700 else math.inf
    text = ""
    if group.ranks.is_main:
        found = {"num_examples": len(context.examples.loaded), **metrics}
        if as_json:
            head = {"model": model, "data": data, "task": task.section.type}
            text = json.dumps(replace_nonfinite({**head, **found}), indent=2, allow_nan=False)
        else:
            text = "\n".join(f"{name}: {value:,.6g}" for name, value in found.items())
    group.together(lambda: write_results(results, [f"{text}\n"] if text else []))


def recipe_for(model: str, data: str, recipe: Path | None, overrides: Sequence[str]) -> LoadedRecipe:
    """The recipe that reads `data` as the model's run did.

    Args:
        recipe: its recipe; None for the one in the report of the run that the model's folder is of.

    Raises:
        ZerokitError: a file or an override cannot be read.
    """
    folder = Path(model).expanduser()
    name, given = "zerokit evaluate", {}
    reports = [path / REPORT_FILE for path in (folder, folder.parent) if (path / REPORT_FILE).is_file()]
    if recipe is not None:
        document = read_document(recipe)
        name, given = document.name, document.data if isinstance(document.data, dict) else {}
    elif reports and folder.is_dir():
        report = read_document(reports[0], folder=reports[0].parent)
        name, given = report.name, report.data.get("recipe") or {}
    sections = {key: given[key] for key in ("task", "precision", "matmul_precision") if given.get(key)}
    own, source = given.get("model") or {}, given.get("data") or {}
    own = own if isinstance(own, dict) else {}
    sections["model"] = {key: own[key] for key in own if key not in _OF_MODEL} | {"path": model}
    sections["data"] = {key: source[key] for key in source if key not in _OF_SOURCE}
    sections["data"] |= {"train": data, "eval_fraction": 0.0}
    if (adapter := find_adapter(model)) is not None:
        kind, sections["model"]["path"] = read_adapter(adapter, hint="Give it: --model.path MODEL")
        sections["peft"] = {"type": kind.lower()}
        if any(adapter.glob("tokenizer*")):
            sections["model"]["tokenizer"] = str(adapter)
    loaded = load_recipe(Document(sections, name), overrides)
    arguments: dict[KeyPath, str] = {("data", "train"): data, ("model", "path"): model}
    return replace(loaded, origins=replace(loaded.origins, arguments=arguments))


def _load(context: RunContext, adapter: Path | None) -> Any:
    """The model on this rank's device, with its adapter."""
    import torch

    from zerokit.training.model import build_model, weights_dtype

    recipe, task = context.loaded.recipe, context.task
    dtype = weights_dtype(recipe.model, context.precision)
    model: Any = build_model(context.model, recipe.model, dtype, task.model)
    new_modules = getattr(model, "new_modules", ())
    if adapter is None and new_modules:
        raise ModelError(
            f"has no weights of {new_modules[0]}, which {task.section.type} needs",
            where=str(context.model.folder),
            hint="Train it first, or name its task with --task.type",
        )
    if adapter is not None:
        check_files(adapter, where=str(adapter))
        check_weights(adapter, where=str(adapter))
        model = load_adapter(model, adapter).to(dtype)
    if recipe.matmul_precision is not None:
        torch.set_float32_matmul_precision(recipe.matmul_precision)
    device = torch.device("cuda", context.group.ranks.local_rank) if count_gpus() else torch.device("cpu")
    return model.to(device).eval()


def _batches(context: RunContext, examples: Any, model: Any, size: int) -> Iterator[dict[str, torch.Tensor]]:
    """This rank's batches: blanks fill the last ones."""
    import torch

    from zerokit.training.batch_source import FilledDataset

    task: Task = context.task
    ranks = context.group.ranks
    collate = task.collator(context.tokenizer, model)
    filled = FilledDataset(examples, size * ranks.world_size, task.blank())

    def collated(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {name: values.to(model.device) for name, values in collate(rows).items()}

    for start in range(ranks.rank * size, len(filled), size * ranks.world_size):
        rows = filled.__getitems__(range(start, start + size))
        if task.needs_reference:
            with model.disable_adapter(), torch.no_grad():
                reference = task.log_probabilities(model, collated(rows)).float().tolist()
            rows = [{**row, "reference": found} for row, found in zip(rows, reference, strict=True)]
        yield collated(rows)
