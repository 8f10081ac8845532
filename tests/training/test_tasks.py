"""The tasks of fine-tuning: what their examples become, their losses and their metrics."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from pydantic import ValidationError

from tests.data.formats import OF_TEXTS
from tests.tiny import tiny_tokenizer
from zerokit.data.row_dataset import RowDataset
from zerokit.data.sources import load_examples
from zerokit.errors import DataError, ModelError, ZerokitError
from zerokit.recipe import load_recipe
from zerokit.recipe.model import Columns, DataSection, TaskSection, TaskType
from zerokit.training.examples import IGNORED, tokenize
from zerokit.training.formats import detect_format
from zerokit.training.preview import marked
from zerokit.training.tasks import TASKS, task_of, tasks_for
from zerokit.training.tasks.generated import questions, rouge_l
from zerokit.training.tasks.labels import describe_labels, known_labels
from zerokit.training.tasks.token_classification import Entity, entities

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task


def made(
    type_: TaskType, rows: list[dict[str, Any]] | RowDataset, known: tuple[str, ...] = (), **section: Any
) -> Task:
    examples = rows if isinstance(rows, RowDataset) else RowDataset.of_rows(rows)
    return task_of(TaskSection(type=type_, **section)).with_labels_of(examples, Columns(), known, "data.train")


def encoded(task: Task, rows: list[dict[str, Any]] | RowDataset, tokenizer: Any) -> list[dict[str, Any]]:
    examples = rows if isinstance(rows, RowDataset) else RowDataset.of_rows(rows)
    format_ = detect_format(examples.columns, DataSection(train="x"), task.formats, where="data.train")
    encoder = task.encoder(tokenizer, format_, Columns())
    seq_len = task.section.seq_len
    return tokenize(examples, encoder, seq_len=seq_len, where="data.train").dataset.to_list()


def test_every_type_of_a_recipe_is_a_task() -> None:
    assert set(TASKS) == set(TaskType.__args__)  # type: ignore[attr-defined]


def test_a_key_of_another_task_is_refused() -> None:
    with pytest.raises(ValidationError, match="'packing' says nothing to sequence_classification"):
        TaskSection(type="sequence_classification", packing=True)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([10, 9, 2], ("2", "9", "10")),
        ([True, False], ("false", "true")),
        (["2", "--1"], ("--1", "2")),
        (["2", "1" * 5000], ("1" * 5000, "2")),
        (["1", "01", "001", "-3"], ("-3", "001", "01", "1")),
    ],
)
def test_classes_are_those_of_the_training_data(values: list[Any], labels: tuple[str, ...]) -> None:
    rows = [{"text": "t", "label": value} for value in values]
    assert made("sequence_classification", rows).labels == labels


def test_texts_and_numbers_of_one_file_are_classes_together(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    lines = ('{"text": "t", "label": "a"}', '{"text": "t", "label": 1}')
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines) + "\n")
    rows = load_examples(str(tmp_path / "mixed.jsonl"), where="data.train")
    task = made("sequence_classification", rows)
    assert task.labels == ("1", "a")
    assert [row["labels"] for row in encoded(task, rows, tokenizer)] == [1, 0]


@pytest.mark.parametrize("name", OF_TEXTS)
def test_labels_of_files_keep_their_spelling(name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    labels = ("NA", "null", "True", "2021-05-01", "1.0", "01", "1", "001", "nan", "1e5")
    (tmp_path / name).write_bytes(OF_TEXTS[name]([{"text": "t", "label": label} for label in labels]))
    rows = load_examples(str(tmp_path / name), where="data.train")
    task = made("sequence_classification", rows)
    assert task.labels == tuple(sorted(labels))
    assert [task.labels[row["labels"]] for row in encoded(task, rows, tokenizer)] == list(labels)


def test_classes_keep_the_names_of_the_data_set_and_the_ids_of_the_checkpoint(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    table = Dataset.from_list([{"text": "a", "label": 1}, {"text": "b", "label": 1}], features=features)
    rows = RowDataset.of_table(table)
    assert made("sequence_classification", rows).labels == ("neg", "pos")
    task = made("sequence_classification", rows, known=("pos", "unsure", "neg"))
    assert [row["labels"] for row in encoded(task, rows, tokenizer)] == [0, 0]
    assert task.config_keys()["id2label"] == {0: "pos", 1: "unsure", 2: "neg"}
    for pad, expected in ((None, tokenizer.pad_token_id), (0, 0)):
        config: Any = SimpleNamespace(pad_token_id=pad)
        task.complete(config, tokenizer)
        assert config.pad_token_id == expected


def test_a_checkpoint_names_its_classes_or_not() -> None:
    assert known_labels({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}) == ()
    assert known_labels({"id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    assert known_labels({}) == known_labels({"id2label": {"1": "b"}}) == ()
    assert describe_labels(("a", "b")) == "; 2 classes: a, b"


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "example 3: 'label' is absent or null"),
        ("", "example 3: 'label' is empty, not a label"),
        (1.5, "example 3: 'label' is a number with a fraction, not a label"),
        ("goo", "example 3: 'label' is 'goo', a class that the model does not have. Did you mean 'good'?"),
    ],
)
def test_what_is_no_label_is_named_with_its_place(
    label: Any, message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]
    task = made("sequence_classification", rows)
    with pytest.raises(DataError) as caught:
        encoded(task, [*rows, {"text": "c", "label": label}], tokenizer)
    assert message in str(caught.value)


def test_whole_numbers_with_a_point_are_whole(tokenizer: PreTrainedTokenizerBase) -> None:
    """As tables have them whose column has an empty cell, which is named."""
    rows = [{"text": "a", "label": 1.0}, {"text": "b", "label": 0.0}]
    task = made("sequence_classification", rows)
    assert task.labels == ("0", "1")
    assert [row["labels"] for row in encoded(task, rows, tokenizer)] == [1, 0]
    with pytest.raises(DataError, match="example 1: 'label' is absent or null"):
        encoded(task, [{"text": "a", "label": float("nan")}], tokenizer)


def test_numbers_with_a_fraction_and_one_class_alone_are_no_classes(tokenizer: PreTrainedTokenizerBase) -> None:
    for known in ((), ("x",), ("x", "y")):
        with pytest.raises(DataError, match="every 'label' is 'x': there is nothing to tell apart"):
            made("sequence_classification", [{"text": "a", "label": "x"}] * 2, known=known)
        with pytest.raises(DataError, match="every 'tags' is 'x'"):
            made("token_classification", [{"tokens": ["a"], "tags": ["x"]}], known=known)
    with pytest.raises(DataError, match="no 'label' is a text or a whole number"):
        made("sequence_classification", [{"text": "a", "label": 0.5}, {"text": "a", "label": 1.5}])


@pytest.mark.parametrize(
    "columns", [("text", "text_pair"), ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question", "sentence")]
)
def test_pairs_of_texts_are_told_by_their_columns_and_joined_as_the_tokenizer_joins_them(
    columns: tuple[str, str], tmp_path: Path
) -> None:
    tokenizer = with_segments(tmp_path)
    rows = [{columns[0]: "one two", columns[1]: text, "label": text} for text in ("three", "four five")]
    task = made("sequence_classification", rows)
    sequences = encoded(task, rows, tokenizer)
    for row, sequence in zip(rows, sequences, strict=True):
        joined = tokenizer(row[columns[0]], row[columns[1]])
        assert sequence["input_ids"] == joined["input_ids"]
        assert sequence["token_type_ids"] == joined["token_type_ids"]
        assert set(sequence["token_type_ids"]) == {0, 1}
    shown = "\n".join("".join(text for text, _ in line) for line in task.marked(sequences[0], tokenizer))
    assert "one two" in shown
    assert "three" in shown
    cut = encoded(made("sequence_classification", rows, seq_len=8), [{**rows[0], columns[1]: "w " * 50}], tokenizer)
    assert len(cut[0]["input_ids"]) == 8
    assert 0 in cut[0]["token_type_ids"]


@pytest.mark.parametrize(("types", "segmented"), [(2, True), (1, False), (0, False)])
def test_only_models_with_segments_are_given_them_blanks_too(types: int, segmented: bool, tmp_path: Path) -> None:
    rows = [{"premise": "one two", "hypothesis": "three", "label": label} for label in ("a", "b")]
    tokenizer, task = with_segments(tmp_path), made("sequence_classification", rows)
    model = SimpleNamespace(config=SimpleNamespace(type_vocab_size=types))
    features = encoded(task, rows, tokenizer)
    batch = task.collator(tokenizer, model)([*features, task.blank()])
    assert ("token_type_ids" in batch) is segmented
    assert batch["labels"].tolist() == [0, 1, IGNORED]
    if segmented:
        assert batch["token_type_ids"].shape == batch["input_ids"].shape
        assert not batch["token_type_ids"][-1].any()


def with_segments(folder: Path) -> Any:
    """A tokenizer that joins pairs as BERT's does."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer(folder)
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A:0 {end}:0", pair=f"$A:0 {end}:0 $B:1 {end}:1", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


def test_a_text_beside_usual_names_of_pairs_is_the_text() -> None:
    rows = [{"text": "a", "premise": "p", "hypothesis": "h", "label": label} for label in ("x", "y")]
    task = made("sequence_classification", rows)
    assert detect_format(list(rows[0]), DataSection(train="x"), task.formats, where="w") == "text_label"


def test_several_labels_of_one_text_are_refused() -> None:
    with pytest.raises(DataError, match="'label' is a list or an object: each text has one label"):
        made("sequence_classification", [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}])


def test_a_column_of_ids_has_no_classes() -> None:
    rows = [{"text": "a", "label": number} for number in range(101)]
    with pytest.raises(DataError, match=r"'label' has 101 different values.*the classes in data\.columns"):
        made("sequence_classification", rows)
    assert len(made("sequence_classification", rows * 2).labels) == 101


def test_the_loss_of_classes_is_the_models_own(tokenizer: PreTrainedTokenizerBase) -> None:
    """Summed, without blanks, and with the smoothing of torch."""
    task = made("sequence_classification", [{"text": "a", "label": label} for label in "abc"])
    logits = torch.randn(4, 3)
    labels = torch.tensor([2, 0, IGNORED, 1])

    def model(input_ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=logits)

    batch = {"input_ids": torch.zeros(4, 2), "labels": labels}
    for smoothing in (0.0, 0.1):
        expected = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, labels)
        loss, _ = task.loss(model, batch, smoothing)
        assert loss / task.num_targets(batch) == pytest.approx(expected)
    blank = {"input_ids": torch.zeros(4, 2), "labels": torch.full((4,), IGNORED)}
    assert (float(task.loss(model, blank)[0]), task.num_targets(blank)) == (0, 0)


def test_accuracy_and_f1_of_classes() -> None:
    """Of scikit-learn 1.7: accuracy_score, and f1_score(average="macro"), in which class 3 does not count."""
    task = made("sequence_classification", [{"text": "a", "label": label} for label in range(4)])
    truth, found = torch.tensor([0, 0, 0, 1, 1, 2, IGNORED]), torch.tensor([0, 0, 1, 1, 0, 0, 3])
    output = SimpleNamespace(logits=torch.nn.functional.one_hot(found, 4).float())
    any_: Any = None
    scores = task.scores(output, {"labels": truth}, any_, any_)
    metrics = task.metrics(scores)
    assert metrics == pytest.approx({"accuracy": 0.5, "f1": (4 / 7 + 1 / 2 + 0) / 3})
    assert len(scores) == 3 * 4  # not one for each pair of classes
    none = task.scores(output, {"labels": torch.full((7,), IGNORED)}, any_, any_)
    assert len(none) == len(scores)
    assert sum(none) == 0


def test_a_collator_pads_labelled_texts_and_takes_blanks(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"text": "abc", "label": "x"}, {"text": "ab" * 40, "label": "y"}]
    task = made("sequence_classification", rows, seq_len=16)
    first, second = encoded(task, rows, tokenizer)
    assert (len(second["input_ids"]), second["labels"]) == (16, 1)
    batch = task.collator(tokenizer, None)([first, second, task.blank()])
    assert batch["input_ids"].shape == (3, 16)
    assert batch["labels"].tolist() == [0, 1, IGNORED]
    text = "".join(part for line in task.marked(first, tokenizer) for part, _ in line)
    assert text == "label: xabc"


TAGGED = [
    {"tokens": ["Ada", "Lovelace", "unbelievably", "wrote"], "tags": ["B-PER", "I-PER", "O", "O"]},
    {"tokens": ["in", "Rome"], "tags": ["O", "B-LOC"]},
]


def test_the_first_token_of_each_word_has_its_tag(tokenizer: PreTrainedTokenizerBase) -> None:
    task = made("token_classification", TAGGED)
    assert task.labels == ("B-LOC", "B-PER", "I-PER", "O")
    first, _ = encoded(task, TAGGED, tokenizer)
    pieces = [tokenizer.decode([token]) for token in first["input_ids"]]
    assert "".join(pieces) == "Ada Lovelace unbelievably wrote"
    assert len(pieces) > 4  # words of several tokens, of which the others have no label
    labelled = [index for index, label in enumerate(first["labels"]) if label != IGNORED]
    starts = [len("".join(pieces[:index])) for index in labelled]
    # A byte-level token brings the space before its word, or that is one of its own.
    assert [start in (begin - 1, begin) for start, begin in zip(starts, (0, 4, 13, 26), strict=True)] == [True] * 4
    assert [task.labels[first["labels"][index]] for index in labelled] == TAGGED[0]["tags"]
    cut = made("token_classification", TAGGED, seq_len=8)
    assert len(encoded(cut, TAGGED, tokenizer)[0]["labels"]) == 8


def test_special_tokens_have_no_tag(tmp_path: Path) -> None:
    tokenizer = with_special_tokens(tmp_path)
    first, _ = encoded(made("token_classification", TAGGED), TAGGED, tokenizer)
    assert first["input_ids"][0] == first["input_ids"][-1] == 0
    assert first["labels"][0] == first["labels"][-1] == IGNORED


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "tags": ["O", "O"]}, "example 3: 1 words in 'tokens', but 2 tags in 'tags'"),
        ({"tokens": None, "tags": ["O"]}, "example 3: 'tokens' is absent or null, not a list"),
        ({"tokens": ["a"], "tags": ["B-ORG"]}, "example 3: 'tags' is 'B-ORG', a class that the model"),
        ({"tokens": [None], "tags": ["O"]}, "example 3: 'tokens' has"),
    ],
)
def test_words_without_their_tags_are_named_with_their_place(
    row: dict[str, Any], message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(DataError) as caught:
        encoded(made("token_classification", TAGGED), [*TAGGED, row], tokenizer)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-A I-A O", [("A", 1, 2)]),
        ("B-A B-A I-B", [("A", 0, 0), ("A", 1, 1), ("B", 2, 2)]),
        ("I-A O I-A I-A", [("A", 0, 0), ("A", 2, 3)]),
        ("S-A E-A O B-x-y", [("A", 0, 0), ("A", 1, 1), ("x-y", 3, 3)]),
        ("B I O NOUN", [("_", 0, 1), ("OUN", 3, 3)]),
        ("B-A  B-A", [("A", 0, 0), ("A", 2, 2)]),
    ],
)
def test_entities_are_those_of_seqeval(tags: str, found: list[Entity]) -> None:
    """What ``seqeval.metrics.sequence_labeling.get_entities`` of 1.2.2 returns; it knows no empty tag."""
    assert entities(tags.split(" ")) == found


def test_precision_and_recall_are_of_whole_entities() -> None:
    """Of seqeval 1.2.2: half of what is said, and half of what there is."""
    task = made("token_classification", TAGGED)
    ids = {label: index for index, label in enumerate(task.labels)}
    truth = torch.tensor([[ids["B-PER"], ids["I-PER"], IGNORED, ids["O"], ids["B-LOC"]]])
    guess = torch.tensor([[ids["B-PER"], ids["O"], ids["B-PER"], ids["O"], ids["B-LOC"]]])
    output = SimpleNamespace(logits=torch.nn.functional.one_hot(guess, 4).float())
    any_: Any = None
    scores = task.scores(output, {"labels": truth}, any_, any_)
    assert task.metrics(scores) == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "accuracy": 0.75}
    parts = made("token_classification", [{"tokens": ["a", "b"], "tags": ["NOUN", "VERB"]}])
    assert parts.metrics([4, 3, 0, 0, 0]) == {"accuracy": 0.75}


def with_special_tokens(folder: Path) -> PreTrainedTokenizerBase:
    """The tiny tokenizer with a mask, and ``<|end|>`` around each text, as BERT has its own."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer(folder)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    core: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    core.post_processor = TemplateProcessing(single="<|end|> $A <|end|>", special_tokens=[("<|end|>", 0)])
    return tokenizer


SENTENCES = [{"text": "Unbelievably, the statement is used to iterate."}, {"text": "a"}]


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_spare_special_tokens_and_differ_each_time(whole_words: bool, tmp_path: Path) -> None:
    tokenizer = with_special_tokens(tmp_path)
    section = {"whole_words": whole_words, "packing": False, "mask_probability": 0.5}
    task = made("masked_lm", SENTENCES, **section)
    rows = encoded(task, SENTENCES, tokenizer)
    collate = task.collator(tokenizer, None)
    torch.manual_seed(0)
    chosen = set()
    words = tokenizer(SENTENCES[0]["text"]).word_ids()
    for _ in range(20):
        batch = collate([rows[0], rows[1], task.blank()])
        labels = batch["labels"]
        assert labels[0][0] == labels[0][len(rows[0]["input_ids"]) - 1] == IGNORED
        assert (labels[2] == IGNORED).all()
        is_masked = labels[0][: len(words)] != IGNORED
        chosen.add(tuple(is_masked.tolist()))
        if whole_words:
            assert all(
                len({bool(is_masked[at]) for at, other in enumerate(words) if other == word}) == 1
                for word in {*words} - {None}
            )
            assert (batch["input_ids"][0][: len(words)][is_masked] == tokenizer.mask_token_id).all()
    assert len(chosen) > 5


def test_held_out_masks_stay_and_leave_something_to_tell(tmp_path: Path) -> None:
    tokenizer = with_special_tokens(tmp_path)
    task = made("masked_lm", SENTENCES, whole_words=True, packing=False)
    held_out = Dataset.from_list(encoded(task, SENTENCES, tokenizer))
    fixed = task.with_fixed_targets(held_out, tokenizer)
    assert fixed.to_list() == task.with_fixed_targets(held_out, tokenizer).to_list()
    assert all(any(label != IGNORED for label in row["labels"]) for row in fixed)
    batch = task.collator(tokenizer, None)([*fixed, task.blank()])
    assert batch["labels"][0][: len(fixed[0]["labels"])].tolist() == fixed[0]["labels"]
    assert (batch["labels"][2] == IGNORED).all()


def test_texts_to_mask_are_joined_and_cut(tmp_path: Path) -> None:
    tokenizer = with_special_tokens(tmp_path)
    task = made("masked_lm", SENTENCES, whole_words=True, seq_len=8)
    rows = encoded(task, SENTENCES * 3, tokenizer)
    assert {len(row["input_ids"]) for row in rows} == {len(row["words"]) for row in rows} == {8}
    assert task.collator(tokenizer, None)(rows)["input_ids"].shape == (len(rows), 8)


def test_an_answer_of_an_encoder_and_decoder_ends(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"prompt": "abc", "completion": "de"}, {"prompt": "a" * 99, "completion": "b" * 99}]
    task = made("seq2seq", rows, seq_len=16, target_len=8)
    first, second = encoded(task, rows, tokenizer)
    assert tokenizer.decode(first["labels"]) == "de<|end|>"
    assert (len(second["input_ids"]), len(second["labels"]), second["labels"][-1]) == (16, 8, 0)
    (given,) = encoded(task, [{"instruction": "a", "input": "b", "output": "c"}], tokenizer)
    assert tokenizer.decode(given["input_ids"]) == "a\n\nb"


def test_answers_are_encoded_as_targets() -> None:
    """With their own language's code, behind the end, by a tokenizer that has such."""
    from transformers import MBartTokenizer

    tokenizer = MBartTokenizer(src_lang="en_XX", tgt_lang="ro_RO")
    rows = [{"prompt": "a", "completion": "b"}]
    task = made("seq2seq", rows)
    task.check_tokenizer(tokenizer, "model.path")
    (row,) = encoded(task, rows, tokenizer)
    names = [tokenizer.convert_ids_to_tokens(row[name][-2:]) for name in ("input_ids", "labels")]
    assert names == [["</s>", "en_XX"], ["</s>", "ro_RO"]]
    with pytest.raises(ModelError, match="the language of the answers is not set"):
        task.check_tokenizer(MBartTokenizer(src_lang="en_XX"), "model.path")


@pytest.mark.parametrize(
    ("type_", "section", "hint"),
    [
        ("token_classification", {}, "Take a model with a fast tokenizer"),
        ("masked_lm", {"whole_words": True}, "Set task.whole_words to false, or take"),
    ],
)
def test_a_tokenizer_in_python_is_refused_where_words_count(
    type_: TaskType, section: dict[str, Any], hint: str
) -> None:
    slow: Any = SimpleNamespace(is_fast=False)
    task = task_of(TaskSection(type=type_, **section))
    with pytest.raises(ModelError, match=f"map tokens to words.*{hint}"):
        task.check_tokenizer(slow, "model.path")
    task_of(TaskSection(type="masked_lm")).check_tokenizer(slow, "model.path")


def test_generated_answers_are_compared_as_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    task = made("seq2seq", [])
    answers = ["the cat sat", "the dog", "x"]
    ids = tokenizer(answers, padding=True, return_tensors="pt")
    said = tokenizer(["the cat sat", "a dog", "y"], padding=True, return_tensors="pt")["input_ids"]
    labels = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, IGNORED)
    labels[2] = IGNORED  # a blank
    asked: dict[str, Any] = {}

    def generate(**options: Any) -> torch.Tensor:
        asked.update(options)
        return said

    model = SimpleNamespace(generate=generate)
    scores = task.scores(None, {**ids, "labels": labels}, model, tokenizer)
    assert task.metrics(scores) == {"exact_match": 0.5, "rouge_l": 0.75}
    assert asked["max_new_tokens"] == 128
    blanks = {**ids, "labels": torch.full_like(labels, IGNORED)}  # all that a rank may have
    assert task.scores(None, blanks, model, tokenizer) == (0, 0, 0)
    assert made("seq2seq", [], predict_with_generate=False).scores(None, {}, model, tokenizer) == ()


def encoder_decoder(model_type: str, **keys: Any) -> PreTrainedModel:
    """A random one, for the tiny tokenizer."""
    from transformers import AutoConfig

    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    widths = {"d_model": 16, **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16)}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 2}
    sizes = {"vocab_size": 320, "src_vocab_size": 320, "tgt_vocab_size": 320, "max_position_embeddings": 64}
    config = AutoConfig.for_model(model_type, **layers, **heads, **widths, **ids, **sizes, **keys)
    torch.manual_seed(0)
    return TASKS["seq2seq"].model.auto.from_config(config).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("model_type", ["bart", "mbart", "blenderbot", "m2m_100", "fsmt"])
def test_a_decoder_is_given_what_its_model_makes_of_labels(
    model_type: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Also where its forward() alone does, and where its model looks for the last token of a blank."""
    task, model = made("seq2seq", []), encoder_decoder(model_type)
    collate = task.collator(tokenizer, model)
    rows = [{"input_ids": [5, 6, 7], "labels": [8, 9, 10, 0]}, {"input_ids": [5, 6], "labels": [11, 0]}]
    batch = collate(rows)
    assert batch["labels"][1].tolist() == [11, 0, *[IGNORED] * 6]
    loss = float(task.loss(model, batch)[0])
    if model_type == "fsmt":  # which shifts the source where it is given labels alone
        assert batch["decoder_input_ids"][0, :5].tolist() == [0, 8, 9, 10, 0]
    else:
        own = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")})
        assert loss / 6 == pytest.approx(float(own.loss), rel=1e-5)
    filled = collate([*rows, task.blank()])
    assert task.num_targets(filled) == 6
    assert float(task.loss(model, filled)[0]) == pytest.approx(loss, rel=1e-5)


def test_answers_begin_at_once_wherever_sources_are_padded(tokenizer: PreTrainedTokenizerBase) -> None:
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    rows = [{"input_ids": [5, 6, 7], "labels": [8, 9, 0]}, {"input_ids": [5], "labels": [8, 0]}]
    batch = made("seq2seq", []).collator(left, encoder_decoder("bart"))(rows)
    assert batch["attention_mask"][1].tolist() == [*[0] * 7, 1]
    assert batch["decoder_input_ids"][1].tolist() == [2, 8, 0, *[1] * 5]


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [("led", {"attention_window": [12]}), ("bigbird_pegasus", {"attention_type": "block_sparse", "block_size": 12})],
)
def test_sources_fill_the_windows_of_a_model(
    model_type: str, keys: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Which would pad them itself, by more calls of a module than other ranks make."""
    model = encoder_decoder(model_type, **keys)
    batch = made("seq2seq", []).collator(tokenizer, model)([{"input_ids": [5], "labels": [8, 0]}])
    assert [batch[name].shape for name in ("input_ids", "labels")] == [(1, 24), (1, 8)]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"is_encoder_decoder": False}, "'t5' is not an encoder-decoder model"),
        ({"num_layers": 2, "num_decoder_layers": 3}, "3 layers in its decoder and 2 in its encoder"),
    ],
)
def test_a_model_that_has_no_answers_is_refused(config: dict[str, Any], text: str) -> None:
    from transformers import AutoConfig

    loaded = load_recipe(None, ["--model", "x", "--data.train", "x", "--task.type", "seq2seq"])
    with pytest.raises(ZerokitError, match=text):
        made("seq2seq", []).for_model(AutoConfig.for_model("t5", **config), loaded)
    uneven = AutoConfig.for_model("t5", num_layers=2, num_decoder_layers=3)
    made("seq2seq", [], predict_with_generate=False).for_model(uneven, loaded)


@pytest.mark.parametrize(
    ("said", "wanted", "score"),
    [
        ("police killed the gunman", "police kill the gunman", 0.75),
        ("the gunman kill police", "police kill the gunman", 0.5),
        ("The cat, the dog!", "the dog", 2 / 3),
        ("", "a", 0.0),
        ("Привет, мир", "привет мир", 1.0),
        ("今天 很好", "今天 不好", 0.5),
    ],
)
def test_rouge_l_is_that_of_rouge_score(said: str, wanted: str, score: float) -> None:
    """The first two are Lin's own (2004, section 3.1)."""
    assert rouge_l(said, wanted) == pytest.approx(score)


PREFERRED = {"prompt": "Say it: ", "chosen": "yes", "rejected": "never"}


def test_preferred_answers_are_texts_or_last_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    def trained(row: dict[str, Any]) -> list[str]:
        task = made("dpo", [row])
        (features,) = encoded(task, [row], tokenizer)
        pairs = [(features[f"{name}input_ids"], features[f"{name}labels"]) for name in ("", "rejected_")]
        return ["".join(part for line in marked(*pair, tokenizer) for part, _ in line) for pair in pairs]

    assert trained(PREFERRED) == ["Say it: ⟦yes<|end|>⟧", "Say it: ⟦never<|end|>⟧"]
    question, chosen, rejected = (
        {"role": role, "content": content}
        for role, content in (("user", "u"), ("assistant", "yes"), ("assistant", "no"))
    )
    expected = ["<|user|>u<|end|><|assistant|>⟦yes<|end|>⟧", "<|user|>u<|end|><|assistant|>⟦no<|end|>⟧"]
    assert trained({"prompt": [question], "chosen": [chosen], "rejected": [rejected]}) == expected
    for prompt in ({}, {"prompt": "u"}, {"prompt": [question]}):  # which whole chats have already
        whole = {"chosen": [question, chosen], "rejected": [question, rejected]}
        assert trained({**prompt, **whole}) == expected
    assert trained({"prompt": "u", "chosen": [chosen], "rejected": [rejected]}) == expected
    with pytest.raises(DataError, match="example 1: the conversation does not end with the assistant"):
        trained({"chosen": [question, chosen, question], "rejected": [question, rejected]})


def test_the_loss_of_pairs_is_trls(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, tmp_path: Path) -> None:
    """The sigmoid loss of TRL 1.16 (``trainer/dpo_trainer.py``), of log-probabilities summed one by one."""
    rows = [PREFERRED, {"prompt": "a", "chosen": "b" * 30, "rejected": "c"}]
    task = made("dpo", rows, beta=0.3)
    features = encoded(task, rows, tokenizer)
    reference = torch.tensor([[-9.0, -20.0], [-50.0, -3.0], [0.0, 0.0]])
    pairs = [{**row, "reference": reference[at].tolist()} for at, row in enumerate([*features, task.blank()])]
    batch = task.collator(tokenizer, None)(pairs)

    def log_probability(row: dict[str, Any], name: str) -> torch.Tensor:
        ids, labels = (torch.tensor(row[f"{name}{what}"]) for what in ("input_ids", "labels"))
        logps = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        return logps[range(len(ids) - 1), ids[1:]][labels[1:] != IGNORED].sum()

    with torch.no_grad():
        chosen, rejected = (
            torch.stack([log_probability(row, name) for row in features]) for name in ("", "rejected_")
        )
        delta_score = (chosen - reference[:2, 0]) - (rejected - reference[:2, 1])
        loss, rewards = task.loss(model, batch)
    assert float(loss) == pytest.approx(float(-torch.nn.functional.logsigmoid(0.3 * delta_score).sum()), rel=1e-4)
    assert task.num_targets(batch) == 2
    scores = task.scores(rewards, batch, model, tokenizer)
    margins = 0.3 * delta_score
    assert task.metrics(scores)["reward_margin"] == pytest.approx(float(margins.mean()), rel=1e-4)
    assert task.metrics(scores)["reward_accuracy"] == float((margins > 0).float().mean())
    blanks = task.collator(tokenizer, None)([{**task.blank(), "reference": [0.0, 0.0]}])
    loss, _ = task.loss(model, blanks)
    loss.backward()  # type: ignore[no-untyped-call]
    assert (loss.item(), task.num_targets(blanks)) == (0.0, 0)


@pytest.mark.parametrize(
    ("columns", "types"),
    [
        ("text label", ["causal_lm", "sequence_classification", "masked_lm"]),
        ("id tokens tags", ["token_classification"]),
        ("prompt completion", ["causal_lm", "seq2seq"]),
        ("prompt chosen rejected", ["dpo"]),
        ("body", []),
    ],
)
def test_columns_tell_the_tasks_that_they_are_for(columns: str, types: list[str]) -> None:
    assert tasks_for(columns.split(), Columns()) == types


@pytest.mark.parametrize(
    ("type_", "rows", "count"),
    [
        ("sequence_classification", [{"text": "a", "label": label} for label in "ab"], 6),
        ("token_classification", TAGGED, 5),
        ("masked_lm", [{"text": "a"}], 2),
        ("seq2seq", [{"prompt": "a", "completion": "b"}], 3),
        ("dpo", [{"prompt": "a", "chosen": "b", "rejected": "c"}], 4),
    ],
)
def test_metrics_of_no_examples_are_nan(type_: str, rows: list[dict[str, Any]], count: int) -> None:
    metrics = made(type_, rows).metrics([0.0] * count)
    assert metrics
    assert all(math.isnan(value) or value == 0 for value in metrics.values())


@pytest.mark.parametrize("apart", [True, False])
def test_answers_to_generate_are_those_of_each_document(tokenizer: PreTrainedTokenizerBase, apart: bool) -> None:
    rows = [{"prompt": "the for", "completion": " statement"}, {"prompt": "a", "completion": " class body"}]
    task = replace(made("causal_lm", rows, seq_len=32, predict_with_generate=True), mixed=None if apart else "why")
    sequences = encoded(task, rows, tokenizer)
    batch = task.collator(tokenizer, None)([*sequences, task.blank()])
    texts = [[tokenizer.decode(part, skip_special_tokens=True) for part in pair] for pair in questions(batch)]
    assert sorted(texts) == sorted([row["prompt"], row["completion"]] for row in rows)


@pytest.mark.parametrize("section", [{}, {"loss_on": "all"}])
def test_texts_have_no_answers_to_generate(tokenizer: PreTrainedTokenizerBase, section: dict[str, Any]) -> None:
    task = made("causal_lm", [], predict_with_generate=True, **section)
    with pytest.raises(ZerokitError, match="no answers to generate"):
        task.encoder(tokenizer, "prompt_completion" if section else "text", Columns())
