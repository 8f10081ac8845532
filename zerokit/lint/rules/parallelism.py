"""Sequence, tensor and pipeline parallelism, and the hybrid engine."""

from collections.abc import Iterator

from zerokit.hardware.cluster import Parallelism
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, autotp_size
from zerokit.models.parallelism import DividedModel, parallelism_misfit
from zerokit.units import quantity


@rule("sequence-parallel-size")
def sequence_parallel_size(subject: Subject) -> Iterator[Hit]:
    """A sequence-parallel size that does not divide the number of GPUs"""
    sequence, data = subject.config.sequence_parallel_size, subject.config.data_parallel_size
    gpus = subject.cluster.num_gpus
    if sequence is None or gpus is None:
        return
    path = ("sequence_parallel_size",)
    if gpus % sequence:
        hint = f"Choose a divisor of {gpus}, or another number of GPUs"
        yield Hit(path, f"'sequence_parallel_size' {sequence} does not divide {quantity(gpus, 'GPU')}", hint)
    elif data is not None and data * sequence != gpus:
        product = f"'data_parallel_size' {data} x 'sequence_parallel_size' {sequence}"
        message = f"{product} is not {quantity(gpus, 'GPU')}"
        yield Hit(("data_parallel_size",), message, f"Write {gpus // sequence}")


@rule("parallel-sizes")
def parallel_sizes(subject: Subject) -> Iterator[Hit]:
    """Sizes of a recipe's 'parallel' that do not fit the GPUs or the model"""
    run, recipe = subject.run, subject.run.recipe
    sizes = Parallelism(run.parallelism.sequence, max(run.parallelism.tensor, autotp_size(subject)))
    attention = None if recipe is None else recipe.model.attn_implementation
    misfit = parallelism_misfit(
        sizes,
        num_gpus=run.cluster.num_gpus,
        model=None if run.model is None else DividedModel.of(run.model, attention),
        has_adapter=recipe is not None and recipe.peft is not None,
    )
    if misfit is not None:
        yield Hit(subject.nearest_set("tensor_parallel", "autotp_size"), misfit.message, misfit.hint or "")
