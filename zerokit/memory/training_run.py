"""A training run as far as its memory depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from zerokit.choices import Attention, ChunkedLoss, OptimizerKind, Target
from zerokit.config import DeepSpeedConfig
from zerokit.errors import ZerokitError, check_choice
from zerokit.hardware.cluster import DATA_PARALLEL, Cluster, Parallelism
from zerokit.memory.adapters import Ia3, LearnedTokens, Lora
from zerokit.memory.model_states import check_positive
from zerokit.models import ModelShape
from zerokit.models.parallelism import DividedModel, parallelism_misfit


@dataclass(frozen=True)
class Generation:
    """Generation with a KV cache, as in an evaluation during training."""

    batch_size: int
    seq_len: int
    """Tokens of prompt and answer together."""

    def __post_init__(self) -> None:
        check_positive(batch_size=self.batch_size, seq_len=self.seq_len)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What is trained, on how many GPUs, and how: everything but the ds_config."""

    model: ModelShape | int
    """A shape, or a bare number of parameters: then only model states and buffers are counted."""
    cluster: Cluster
    parallelism: Parallelism = DATA_PARALLEL
    """GPUs that share their sequences; the others are data-parallel ranks."""
    micro_batch_size: int | None = None
    """Sequences per GPU and forward pass; None: the ds_config's, else 1."""
    eval_batch_size: int | None = None
    """Sequences per GPU and forward pass of an evaluation during training; None: no evaluation."""
    seq_len: int | None = None
    """Tokens per sequence; None: activations are not counted."""
    gradient_accumulation_steps: int | None = None
    """Forward passes per optimizer step; None: the ds_config's, else 1."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes activations."""
    attention: Attention | None = None
    """transformers' `attn_implementation`; None: its default for the model."""
    optimizer: OptimizerKind | None = None
    """The optimizer that the script makes; None: the ds_config's, else the default of the target."""
    lora: Lora | None = None
    """LoRA or DoRA adapters, trained in place of all parameters."""
    ia3: Ia3 | None = None
    """IA3 adapters, trained in place of all parameters."""
    learned_tokens: LearnedTokens | None = None
    """Tokens before each sequence, trained in place of all parameters."""
    load_in_4bit: bool = False
    """bitsandbytes keeps the weights of linear layers in 4 bits (QLoRA)."""
    double_quant: bool = False
    """The constants of 4-bit weights are quantized too (`bnb_4bit_use_double_quant`)."""
    num_trainable_parameters: int | None = None
    """For frozen models without LoRA; None: every parameter that the model trains."""
    frozen_modules: tuple[str, ...] = ()
    """Prefixes of parameter names that are not trained."""
    chunked_loss: ChunkedLoss | None = None
    """The loss that makes logits in chunks; None: all logits at once."""
    autocast: bool = False
    """Without DeepSpeed: weights in fp32, computed in 16 bits under torch.autocast."""
    packing: bool = False
    """Sequences hold several documents. Attention keeps them apart by a mask; flash attention needs none."""
    generation: Generation | None = None
    """What an evaluation during training generates."""
    tiled_mlp: bool = False
    """The MLP of each layer runs on one part of the tokens after another (DeepSpeed's TiledMLP)."""
    activation_offloading: bool = False
    """Inputs of checkpointed layers wait in host memory for the backward pass."""
    target: Target = "trainer"
    """The program that hands the config to DeepSpeed and fills "auto"."""
    loads_full_copy_per_rank: bool | None = None
    """Every rank builds the whole model on the host before ZeRO partitions it. None: below stage 3."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun(RunOptions):
    """A run with its ds_config, which has no "auto" left.

    Raises:
        ZerokitError: a size is not positive, a name does not exist, or two settings exclude each other.
    """

    ds_config: DeepSpeedConfig
    """Without DeepSpeed only its precision counts."""
    without_deepspeed: bool = False
    """Plain torch: DistributedDataParallel on several GPUs."""
    micro_batch_is_default: bool = False
    """Whether `micro_batch_size` is the Trainer's default; only changes the heading."""
    notes: tuple[str, ...] = ()
    """What was assumed when the run was made, one sentence each; only printed."""
    rank: int | None = None
    """The rank to estimate; None: the rank with the fullest GPU. Ranks differ under stages 1 and 2 only."""

    def __post_init__(self) -> None:
        sizes = {
            "micro_batch_size": self.micro_batch_size,
            "eval_batch_size": self.eval_batch_size,
            "seq_len": self.seq_len,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "num_trainable_parameters": self.num_trainable_parameters,
        }
        check_positive(**{name: size for name, size in sizes.items() if size is not None})
        if self.attention is not None:
            check_choice("attention", self.attention, get_args(Attention))
        if self.chunked_loss is not None:
            check_choice("chunked_loss", self.chunked_loss, get_args(ChunkedLoss))
        check_choice("optimizer", self.optimizer or "adamw", get_args(OptimizerKind))
        if self.load_in_4bit and self.lora is None:
            # peft's IA3 with 4-bit weights computes in fp32 (tuners/ia3/bnb.py), which attention and the
            # output matrix of a 16-bit model do not accept.
            raise ZerokitError(
                "weights in 4 bits cannot be trained, and only LoRA adapters are supported with them",
                where="--load-in-4bit",
                hint="Add LoRA with --lora-rank",
            )
        if self.load_in_4bit and self.lora is not None and self.lora.dora and self.lora.dropout:
            raise ZerokitError(
                "DoRA with dropout keeps each unpacked 4-bit weight, which is not counted",
                where="--load-in-4bit",
                hint="Set lora_dropout to 0",
            )
        if sum(one is not None for one in (self.lora, self.ia3, self.learned_tokens)) > 1:
            raise ZerokitError("two adapters are given", where="--peft", hint="Give one of them")
        if isinstance(self.model, int):
            check_positive(model=self.model)
        if self.activation_offloading and not self.gradient_checkpointing:
            raise ZerokitError(
                "only inputs of checkpointed layers are offloaded",
                where="--activation-offloading",
                hint="Set --gradient-checkpointing",
            )
        if self.tiled_mlp and not isinstance(self.model, int) and not self.model.mlp_modules:
            raise ZerokitError(
                f"no module of {self.model.model_type} is the MLP of a layer", where="--tiled-mlp", hint="Leave it out"
            )
        self.cluster.check_rank(self.rank or 0)
        object.__setattr__(self, "parallelism", self._parallelism())
        if self.autocast and not self.without_deepspeed:
            raise ZerokitError(
                "DeepSpeed has autocast of its own (torch_autocast), which is not estimated",
                where="--autocast",
                hint="Give it with --zero-stage none",
            )

    def _parallelism(self) -> Parallelism:
        """The sizes of the run and of the ds_config together.

        Raises:
            ZerokitError: they differ, or DeepSpeed cannot divide the run that way.
        """
        config = self.ds_config
        written = Parallelism(config.sequence_parallel_size or 1, config.tensor_parallel.autotp_size or 1)
        given = self.parallelism
        for option, one, other in (
            ("--sequence-parallel", given.sequence, written.sequence),
            ("--tensor-parallel", given.tensor, written.tensor),
        ):
            if 1 not in (one, other) and one != other:
                raise ZerokitError(f"is {one}, and the ds_config has {other}", where=option, hint="Leave out one")
        found = Parallelism(max(given.sequence, written.sequence), max(given.tensor, written.tensor))
        model = None if isinstance(self.model, int) else DividedModel.of(self.model, self.attention)
        misfit = parallelism_misfit(
            found,
            # A script that hands its config to DeepSpeed may have a loss that is right below ZeRO-3.
            zero_stage=None if self.target == "deepspeed" else self.zero_stage,
            num_gpus=self.world_size,
            model=model,
            has_adapter=(self.lora or self.ia3 or self.learned_tokens) is not None,
        )
        if found.group_size > 1 and self.without_deepspeed:
            where = "--sequence-parallel" if found.sequence > 1 else "--tensor-parallel"
            raise ZerokitError("is DeepSpeed's", where=where, hint="Choose a ZeRO stage with --zero-stage")
        if misfit is not None:
            raise misfit
        if found.tensor > 1 and model is None:
            message = "needs a model, not a number of parameters"
            raise ZerokitError(message, where="--tensor-parallel", hint="Name a model")
        return found

    @cached_property
    def adapter(self) -> Lora | Ia3 | None:
        """LoRA or IA3 with its target modules."""
        adapter = self.lora or self.ia3
        if adapter is None or isinstance(self.model, int):
            return adapter
        return adapter.of(self.model.model_type)

    @property
    def world_size(self) -> int:
        """All ranks, one GPU each."""
        return self.cluster.world_size

    @property
    def zero_ranks(self) -> int:
        """Ranks that share what ZeRO partitions: those of sequence parallelism hold different parts of it.

        Source: deepspeed/utils/groups.py `_get_sequence_data_parallel_group`.
        """
        return self.world_size // self.parallelism.tensor

    @property
    def divides_tied_head(self) -> bool:
        """Whether tensor parallelism divides an output matrix that is the embedding: by default it does."""
        tied = not isinstance(self.model, int) and self.model.tie_word_embeddings
        return tied and self.ds_config.tensor_parallel.vocab_parallel_lm_head is not False

    @property
    def zero_stage(self) -> int:
        """0 to 3."""
        stage = self.ds_config.zero_optimization.stage
        assert isinstance(stage, int)
        return stage

    @property
    def sharding(self) -> str:
        """``"ZeRO-2"``, ``"without DeepSpeed"``."""
        return "without DeepSpeed" if self.without_deepspeed else f"ZeRO-{self.zero_stage}"

    @property
    def attention_used(self) -> Attention:
        """The requested attention, else transformers' default: sdpa if the model's class has it.

        Source: transformers `PreTrainedModel.get_correct_attn_implementation`.
        """
        return self.attention or ("sdpa" if isinstance(self.model, int) or self.model.has_sdpa else "eager")

    @property
    def attention_reason(self) -> str:
        if self.attention is not None:
            return "requested"
        if isinstance(self.model, int) or self.model.has_sdpa:
            return "transformers' default"
        return f"transformers has no sdpa for {self.model.model_type}"
