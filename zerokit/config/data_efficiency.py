"""The section `data_efficiency`, with all below it.

The keys are those that `deepspeed/runtime/data_pipeline` reads: `config.py` when the file is parsed,
`curriculum_scheduler.py`, `data_sampling` and `data_routing` later, where an absent key is a KeyError.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from zerokit.config.base import NOT_NULL, Int, NonNegative, Positive, PositiveFloat, Section, Sub
from zerokit.config.conditions import OWN_LOADER, Acts


def _require(section: Section, *keys: str, inside: str | None = None) -> None:
    """Refuse a section without keys that DeepSpeed looks up without a default.

    Args:
        section: that which must have them.
        keys: their names.
        inside: the key of the section, if a section above is being validated.
    """
    missing = [key for key in keys if key not in section.model_fields_set]
    if missing:
        above = (inside,) if inside else ()
        details = [InitErrorDetails(type="missing", loc=(*above, key), input=None) for key in missing]
        raise ValidationError.from_exception_data(type(section).__name__, details)


class Switched(Section):
    """A section that needs some of its keys once it is enabled."""

    needed_when_enabled: ClassVar[tuple[str, ...]]

    enabled: bool = False
    """Switch it on. Default false."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.enabled:
            _require(self, *self.needed_when_enabled)
        return self


class CurriculumSchedule(Section):
    """How fast the difficulty rises."""

    total_curriculum_step: Annotated[Positive | None, NOT_NULL] = None
    """Steps from the least to the greatest difficulty. Needed by `fixed_linear` and `fixed_root`."""

    difficulty_step: Annotated[Positive | None, NOT_NULL] = None
    """The difficulty is a multiple of this; 8 or 16 suits tensor cores. Needed by `fixed_linear` and
    `fixed_root`."""

    root_degree: Annotated[PositiveFloat | None, NOT_NULL] = None
    """2 for a square root, 3 for a cube root. Needed by `fixed_root`."""

    difficulty: Annotated[list[Int] | None, NOT_NULL] = None
    """Difficulties, one after the other. Needed by `fixed_discrete`."""

    max_step: Annotated[list[Int] | None, NOT_NULL] = None
    """Last step of each but the last of them. Needed by `fixed_discrete`."""


class CurriculumMetric(Section):
    """One measure of difficulty, by which samples are chosen."""

    index_to_sample_path: str | None = None
    """File of the data analyzer: samples by difficulty. Needed unless `clustering_type` is
    `single_cluster`."""

    index_to_metric_path: str | None = None
    """File of the data analyzer: the difficulties. Needed with `difficulty_type` `value`."""

    difficulty_type: Literal["value", "percentile"]
    """Whether difficulties are values of the measure, or shares of all samples in percent. Needed."""

    clustering_type: Literal["schedule_based", "single_cluster"]
    """Whether samples are grouped by difficulty, or all used from the start. Needed."""

    min_difficulty: Int
    """Difficulty of the first step. Needed."""

    max_difficulty: Int
    """Difficulty of the last step. Needed."""

    schedule_type: Literal["fixed_linear", "fixed_root", "fixed_discrete", "custom"]
    """How the difficulty rises; `custom` takes a function from the script. Needed."""

    schedule_config: Annotated[Sub[CurriculumSchedule] | None, NOT_NULL] = None
    """How fast it rises. Needed unless `schedule_type` is `custom`."""

    @model_validator(mode="after")
    def _has_its_schedule(self) -> Self:
        needed = {
            "fixed_linear": ("total_curriculum_step", "difficulty_step"),
            "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
            "fixed_discrete": ("difficulty", "max_step"),
        }.get(self.schedule_type, ())
        if needed:
            _require(self, "schedule_config")
        if self.schedule_config is not None:
            _require(self.schedule_config, *needed, inside="schedule_config")
        return self


class CurriculumLearning(Switched):
    """Easy samples first."""

    needed_when_enabled: ClassVar[tuple[str, ...]] = ("curriculum_metrics",)

    enabled: bool = False
    """Choose samples by difficulty. Default false."""

    data_cluster_path: str | None = None
    """Folder for the lists of samples by difficulty. Needed when enabled."""

    curriculum_metrics: Annotated[dict[str, Sub[CurriculumMetric]] | None, NOT_NULL] = None
    """Name of a measure -> how samples are chosen by it. Needed when enabled."""


class DynamicBatching(Switched):
    """Batches of about equally many tokens, with the learning rate scaled to their size."""

    needed_when_enabled: ClassVar[tuple[str, ...]] = ("max_tokens",)

    enabled: bool = False
    """Make batches so. Default false."""

    metrics_path: str | None = None
    """Folder of the data analyzer, with the lengths of the samples. Default none: the script gives them."""

    lr_scaling_method: Literal["linear", "sqrt", "none"] = "linear"
    """How the learning rate follows the batch size. Default linear."""

    min_batch_size: Positive = 1
    """Least samples in a batch. Default 1."""

    max_batch_size: Annotated[Positive | None, NOT_NULL] = None
    """Most samples in a batch. Default none: no bound."""

    sequence_picking_order: Literal["dataloader", "random", "seqlen"] = "dataloader"
    """Order in which samples are put into batches. Default dataloader."""

    max_tokens: Annotated[Positive | None, NOT_NULL] = None
    """Most tokens in a batch. Needed when enabled."""

    verbose: bool = False
    """Print the batches. Default false."""


class DataSampling(Section):
    """Which samples are used when."""

    enabled: bool = False
    """Let DeepSpeed sample. Default false."""

    num_epochs: Positive = 1000
    """Passes over the data at most. Default 1000."""

    num_workers: NonNegative = 0
    """Worker processes of the data loader. Default 0."""

    pin_memory: Annotated[bool, Acts(since="0.16.5")] = False
    """Put batches into page-locked memory. Default false."""

    curriculum_learning: Annotated[Sub[CurriculumLearning], Acts(when=OWN_LOADER)] = Field(
        default_factory=CurriculumLearning.defaults
    )
    """Easy samples first."""

    dynamic_batching: Annotated[Sub[DynamicBatching], Acts(when=OWN_LOADER, since="0.16.5")] = Field(
        default_factory=DynamicBatching.defaults
    )
    """Batches of about equally many tokens."""


class LayerTokenLrSchedule(Section):
    """A learning rate that follows the number of tokens. DeepSpeed raises NotImplementedError for it."""

    enabled: Literal[False] = False
    """Only false is implemented. Default false."""


class RandomLtdScheduleConfig(Section):
    """How fast the kept length rises."""

    require_steps: Positive
    """Steps until all tokens are kept. Needed."""

    seq_per_step: Positive
    """The length rises in multiples of this; 8 or 16 suits tensor cores. Needed."""


class RandomLtdSchedule(Section):
    """How many tokens are kept."""

    min_value: Positive
    """Tokens kept in the first step. Needed."""

    max_value: Positive
    """Tokens kept in the last step; the sequence length. Needed."""

    schedule_type: Literal["fixed_linear"]
    """How the number rises. Needed."""

    schedule_config: Sub[RandomLtdScheduleConfig]
    """How fast it rises. Needed."""


class RandomLtd(Switched):
    """Random layerwise token dropping: middle layers see a random part of the tokens.

    Acts on layers that the script wraps in `RandomLayerTokenDrop`. Each key is needed when enabled.
    """

    needed_when_enabled: ClassVar[tuple[str, ...]] = (
        "total_layer_num",
        "random_ltd_layer_num",
        "random_ltd_layer_id",
        "model_mask_name",
        "model_type",
        "hidden_state_order",
        "random_ltd_schedule",
    )

    enabled: bool = False
    """Drop tokens. Default false."""

    total_layer_num: Annotated[Positive | None, NOT_NULL] = None
    """Layers of the model."""

    random_ltd_layer_num: Annotated[Positive | None, NOT_NULL] = None
    """Layers that drop tokens."""

    random_ltd_layer_id: Annotated[list[NonNegative] | None, NOT_NULL] = None
    """Their numbers."""

    model_mask_name: str | None = None
    """Name of the attention mask among the arguments of a layer; none if it takes no mask."""

    model_type: Annotated[Literal["encoder", "decoder"] | None, NOT_NULL] = None
    """Kind of model."""

    hidden_state_order: Annotated[Literal["batch_seq_dim", "seq_batch_dim"] | None, NOT_NULL] = None
    """Order of the dimensions of hidden states."""

    random_ltd_schedule: Annotated[Sub[RandomLtdSchedule] | None, NOT_NULL] = None
    """How many tokens are kept."""

    layer_token_lr_schedule: Sub[LayerTokenLrSchedule] = Field(default_factory=LayerTokenLrSchedule.defaults)
    """Not implemented in DeepSpeed."""


class DataRouting(Section):
    """Which layers see which tokens."""

    enabled: bool = False
    """Route tokens. Default false."""

    random_ltd: Sub[RandomLtd] = Field(default_factory=RandomLtd.defaults)
    """Random layerwise token dropping."""


class DataEfficiency(Section):
    """Curriculum learning, batches by tokens, and random layerwise token dropping."""

    enabled: bool = False
    """Use what is enabled below. Default false."""

    seed: Int = 1234
    """Seed of the sampling. Default 1234."""

    data_sampling: Sub[DataSampling] = Field(default_factory=DataSampling.defaults)
    """Which samples are used when."""

    data_routing: Sub[DataRouting] = Field(default_factory=DataRouting.defaults)
    """Which layers see which tokens."""
