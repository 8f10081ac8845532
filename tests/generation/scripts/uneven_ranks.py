"""Decode on two ranks under ZeRO-3: rank 1 has less to do, and other experts than rank 0."""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from zerokit.distributed.leaf_modules import set_leaf_modules
from zerokit.generation.decoding import Decoder, Decoding
from zerokit.generation.requests import Decoded, OwnRequests, Request

ENDS = 8
"""Tokens below end a completion."""


class Experts(torch.nn.ModuleList):
    """Calls the expert that the first number of a token names, and no other."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """As an MLP."""
        chosen = (hidden[..., 0] > 0).long()
        made = torch.zeros_like(hidden)
        for number in chosen.unique().tolist():
            made[chosen == number] = self[number](hidden[chosen == number])
        return made


def main() -> None:
    """Write what this rank decodes, and what one process would."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=60, **sizes)).eval()
    for layer in model.model.layers:
        layer.mlp = Experts([layer.mlp, type(layer.mlp)(model.config)])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.generation_config = GenerationConfig()
    beams = {"num_beams": 2} if "beams" in sys.argv else {}
    config = GenerationConfig(
        max_new_tokens=12,
        eos_token_id=list(range(8)),
        pad_token_id=0,
        do_sample=False,
        renormalize_logits=True,
        **beams,
    )
    prompts = [[9, 10, 11], [12], [13, 14, 15, 16, 17, 18], [19, 20], [21], [22, 23, 24], [25]]
    requests = [Request(index, prompt) for index, prompt in enumerate(prompts)]

    def run(model: torch.nn.Module, requests: list[Request], synced: bool) -> dict[int, list[list[int]]]:
        found: dict[int, list[list[int]]] = {}

        def done(decoded: Decoded) -> None:
            ends = [next((at for at, token in enumerate(made) if token < ENDS), 12) for made in decoded.completions]
            found[decoded.index] = [made[: end + 1] for made, end in zip(decoded.completions, ends, strict=True)]

        decoder = Decoder(
            model,
            None,  # type: ignore[arg-type]
            Decoding(config, batch_size=2),
            device=torch.device("cpu"),
            synced=synced,
        )
        decoder.run(OwnRequests(requests), done)
        return found

    alone = run(model, requests, synced=False)
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    set_leaf_modules(model)
    engine, *_ = deepspeed.initialize(
        model=model,
        config={"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "train_batch_size": 2},
    )
    own = requests[:1] if rank else requests[1:]
    found = run(engine.module, own, synced=True)
    expected = {request.index: alone[request.index] for request in own}
    Path(f"rank{rank}.json").write_text(json.dumps([[*found.items()], [*expected.items()]]), encoding="utf-8")


main()
