"""What is known of a run, filled in step by step before the model is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.hardware.cluster import Parallelism
from zerokit.training.formats import detect_format

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import GenerationConfig, PreTrainedTokenizerBase, TrainingArguments

    from zerokit.data.content import FileContent
    from zerokit.distributed.group import RankGroup
    from zerokit.generation.prompts import Prompt
    from zerokit.recipe import LoadedRecipe
    from zerokit.recipe.model import Format
    from zerokit.recipe.training_keys import OwnKeys
    from zerokit.resolving.contradictions import Resolved
    from zerokit.training.datasets import Examples, Places
    from zerokit.training.examples import Encoder
    from zerokit.training.folder import OutputFolder
    from zerokit.training.identity import Identity
    from zerokit.training.model import PreparedModel
    from zerokit.training.packing import Padding
    from zerokit.training.peft.keys import PeftSettings
    from zerokit.training.streaming import Stream
    from zerokit.training.tasks.task import Task


@dataclass
class RunContext:
    """A run, filled by the steps of :mod:`zerokit.training.prepare`."""

    group: RankGroup
    loaded: LoadedRecipe
    force: bool = False
    """Whether to replace a model that an earlier run saved in the output folder."""
    trust_checkpoint: bool = False
    """Whether pickles of the checkpoint to resume from may load any class."""
    verify: bool = True
    """Whether to compare the checksums of that checkpoint."""

    versions: dict[str, str] = field(init=False)
    """Versions of packages at the start: the folder may change while the run trains."""
    git_commit: str | None = field(init=False)
    """None outside of a repository, and on other ranks than 0."""
    resolved: Resolved = field(init=False)
    resume: Path | None = field(init=False)
    """The checkpoint-N to resume from."""
    own: OwnKeys = field(init=False)
    """Keys of the recipe's training section that only zerokit reads."""
    output: OutputFolder = field(init=False)
    adapter: PeftSettings | None = field(init=False)
    """None if all parameters are trained."""
    folder: Path | None = field(init=False)
    """The checkpoint to start from; None from scratch."""
    contents: dict[Path, FileContent] = field(init=False)
    """Digests of the data files."""
    examples: Examples = field(init=False)
    """Training examples as they are in the data files."""
    held_out_examples: Examples | None = field(init=False)
    task: Task = field(init=False)
    tokenizer: PreTrainedTokenizerBase = field(init=False)
    model: PreparedModel = field(init=False)
    tiled_mlps: tuple[str, ...] = field(init=False)
    """Paths of the modules to run in tiles of tokens (`ModelShape.mlp_modules`)."""
    generation: GenerationConfig | None = field(init=False)
    """None for a model that generates no text."""
    stream: Stream | None = field(init=False)
    """None if the data are not streamed."""
    train: Dataset = field(init=False)
    """Tokenized; of a stream, the first buffer."""
    places: Places = field(init=False)
    """File and line of the training examples."""
    held_out: Dataset | None = field(init=False)
    """Tokenized."""
    sample_prompts: list[Prompt] = field(init=False)
    """Prompts to complete at each evaluation; empty without `training.sample_prompts`."""
    args: TrainingArguments = field(init=False)
    identity: Identity = field(init=False)
    padding: Padding | None = field(init=False)
    """None for a task that pads its batches as they come."""

    def encoder(self, examples: Examples) -> tuple[Format, Encoder]:
        """The format of examples, and their encoder. DataError if no format of the task has their columns."""
        data = self.loaded.recipe.data
        format_ = detect_format(examples.columns, data, self.task.formats, where=examples.where)
        return format_, self.task.encoder(self.tokenizer, format_, data.columns)

    @property
    def group_place(self) -> GroupPlace:
        """The place of this rank among groups of ranks that read the same batches."""
        parallel, ranks = self.loaded.recipe.parallel, self.group.ranks
        return GroupPlace(ranks.rank, ranks.world_size, Parallelism(parallel.sequence, parallel.tensor))

    @property
    def zero_stage(self) -> int:
        return int(self.resolved.ds_config["zero_optimization"].get("stage", 0))

    @property
    def precision(self) -> str:
        """``bf16``, ``fp16`` or ``fp32``."""
        return next((name for name in ("bf16", "fp16") if self.resolved.training[name]), "fp32")

    @property
    def output_dir(self) -> Path:
        """Where the model and the reports go."""
        return self.output.path
