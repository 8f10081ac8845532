"""A loss whose logits are made in chunks: the same loss and gradients, in less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from zerokit.memory import loss_chunks
from zerokit.recipe.model import TaskSection
from zerokit.training import chunked_loss
from zerokit.training.chunked_loss import chunk_the_loss, row_sums, wants_chunked_loss
from zerokit.training.examples import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
}


def made(model_type: str, **keys: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SIZES, **keys}))
    return model.eval()


def with_lora(**keys: Any) -> PreTrainedModel:
    adapted = get_peft_model(made("llama"), LoraConfig(task_type="CAUSAL_LM", **keys))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return adapted


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "plain": lambda: made("llama"),
    "tied": lambda: made("llama", tie_word_embeddings=True),
    "capped": lambda: made("gemma2", head_dim=8, final_logit_softcapping=0.5),
    "scaled": lambda: made("cohere", logit_scale=0.5),
    "divided": lambda: made("granite", logits_scaling=4.0),
    "with a bias": lambda: made("phi", resid_pdrop=0.0),
    "adapted": lambda: with_lora(target_modules=["lm_head", "q_proj"]),
    "frozen": lambda: with_lora(target_modules=["q_proj"]),
    "saved whole": lambda: with_lora(target_modules=["q_proj"], modules_to_save=["lm_head"]),
}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_chunks, "CHUNK_LOGITS", 16 * SIZES["vocab_size"])


def batch(rows: int = 4) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, SIZES["vocab_size"], (rows, 31), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :7] = IGNORED
    return {"input_ids": ids, "labels": labels}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_all_logits(name: str) -> None:
    usual = MODELS[name]()
    chunked = copy.deepcopy(usual)
    chunk_the_loss(chunked)
    for given in ({}, {"num_items_in_batch": torch.tensor(300)}):
        outputs = [model(**batch(), **given) for model in (usual, chunked)]
        for output in outputs:
            (3 * output.loss).backward()
        torch.testing.assert_close(outputs[1].loss, outputs[0].loss)
        assert outputs[1].logits is None
    found = dict(chunked.named_parameters())
    for path, parameter in usual.named_parameters():
        torch.testing.assert_close(found[path].grad, parameter.grad, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert chunked(**batch()).logits is None
        torch.testing.assert_close(chunked(**batch()).loss, usual(**batch()).loss)
        torch.testing.assert_close(chunked(batch()["input_ids"]).logits, usual(batch()["input_ids"]).logits)


def answers() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What a model is called with, and labels of four rows: one has a single one, and one none."""
    given = {"input_ids": batch()["input_ids"]}
    labels = batch()["labels"]
    labels[1, :30], labels[2] = IGNORED, IGNORED
    return given, labels


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_of_rows_and_their_gradients_are_those_of_all_logits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is worth something else, as the pairs of DPO are."""
    usual = MODELS[name]()
    chunked = copy.deepcopy(usual)
    chunk_the_loss(chunked)
    given, labels = answers()
    worth = torch.tensor([0.5, -2.0, 1.0, 3.0])
    expected = row_sums(usual, given, labels)
    with torch.no_grad():
        torch.testing.assert_close(row_sums(chunked, given, labels), expected)
    monkeypatch.setattr(chunked_loss._Pending, "made", None)  # no logits are made
    found = row_sums(chunked, given, labels)
    monkeypatch.undo()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
    assert found[2] == 0
    for sums in (expected, found):
        (worth * sums).sum().backward()
    weights = dict(chunked.named_parameters())
    for path, parameter in usual.named_parameters():
        torch.testing.assert_close(weights[path].grad, parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small_chunks")
def test_a_batch_without_labels_leaves_gradients_as_they_are() -> None:
    model = made("llama")
    chunk_the_loss(model)
    given, labels = answers()
    row_sums(model, given, torch.full_like(labels, IGNORED)).sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())
    model(**given, labels=torch.full_like(labels, IGNORED)).loss.backward()
    assert not any(weight.grad.any() for weight in model.parameters())


@pytest.mark.usefixtures("small_chunks")
def test_the_output_matrix_is_called_once_and_stays_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks are ZeRO-3's, which gather it."""
    model = made("llama")
    chunk_the_loss(model)
    calls: list[tuple[int, ...]] = []
    model.lm_head.register_forward_pre_hook(lambda _, args: calls.append(tuple(args[0].shape)))
    model(**batch()).loss.backward()
    assert calls == [(4 * 31, SIZES["hidden_size"])]
    assert model.get_output_embeddings() is model.lm_head is model._modules["lm_head"]
    assert "forward" not in vars(model.lm_head)
    with pytest.raises(IndexError):
        model(**{**batch(), "input_ids": batch()["input_ids"] + SIZES["vocab_size"]})
    assert model.get_output_embeddings() is model._modules["lm_head"]


@pytest.mark.usefixtures("small_chunks")
def test_a_model_that_wants_its_logits_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("llama")
    expected = model(batch()["input_ids"]).logits

    def other_loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        assert (logits.shape, logits.dtype) == (expected.shape, expected.dtype)
        return (logits - 1).square().sum() + logits[..., 5].sum() + (2 + logits).view(-1).sum()

    monkeypatch.setattr(model, "loss_function", other_loss)
    chunk_the_loss(model)
    output = model(**batch())
    assert output.loss.item() == pytest.approx(other_loss(expected, batch()["labels"]).item())
    torch.testing.assert_close(output.logits, expected)


def _changed(logits: torch.Tensor) -> None:
    logits.mul_(3)


def _masked(logits: torch.Tensor) -> None:
    logits[..., 300:] = -1e4


def _changed_by_a_view(logits: torch.Tensor) -> None:
    logits.view(-1, SIZES["vocab_size"])[5:].data.add_(torch.arange(SIZES["vocab_size"]) / 100)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("change", [_changed, _masked, _changed_by_a_view])
@pytest.mark.parametrize("copies", [False, True])
def test_logits_that_are_changed_in_place_are_those_of_the_loss(
    change: Callable[[torch.Tensor], None], copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        if copies:
            logits = logits * 2
        seen = logits.view(-1, SIZES["vocab_size"])
        change(logits)
        return torch.nn.functional.cross_entropy(seen, labels.view(-1), ignore_index=IGNORED)

    usual = made("llama")
    monkeypatch.setattr(usual, "loss_function", loss)
    chunked = copy.deepcopy(usual)
    said: list[str] = []
    assert chunk_the_loss(chunked, said.append)
    for _ in range(2):
        outputs = [model(**batch()) for model in (usual, chunked)]
        torch.testing.assert_close(outputs[1].loss, outputs[0].loss)
        torch.testing.assert_close(outputs[1].logits, outputs[0].logits)
    (line,) = said
    assert "the model asks for all its logits" in line


def test_a_model_without_an_output_matrix_is_not_said_to_have_chunks() -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.get_output_embeddings = lambda: None
    assert not chunk_the_loss(model)


def test_few_tokens_take_all_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("llama")
    chunk_the_loss(model)
    monkeypatch.delattr(chunked_loss._Pending, "of")  # nothing stands for logits that are all made
    assert model(**batch()).logits.shape == (4, 31, 320)


class Held(TorchDispatchMode):
    """The most bytes that results of operations have held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                self._alive[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def test_a_large_vocabulary_takes_a_third_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a quarter of the tokens in a chunk, counted in bytes beyond those of the model's body."""
    vocabulary = 131_072
    monkeypatch.setattr(loss_chunks, "CHUNK_LOGITS", 16 * vocabulary)
    model = made("llama", vocab_size=vocabulary, hidden_size=8, num_attention_heads=1, num_key_value_heads=1)
    ids = torch.zeros(2, 32, dtype=torch.long)

    def peak(loss: Callable[[], torch.Tensor]) -> int:
        with Held() as held:
            loss().backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
        return held.peak

    def peaks() -> tuple[int, int]:
        of_rows = peak(lambda: row_sums(model, {"input_ids": ids}, ids).prod())
        return peak(lambda: model(ids, labels=ids).loss), of_rows

    body = peak(lambda: model(ids, logits_to_keep=torch.tensor([0])).logits.sum())
    whole, whole_of_rows = peaks()
    chunk_the_loss(model)
    chunked, of_rows = peaks()
    assert whole - body > 2 * 4 * ids.numel() * vocabulary
    assert chunked - body < (whole - body) / 3
    assert of_rows <= 1.05 * chunked
    assert of_rows < whole_of_rows / 2


@pytest.mark.parametrize(
    ("task", "keys", "expected"),
    [
        ({}, {}, True),
        ({"chunked_loss": False}, {}, False),
        ({"type": "dpo"}, {"fp16": True, "label_smoothing_factor": 0.1}, True),
        ({"type": "dpo"}, {"torch_compile": True}, False),
        ({"type": "dpo", "chunked_loss": False}, {}, False),
        ({"type": "seq2seq"}, {}, False),
        *(({}, {name: True}, False) for name in ("fp16", "use_liger_kernel", "torch_compile")),
        ({}, {"label_smoothing_factor": 0.1}, False),
    ],
)
@pytest.mark.parametrize("learns_tokens", [False, True])
def test_who_asks_for_chunks(task: dict[str, Any], keys: dict[str, Any], expected: bool, learns_tokens: bool) -> None:
    usual = dict.fromkeys(("fp16", "use_liger_kernel", "torch_compile", "label_smoothing_factor"), False)
    args: Any = SimpleNamespace(**{**usual, **keys})
    section = TaskSection(**task)
    expected = expected and not (section.type == "dpo" and learns_tokens)
    assert wants_chunked_loss(section, args, learns_tokens=learns_tokens) is expected
