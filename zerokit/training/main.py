"""Fine-tune: what ``launch/train.py`` runs on every rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from zerokit.distributed.group import RankGroup, check_launch, run_on_all_ranks
from zerokit.errors import RecipeError
from zerokit.recipe.load import LoadedRecipe, embedded_text, load_recipe

USAGE = """\
usage: deepspeed launch/train.py [--recipe FILE.yaml] [--SECTION.KEY VALUE ...]

Fine-tunes a causal language model with DeepSpeed ZeRO. Without --recipe it runs the embedded default:
a small Llama from scratch on Python's language reference. Start it with deepspeed, torchrun,
accelerate launch or python.

  --recipe FILE          the run: model, data, task, peft, training, deepspeed, generation
  --SECTION.KEY VALUE    override one value: --training.learning_rate 1e-5, --data.train my.jsonl
  --model NAME|FOLDER    replace the section model by a Hub id or a folder (without --recipe, the rest is
                         then the embedded fine-tuning recipe)
  --deepspeed FILE       replace the section deepspeed by a ds_config
  --force                replace the model of an earlier run in the output folder
  --print-recipe         print a recipe for fine-tuning, to be changed, and leave
  -h, --help             print this and leave
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run on this rank; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # DeepSpeed's launcher adds it; the environment says the same.
    words = [word for word in words if not word.startswith("--local_rank=")]
    if {"-h", "--help"} & set(words):
        return _print_once(USAGE)
    if "--print-recipe" in words:
        return _print_once(embedded_text("finetune.yaml"))
    return run_on_all_ranks(lambda group: train(group, words))


def train(group: RankGroup, words: Sequence[str]) -> None:
    """Prepare, train, save and report.

    Raises:
        ZerokitError: bad input; the same on every rank.
    """
    force = "--force" in words
    words = [word for word in words if word != "--force"]
    loaded = group.together(lambda: read_command_line(group, words))

    # Imported here so that a mistyped option is answered before torch and transformers load.
    from zerokit.training.prepare import prepare
    from zerokit.training.run import run

    run(group, prepare(group, loaded, force=force))


def read_command_line(group: RankGroup, words: Sequence[str]) -> LoadedRecipe:
    """The recipe that the command line names, with its overrides, for a launch that fits this machine.

    Raises:
        ZerokitError: an option or the recipe is not valid, or there are more ranks than devices.
    """
    recipe_file, overrides = _split_recipe(words)
    loaded = load_recipe(recipe_file, overrides)
    check_launch(group.ranks)
    return loaded


def _split_recipe(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take ``--recipe FILE`` out of the command line."""
    recipe: str | None = None
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name != "--recipe":
            rest.append(word)
            # An override's value may look like anything, so it is passed over with its option.
            if word.startswith("--") and not equals and words:
                rest.append(words.pop(0))
            continue
        if not equals:
            if not words:
                raise RecipeError("has no value", where="--recipe", hint="Write --recipe FILE.yaml")
            value = words.pop(0)
        if recipe is not None:
            raise RecipeError("is given twice", where="--recipe", hint="Give one recipe")
        recipe = value
    return recipe, rest


def _print_once(text: str) -> int:
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(text)
    return 0
