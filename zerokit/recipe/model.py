"""A run described in one YAML file: the sections of a recipe as pydantic models.

Keys that belong to another library are passed through under that library's own names
(``training`` to transformers' ``TrainingArguments``, ``generation`` to ``GenerationConfig``, ``peft``
to peft's config of its method) and are checked against it where it is imported, in ``zerokit.training``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from zerokit.tables import table_of

PYTHON_REFERENCE = "builtin:python-reference"
"""A text data set that is on every machine: Python's language reference."""

PYTHON_QUESTIONS = "builtin:python-questions"
"""A prompt/completion data set made from the same reference."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, protected_namespaces=()
    )


Format = Literal[
    "text",
    "prompt_completion",
    "messages",
    "alpaca",
    "sharegpt",
    "text_label",
    "text_pair_label",
    "tokens_tags",
    "preference",
]
"""What an example can be."""


class BpeTraining(Section):
    """A byte-level BPE tokenizer, trained on the training split."""

    vocab_size: Annotated[int, Field(ge=260)]
    """Entries in the vocabulary: 256 bytes, the special tokens, and the merges learned."""


class TokenizerTraining(Section):
    """A tokenizer made for this run."""

    train_bpe: BpeTraining
    """Train byte-level BPE."""


class ModelSection(Section):
    """What is trained: a checkpoint, or an architecture from scratch."""

    path: str | None = None
    """A Hub id or a local folder with a checkpoint to start from."""
    revision: str | None = None
    """Branch, tag or commit of a Hub model."""
    from_config: dict[str, Any] | str | None = None
    """Start from scratch: keys of the architecture's config (``model_type`` first), or a config.json or its folder."""
    tokenizer: str | TokenizerTraining | None = None
    """A Hub id or folder, or one to train; by default the model's own."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Of the weights as loaded; by default that of the run's precision, to which DeepSpeed casts them."""
    attn_implementation: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2``, ...; by default transformers chooses."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint."""

    @model_validator(mode="after")
    def _one_origin(self) -> ModelSection:
        if (self.path is None) == (self.from_config is None):
            raise ValueError(
                "needs either 'path' (start from a checkpoint) or 'from_config' (from scratch), not both; "
                "on the command line, '--model PATH' replaces the whole section"
            )
        if self.from_config is not None and self.tokenizer is None:
            raise ValueError("needs 'tokenizer' with 'from_config'")
        return self


class Columns(Section):
    """Names of the columns, where they are not the usual ones."""

    text: str = "text"
    prompt: str = "prompt"
    completion: str = "completion"
    instruction: str = "instruction"
    input: str = "input"
    output: str = "output"
    messages: str = "messages"
    conversations: str = "conversations"
    system: str = "system"
    history: str = "history"
    text_pair: str = "text_pair"
    label: str = "label"
    tokens: str = "tokens"
    tags: str = "tags"
    chosen: str = "chosen"
    rejected: str = "rejected"


class DataSection(Section):
    """What it is trained on."""

    train: str | Annotated[list[str], Field(min_length=1)]
    """Local files (.jsonl .json .csv .tsv .parquet .arrow .txt), a pattern of their names, a folder, a Hub
    data set, or a built-in one."""
    eval: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Held-out data; by default `eval_fraction` of the training data is set aside."""
    eval_fraction: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.05
    """Share of the training examples held out when there is no `eval`; 0 for no evaluation."""
    format: Literal["auto"] | Format = "auto"
    """What an example is; ``auto`` decides by the columns that are there."""
    columns: Columns = Columns()
    """Names of the columns."""
    subset: str | None = None
    """Configuration name of a Hub data set."""
    train_split: str = "train"
    """Split to train on, of a Hub data set or of a folder with files of several."""
    eval_split: str | None = None
    """Split to evaluate on, of a Hub data set or of a folder with files of several."""
    max_examples: Annotated[int, Field(ge=1)] | None = None
    """Use only the first so many training examples."""
    streaming: bool = False
    """Read the training examples while training on them, and keep none: for more of them than disks or
    memory should hold. `training.max_steps` says how long."""
    buffer_size: Annotated[int, Field(ge=1)] = 10_000
    """With `streaming`: examples that are shuffled, and packed, with each other."""

    @model_validator(mode="after")
    def _buffer_of_a_stream(self) -> DataSection:
        if "buffer_size" in self.model_fields_set and not self.streaming:
            raise ValueError("'buffer_size' says nothing without 'streaming: true'")
        return self


TaskType = Literal["causal_lm", "sequence_classification", "token_classification", "masked_lm", "seq2seq", "dpo"]


_TABLE = table_of(__file__)
TASK_SYNONYMS: dict[str, str] = _TABLE["task_synonyms"]
"""What other tools call them."""


def task_called(name: object) -> str | None:
    """The task that a name means, as it is written here or called elsewhere; None for no such name."""
    plain = str(name).lower().replace("-", "_")
    return plain if plain in get_args(TaskType) else TASK_SYNONYMS.get(plain)


def task_hint(name: object) -> str:
    """What to write in the place of a task that is none."""
    known = task_called(name)
    return f"Write {known}" if known else f"Choose one of: {', '.join(get_args(TaskType))}"


class TaskSection(Section):
    """How examples become tokens and a loss."""

    type: TaskType = "causal_lm"
    """``causal_lm``: next-token prediction, on texts, completions and chats. ``sequence_classification``: a
    label of a text. ``token_classification``: a tag of each word. ``masked_lm``: masked tokens. ``seq2seq``:
    an answer, by an encoder and a decoder. ``dpo``: the better of two answers."""
    seq_len: Annotated[int, Field(ge=8)] = 1024
    """Longest sequence, in tokens; longer examples are cut."""
    packing: bool | None = None
    """Sequences of several documents, which do not see each other; by default of texts alone, since then a
    batch has more of them. Of masked_lm, and of models that cannot keep them apart: texts joined and cut."""
    padding_free: bool | None = None
    """Lay the examples of a micro batch in the fewest rows, and spread those of a step evenly; by default
    where the model keeps them apart, which changes no loss."""
    loss_on: Literal["completion", "all"] = "completion"
    """Prompt/completion and chat data: train on the answers alone, or on every token."""
    chunked_loss: bool = True
    """Of causal_lm and dpo: make the logits of a large vocabulary a chunk of tokens at a time, never all at
    once."""
    mask_probability: Annotated[float, Field(gt=0, lt=1, strict=False)] = 0.15
    """Of masked_lm: the share of tokens to be predicted."""
    whole_words: bool = False
    """Of masked_lm: mask all tokens of a word, or none."""
    target_len: Annotated[int, Field(ge=2)] = 128
    """Of seq2seq: the longest answer, in tokens. Also of causal_lm: of those that are generated."""
    predict_with_generate: bool | None = None
    """Of seq2seq and causal_lm: generate the answers to held-out data at each evaluation, and compare them; by
    default of seq2seq alone."""
    predict_examples: Annotated[int, Field(ge=1)] | None = None
    """Held-out examples to generate answers for, in whole batches of all ranks; by default all."""
    beta: Annotated[float, Field(gt=0, strict=False)] = 0.1
    """Of dpo: how much a step away from the untrained model costs."""

    @property
    def generates_answers(self) -> bool:
        """Whether evaluations generate answers."""
        default = self.type == "seq2seq"
        return default if self.predict_with_generate is None else self.predict_with_generate

    @model_validator(mode="after")
    def _keys_of_its_type(self) -> TaskSection:
        for key in self.model_fields_set & KEYS_OF.keys():
            if self.type not in KEYS_OF[key]:
                owners = " and ".join(KEYS_OF[key])
                raise ValueError(f"'{key}' says nothing to {self.type}: it is of {owners}")
        return self


KEYS_OF: dict[str, tuple[TaskType, ...]] = {key: tuple(of) for key, of in _TABLE["keys_of_tasks"].items()}
"""Keys of the section that not every task has, with those that have it."""


class ParallelSection(Section):
    """GPUs that share their sequences; what remains of all GPUs is data parallelism."""

    sequence: Annotated[int, Field(ge=1)] = 1
    """GPUs that divide the tokens of each sequence (DeepSpeed's Ulysses); needs ZeRO-3."""
    tensor: Annotated[int, Field(ge=1)] = 1
    """GPUs that divide each layer (DeepSpeed's AutoTP)."""

    @model_validator(mode="after")
    def _one_kind(self) -> ParallelSection:
        if self.sequence > 1 and self.tensor > 1:
            raise ValueError("sequence and tensor do not go together: AutoTP replaces the groups; remove one of them")
        return self


PeftType = Literal["lora", "qlora", "ia3", "p_tuning", "prefix_tuning", "prompt_tuning"]
"""What can be `peft.type`; ``lora`` where the section does not say."""


class Recipe(Section):
    """One run."""

    model: ModelSection
    data: DataSection
    task: TaskSection = TaskSection()
    precision: Literal["fp32", "fp16", "bf16", "bf16-true"] | None = None
    """What it computes in, for `training` and `deepspeed` alike. ``bf16-true`` keeps master weights,
    gradients and the optimizer's states in bf16, too. By default what either says, or the machine's best."""
    matmul_precision: Literal["highest", "high", "medium"] | None = None
    """Of fp32 matmuls, as ``torch.set_float32_matmul_precision`` takes it; by default ``highest``."""
    peft: dict[str, Any] | None = None
    """Trains an adapter: `type` names the method, and its other keys are those of peft's config of it; absent
    trains all parameters."""
    training: dict[str, Any] = {}
    """Keys of transformers' ``TrainingArguments``; `on_spike`: ``note`` (the default) or ``stop``, where the
    loss leaps; `bind_cores`: whether ranks whose optimizer is offloaded keep to cores of their own (true);
    `tiled_mlp`: run the MLP of each layer on parts of a long sequence (false); `activation_offloading`: keep the
    inputs of checkpointed layers in host memory (false); `sample_prompts`: a file of prompts whose completions
    each evaluation prints."""
    parallel: Annotated[ParallelSection, BeforeValidator(lambda one: {} if one is None else one)] = ParallelSection()
    deepspeed: str | dict[str, Any] | None = None
    """A ds_config: a path, or inline; absent is zerokit's ZeRO-2 default."""
    generation: dict[str, Any] = {}
    """Keys of transformers' ``GenerationConfig``, saved with the checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _model_shorthand(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("model"), str):
            return {**data, "model": {"path": data["model"]}}
        return data
