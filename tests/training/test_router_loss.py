"""The router loss of a mixture of experts: it counts once in a step, however the step is divided."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, TrainingArguments

from tests.training.test_trainer import zero_trainer
from zerokit.errors import RecipeError
from zerokit.memory import loss_chunks
from zerokit.recipe import load_recipe
from zerokit.recipe.model import TaskSection
from zerokit.training.chunked_loss import chunk_the_loss
from zerokit.training.examples import IGNORED
from zerokit.training.tasks import TASKS, task_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task

VOCABULARY = 320
_TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 1}
_SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"num_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2},
    **{"output_router_logits": True, "router_aux_loss_coef": 0.5},
    **_TOKENS,
}
_ALTERNATING = {
    **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    **{"mamba_d_state": 8, "mamba_dt_rank": 4},
}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "attn_layer_indices": [1]}
DECODERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "minimax")},
    **{name: {} for name in ("granitemoe", "ernie4_5_moe", "flex_olmo")},
    "gpt_oss": {"head_dim": 8},
    "jetmoe": {"aux_loss_coef": 0.5},
    "jamba": _ALTERNATING,
    "bamba": {**_MAMBA, "z_loss_coefficient": 0.1},  # a z-loss, which no output_router_logits switches
}
ROWS, BATCH = 7, 2


def decoder(model_type: str) -> PreTrainedModel:
    config = AutoConfig.for_model(model_type, **{**_SIZES, **DECODERS[model_type]})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-any-return]


def encoder_decoder() -> PreTrainedModel:
    widths = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_experts": 4}
    layers = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_sparse_step", "decoder_sparse_step"), 1)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
    router = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    config = AutoConfig.for_model("nllb-moe", vocab_size=VOCABULARY, **widths, **layers, **heads, **router, **_TOKENS)
    torch.manual_seed(0)
    return AutoModelForSeq2SeqLM.from_config(config).eval()  # type: ignore[no-any-return]


def examples() -> list[dict[str, Any]]:
    """Of unequal lengths, each with a prompt that is not trained on."""
    chance = torch.Generator().manual_seed(0)
    found = []
    for number in range(ROWS):
        input_ids = torch.randint(2, VOCABULARY, (5 + 3 * number,), generator=chance).tolist()
        prompt = 2 + number % 3
        found.append({"input_ids": input_ids, "labels": [IGNORED] * prompt + input_ids[prompt:]})
    return found


def task_for(type_: Any, model: PreTrainedModel, **section: Any) -> Task:
    words = ["--model", "x", "--data.train", "x", "--task.type", type_]
    task = task_of(TaskSection(type=type_, seq_len=64, **section))
    return task.for_model(model.config, load_recipe(None, words))


def trained(
    trainer: Any, batches: list[dict[str, Any]], *, ranks: int, across_ranks: bool = True
) -> tuple[float, torch.Tensor]:
    """The loss that is reported for a step, and its gradients.

    Rank r gets every `ranks`-th micro batch, and DeepSpeed takes the mean over the ranks.
    """
    trainer.accelerator = SimpleNamespace(num_processes=ranks)
    trainer.args.average_tokens_across_devices = across_ranks
    count = sum(trainer._task.num_targets(batch) for batch in batches)
    reported = 0.0
    for rank in range(ranks):
        own = batches[rank::ranks]
        if not across_ranks:
            count = sum(trainer._task.num_targets(batch) for batch in own)
        for batch in own:
            loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=count) / ranks
            loss.backward()
            reported += loss.item()
    return reported, gradients(trainer.model)


def gradients(model: PreTrainedModel) -> torch.Tensor:
    found = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    return torch.cat(found)


def plain_loop(model: PreTrainedModel, batches: list[dict[str, Any]], task: Task) -> Any:
    """The model's own mean loss of each micro batch, by its share of the tokens that are trained on."""
    reported, total = 0.0, sum(int(task.num_targets(batch)) for batch in batches)
    for batch in batches:
        loss = model(**batch).loss * (int(task.num_targets(batch)) / total)
        loss.backward()
        reported += loss.item()
    return reported, gradients(model)


def make_trainer(
    task: Task, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, **keys: Any
) -> Any:
    args = TrainingArguments(str(folder), report_to="none", use_cpu=True, remove_unused_columns=False, **keys)
    return zero_trainer(task, model, args, tokenizer, examples())


def micro_batches(task: Task, model: PreTrainedModel, tokenizer: Any) -> list[dict[str, Any]]:
    """All examples; the last one has a blank beside it, and the last batch blanks alone."""
    rows = [*examples(), *[task.blank()] * 3]
    collate = task.collator(tokenizer, model)
    return [dict(collate(rows[start : start + BATCH])) for start in range(0, len(rows) - BATCH + 1, BATCH)]


@pytest.mark.parametrize(("model_type", "chunked"), [*itertools.product(DECODERS, (False, True)), ("nllb-moe", False)])
def test_it_counts_once_a_step_for_any_accumulation_and_number_of_ranks(
    model_type: str, chunked: bool, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if chunked:
        monkeypatch.setattr(loss_chunks, "CHUNK_LOGITS", 4 * VOCABULARY)
    is_decoder = model_type in DECODERS
    model = decoder(model_type) if is_decoder else encoder_decoder()
    task = task_for("causal_lm" if is_decoder else "seq2seq", model)
    batches = micro_batches(task, model, tokenizer)
    assert task.num_targets(batches[-1]) == 0
    loss, gradient = plain_loop(copy.deepcopy(model), batches[:-1], task)
    trainer = make_trainer(task, model, tokenizer, tmp_path)
    if chunked:
        assert chunk_the_loss(trainer.model)
    for ranks in (1, 2, len(batches)):
        found, its = trained(trainer, batches, ranks=ranks)
        assert found == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(its, gradient, rtol=1e-4, atol=1e-6)


def test_a_z_loss_of_rows_without_padding_is_that_of_one_large_batch(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """It is linear in its tokens: nothing depends on how they lie in micro batches."""
    model = decoder("bamba")
    task = task_for("causal_lm", model)
    ids = torch.randint(2, VOCABULARY, (8, 16), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids.tolist()]
    collate = task.collator(tokenizer, model)
    trainer = make_trainer(task, model, tokenizer, tmp_path)
    losses = []
    for size in (8, 4, 2, 1):
        batches = [dict(collate(rows[start : start + size])) for start in range(0, 8, size)]
        losses.append(trained(trainer, batches, ranks=1)[0])
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)


def test_it_counts_once_where_each_rank_has_its_own_mean(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = decoder("mixtral")
    task = task_for("causal_lm", model)
    batches = micro_batches(task, model, tokenizer)[:3]
    trainer = make_trainer(task, model, tokenizer, tmp_path)
    expected = []
    for own in (batches[0::2], batches[1::2]):
        expected.append(plain_loop(model, own, task)[0])
    found, _ = trained(trainer, batches, ranks=2, across_ranks=False)
    assert found == pytest.approx(sum(expected) / 2, rel=1e-5)


@pytest.mark.parametrize("type_", TASKS)
def test_no_task_ignores_it(type_: str) -> None:
    """A task adds the router loss, as the other tests show, or refuses the model before training."""
    model = encoder_decoder() if type_ == "seq2seq" else decoder("mixtral")
    if type_ in ("causal_lm", "seq2seq"):
        assert task_for(type_, model).has_router_loss
        return
    with pytest.raises(RecipeError, match=f"sets output_router_logits, and {type_} adds no router loss"):
        task_for(type_, model)
    model.config.output_router_logits = False
    task_for(type_, model)


def auxiliary(output: Any) -> torch.Tensor:
    """The router losses that a model's output tells."""
    names = ("aux_loss", "encoder_aux_loss", "decoder_aux_loss")
    return 0.5 * sum(getattr(output, name, None) or 0.0 for name in names)


@pytest.mark.parametrize("type_", ["causal_lm", "seq2seq"])
def test_it_is_not_lost_where_labels_are_smoothed(
    type_: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """The Trainer's smoothing gives the model no labels, and then a model adds nothing."""
    shift = type_ == "causal_lm"
    model = decoder("mixtral") if shift else encoder_decoder()
    task = task_for(type_, model)
    batches = micro_batches(task, model, tokenizer)
    trainer = make_trainer(task, model, tokenizer, tmp_path, label_smoothing_factor=0.1)
    found, _ = trained(trainer, batches, ranks=2)
    total, count = 0.0, sum(int(task.num_targets(batch)) for batch in batches)
    for batch in batches[:-1]:
        with torch.no_grad():
            output = model(**batch)
        logits, labels = output.logits, batch["labels"]
        if shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        smoothed = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        total += float(smoothed + auxiliary(output)) * int(task.num_targets(batch)) / count
    assert found == pytest.approx(total, rel=1e-5)


def test_a_held_out_loss_weighs_it_as_training_does(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = decoder("mixtral")
    task = task_for("causal_lm", model)
    batches = micro_batches(task, model, tokenizer)
    trainer = make_trainer(task, model, tokenizer, tmp_path)
    found = trainer.evaluation_loop(batches, "held out").metrics["eval_loss"]
    assert found == pytest.approx(plain_loop(model, batches[:-1], task)[0], rel=1e-5)
