"""What is trained beside a frozen model, by the methods of peft."""

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
from zerokit.memory.term import TermKind
from zerokit.models import ModelShape

MADE_WEIGHT = TermKind(
    "what DoRA makes of a weight, to measure it",
    "buffers",
    unit="e",
    count="sizes",
    source="peft tuners/lora/dora.py DoraLinearLayer.forward",
    certainty="modelled",
)

Modules = str | tuple[str, ...]
"""As peft takes them: what names end in, or a pattern of whole names; ``all-linear``: every linear layer.

``zerokit train`` leaves out what no adapter can sit beside (training/peft/adapter.py); of a model with such
layers it says that the estimate knows of another number."""

AdapterPart = Literal["A", "dropped A", "B", "magnitude", "outputs", "inputs"]
"""Of LoRA, A and B, A of an input that goes through dropout or not; of DoRA, also the lengths of the weight's
rows; of IA3, factors of outputs or inputs."""

Part = tuple[str, AdapterPart, int]
"""Of an adapter on one module: peft's name of its own module, what it is, and its elements."""


@cache
def _pefts() -> Mapping[str, Mapping[str, Modules]]:
    """Modules by what they are for, and by the type of the model.

    Source: peft utils/constants.py.
    """
    read = json.loads(Path(__file__).with_name("peft_modules.json").read_text(encoding="utf-8"))
    return {
        use: {kind: names if isinstance(names, str) else tuple(names) for kind, names in by_type.items()}
        for use, by_type in read.items()
    }


def is_target(module: str, targets: Modules) -> bool:
    """Whether a linear layer is one of them.

    Source: peft tuners/tuners_utils.py check_target_module_exists.
    """
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, module) is not None
    return "all-linear" in targets or any(f".{module}".endswith(f".{target}") for target in targets)


@dataclass(frozen=True)
class Lora:
    """LoRA adapters of peft: two matrices A (rank x inputs) and B (outputs x rank) beside each target."""

    rank: int
    target_modules: Modules | None = None
    """None: peft's of the model's type, and of a type that it does not know all, as ``zerokit train``."""
    dora: bool = False
    """With DoRA's length of each of the weight's rows."""
    dropout: bool = False
    """Their inputs go through dropout."""

    def __post_init__(self) -> None:
        check_positive(rank=self.rank)
        if self.target_modules in ((), ""):
            raise ZerokitError("LoRA without target modules", where="lora", hint="Name at least one")

    @property
    def name(self) -> str:
        """As people say it."""
        return f"{'DoRA' if self.dora else 'LoRA'} of rank {self.rank}"

    def of(self, model_type: str) -> Lora:
        """With its targets, of a model of that type."""
        if self.target_modules is not None:
            return self
        return replace(self, target_modules=_pefts()["lora"].get(model_type, "all-linear"))

    def parts(self, module: str, inputs: int, outputs: int) -> Iterator[Part]:
        """What it adds to a linear layer, in peft's order.

        Source: peft tuners/lora/layer.py update_layer, variants.py DoraLinearVariant.
        """
        yield "lora_A", "dropped A" if self.dropout else "A", self.rank * inputs
        yield "lora_B", "B", self.rank * outputs
        if self.dora:
            yield "lora_magnitude_vector", "magnitude", outputs


@dataclass(frozen=True)
class Ia3:
    """IA3 adapters of peft: a factor for each output of a target, or for each input of a feed-forward one."""

    target_modules: Modules | None = None
    """None: as of LoRA."""
    feedforward_modules: Modules | None = None
    """Those whose inputs are multiplied. None: peft's of the model's type, and of others none, as ``zerokit
    train``."""

    def __post_init__(self) -> None:
        if self.target_modules in ((), ""):
            raise ZerokitError("IA3 without target modules", where="ia3", hint="Name at least one")

    @property
    def name(self) -> str:
        """As people say it."""
        return "IA3"

    def of(self, model_type: str) -> Ia3:
        """With its targets and those of them that are feed-forward, of a model of that type."""
        targets, feedforward = self.target_modules, self.feedforward_modules
        return Ia3(
            _pefts()["ia3"].get(model_type, "all-linear") if targets is None else targets,
            _pefts()["feedforward"].get(model_type, ()) if feedforward is None else feedforward,
        )

    def parts(self, module: str, inputs: int, outputs: int) -> Iterator[Part]:
        """What it adds to a linear layer.

        Source: peft tuners/ia3/layer.py update_layer, model.py _check_target_module_feedforward.
        """
        names = self.feedforward_modules or ()
        if re.fullmatch(names, module) if isinstance(names, str) else module.endswith(names):
            yield "ia3_l", "inputs", inputs
        else:
            yield "ia3_l", "outputs", outputs


@dataclass(frozen=True)
class LearnedTokens:
    """Tokens of peft's that are learned before each sequence, of a frozen model."""

    count: int
    num_parameters: int
    """All that is trained."""
    cached: bool = False
    """Keys and values of each layer, which lie in its cache; not embeddings, which go through all layers."""

    def __post_init__(self) -> None:
        check_positive(count=self.count, num_parameters=self.num_parameters)

    @classmethod
    def of(cls, method: LearnedTokensMethod, count: int, model: ModelShape | int) -> LearnedTokens:
        """As peft makes them where its config has no sizes.

        Source: peft tuners/prompt_tuning, p_tuning (an MLP of three layers) and prefix_tuning, model.py.

        Raises:
            ZerokitError: the model has no layers and heads to count by.
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
        # peft's num_transformer_submodules: 2 for the task SEQ_2_SEQ_LM, which is taken to be that of all
        # models with an encoder and a decoder.
        sequences = 2 if model.is_encoder_decoder else 1
        return cls(count, sequences * count * hidden + network)
