"""peft's adapters: LoRA, DoRA, IA3, and learned tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from zerokit.choices import LearnedTokensMethod
from zerokit.errors import ZerokitError
from zerokit.memory.model_states import check_positive
from zerokit.memory.term import kinds_of
from zerokit.models import ModelShape

KINDS = kinds_of(__file__)
MERGED_WEIGHT = KINDS.MERGED_WEIGHT

Modules = str | tuple[str, ...]
"""peft's `target_modules`: ends of module names, a pattern of whole names, or ``all-linear``.

`zerokit train` leaves out layers that no adapter supports (training/peft/adapter.py), and reports that the
estimate counts more of them.
"""

AdapterPart = Literal["A", "dropped A", "B", "magnitude", "outputs", "inputs"]
"""LoRA has A and B; "dropped A" is an A whose input goes through dropout. DoRA also has a magnitude per
output. IA3 has factors of outputs or inputs."""

Part = tuple[str, AdapterPart, int]
"""A part of an adapter on one module: peft's module name, the kind of part, and its elements."""


@cache
def _pefts() -> Mapping[str, Mapping[str, Modules]]:
    """peft's default target modules, by use and by model type.

    Source: peft utils/constants.py.
    """
    read = json.loads(Path(__file__).with_name("peft_modules.json").read_text(encoding="utf-8"))
    return {
        use: {kind: names if isinstance(names, str) else tuple(names) for kind, names in by_type.items()}
        for use, by_type in read.items()
    }


def is_target(module: str, targets: Modules) -> bool:
    """Whether a linear layer matches `targets`.

    Source: peft tuners/tuners_utils.py check_target_module_exists.
    """
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, module) is not None
    return "all-linear" in targets or any(f".{module}".endswith(f".{target}") for target in targets)


@dataclass(frozen=True)
class Lora:
    """LoRA adapters: matrices A (rank x inputs) and B (outputs x rank) for each target module."""

    rank: int
    target_modules: Modules | None = None
    """None: peft's default for the model type, or all linear layers if it has none."""
    dora: bool = False
    """DoRA: a learned magnitude for each row of the weight."""
    dropout: bool = False
    """Inputs of the adapters go through dropout."""

    def __post_init__(self) -> None:
        check_positive(rank=self.rank)
        if self.target_modules in ((), ""):
            raise ZerokitError("LoRA without target modules", where="lora", hint="Name at least one")

    @property
    def name(self) -> str:
        """The name in tables and headings."""
        return f"{'DoRA' if self.dora else 'LoRA'} of rank {self.rank}"

    def of(self, model_type: str) -> Lora:
        """The same adapter with the default targets of a model type."""
        if self.target_modules is not None:
            return self
        return replace(self, target_modules=_pefts()["lora"].get(model_type, "all-linear"))

    def parts(self, module: str, inputs: int, outputs: int) -> Iterator[Part]:
        """The parts that it adds to a linear layer, in peft's order.

        Source: peft tuners/lora/layer.py update_layer, variants.py DoraLinearVariant.
        """
        yield "lora_A", "dropped A" if self.dropout else "A", self.rank * inputs
        yield "lora_B", "B", self.rank * outputs
        if self.dora:
            yield "lora_magnitude_vector", "magnitude", outputs


@dataclass(frozen=True)
class Ia3:
    """IA3 adapters: a factor for each output of a target, or for each input of a feed-forward target."""

    target_modules: Modules | None = None
    """None: the same default as for LoRA."""
    feedforward_modules: Modules | None = None
    """Modules whose inputs are multiplied. None: peft's default for the model type, or none."""

    def __post_init__(self) -> None:
        if self.target_modules in ((), ""):
            raise ZerokitError("IA3 without target modules", where="ia3", hint="Name at least one")

    @property
    def name(self) -> str:
        """The name in tables and headings."""
        return "IA3"

    def of(self, model_type: str) -> Ia3:
        """The same adapter with the default targets and feed-forward modules of a model type."""
        targets, feedforward = self.target_modules, self.feedforward_modules
        return Ia3(
            _pefts()["ia3"].get(model_type, "all-linear") if targets is None else targets,
            _pefts()["feedforward"].get(model_type, ()) if feedforward is None else feedforward,
        )

    def parts(self, module: str, inputs: int, outputs: int) -> Iterator[Part]:
        """The part that it adds to a linear layer.

        Source: peft tuners/ia3/layer.py update_layer, model.py _check_target_module_feedforward.
        """
        names = self.feedforward_modules or ()
        if re.fullmatch(names, module) if isinstance(names, str) else module.endswith(names):
            yield "ia3_l", "inputs", inputs
        else:
            yield "ia3_l", "outputs", outputs


@dataclass(frozen=True)
class LearnedTokens:
    """Learned tokens before each sequence (prompt tuning, prefix tuning, p-tuning); the model is frozen."""

    count: int
    num_parameters: int
    """Trained parameters."""
    cached: bool = False
    """The tokens are keys and values in the cache of each layer, not embeddings that go through all layers.
    """

    def __post_init__(self) -> None:
        check_positive(count=self.count, num_parameters=self.num_parameters)

    @classmethod
    def of(cls, method: LearnedTokensMethod, count: int, model: ModelShape | int) -> LearnedTokens:
        """The tokens that peft makes by default for a model.

        Source: peft tuners/prompt_tuning, p_tuning (an MLP of three layers) and prefix_tuning, model.py.

        Raises:
            ZerokitError: the model has no layers and heads.
        """
        hidden = None if isinstance(model, int) else model.hidden_size
        layers = None if isinstance(model, int) else model.num_hidden_layers
        heads = None if isinstance(model, int) else model.num_attention_heads
        if isinstance(model, int) or hidden is None or layers is None or heads is None:
            raise ZerokitError(
                "learned tokens need a model with layers and heads", where="--peft", hint="Name such a model"
            )
        if method == "prefix_tuning":
            width = (model.num_key_value_heads or heads) * (model.head_dim or hidden // heads)
            return cls(count, 2 * count * layers * width, cached=True)
        network = 3 * (hidden * hidden + hidden) if method == "p_tuning" else 0
        # peft's num_transformer_submodules is 2 for the task SEQ_2_SEQ_LM; zerokit uses 2 for every
        # encoder-decoder.
        sequences = 2 if model.is_encoder_decoder else 1
        return cls(count, sequences * count * hidden + network)
