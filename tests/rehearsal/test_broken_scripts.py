"""Mistakes surface in a rehearsal as they would on the cluster, and its own limits under their name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.rehearsal import commands
from tests.rehearsal.commands import SCRIPTS, Rehearsed
from tests.rehearsal.recordings import job
from tests.tiny import REPOSITORY
from zerokit.errors import ZerokitError
from zerokit.rehearsal.parent.processes import Output, run_workers

Rehearse = Callable[..., Rehearsed]


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory: pytest.TempPathFactory) -> Rehearse:
    """Rehearses a script, once: on the first rank, or on the first and the last."""

    @cache
    def outcome_of(script: str, *words: str, steps: int = 2, both: bool = False) -> Rehearsed:
        options = ("--num-gpus", 8, "--no-advise", "--format", "json", "--steps", steps)
        ranks = () if both else ("--rank", 0)
        cwd = tmp_path_factory.mktemp("broken")
        return commands.rehearse(*options, *ranks, SCRIPTS / script, *words, cwd=cwd, forked=True)

    return outcome_of


def last_line(outcome: Rehearsed) -> str:
    return outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("broken.py auto", "TypeError: '>' not supported between instances of 'str' and 'int'"),
        ("broken.py batch_identity", "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc"),
        ("broken_raises.py", "KeyError: 'best'"),
        ("broken.py undefined_kernel", "Could not run 'broken::fused_norm' with arguments from the 'CUDA' b"),
    ],
)
def test_a_mistake_surfaces(script: str, message: str, rehearse: Rehearse) -> None:
    outcome = rehearse(*script.split(), both=script == "broken_raises.py")
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("Traceback (most recent call last)") == 1
    assert str(REPOSITORY / "zerokit") not in outcome.err.split("Traceback")[1]
    assert last_line(outcome).startswith("zerokit: error:")
    assert script.split()[0] in last_line(outcome)
    # Only a script that has read values of the model may have been led astray by them.
    assert ("unless it comes of a value" in last_line(outcome)) == (script == "broken_raises.py")


def test_errors_of_the_ds_config_are_told_before_the_failure_they_may_explain(rehearse: Rehearse) -> None:
    *_, told, last = rehearse("broken.py", "auto").err.splitlines()
    assert told.startswith("ds_config (")
    assert told.endswith("[unfilled-auto]")
    assert "the script fails before its first optimizer step" in last
    assert "ds_config (" not in rehearse("broken_raises.py", both=True).err


def test_what_zerokits_own_script_refuses_is_told_once(tmp_path: Path) -> None:
    words = ("--num-gpus", 2, "--rank", 0, "-m", "zerokit.train", "--model", "./missing", "--data.train", "none.jsonl")
    outcome = commands.rehearse(*words, cwd=tmp_path, forked=True)
    assert outcome.code == 2
    assert outcome.err.splitlines() == [
        "zerokit: error: --model: no such model folder: './missing'. Check the path",
        "zerokit: error: --data.train: no such file: 'none.jsonl'. Check the path",
    ]


REFUSED = """
import deepspeed, torch
config = {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
config |= {"communication_data_type": torch.bfloat16, "zero_optimization": {"stage": 1}}
try:
    deepspeed.initialize(model=torch.nn.Linear(1, 1), config=config)
except Exception as error:
    if CAUGHT:
        print(error)
    else:
        raise
"""


@pytest.mark.parametrize(
    ("caught", "says"), [(True, "the script ended without training"), (False, "fails before its first optimizer step")]
)
def test_a_ds_config_that_deepspeed_refuses_makes_no_engine(
    caught: bool, says: str, rehearse: Rehearse, tmp_path: Path
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED.replace("CAUGHT", f"{caught}"), encoding="utf-8")
    outcome = rehearse(f"{script}")
    assert outcome.code == 2
    assert says in last_line(outcome)
    assert ("ds_config (" in outcome.err) == (not caught), outcome.err


NO_OPTIMIZER = """
import deepspeed, torch
deepspeed.initialize(
    model=torch.nn.Linear(1, 1),
    config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}},
)
"""


def test_a_failure_whose_words_are_known_is_told_with_what_to_do(rehearse: Rehearse, tmp_path: Path) -> None:
    script = tmp_path / "no_optimizer.py"
    script.write_text(NO_OPTIMIZER, encoding="utf-8")
    outcome = rehearse(f"{script}", both=True)
    assert "zero stage 2 requires an optimizer" in outcome.err
    assert 'would show. Give the ds_config an "optimizer" section, or pass one to' in last_line(outcome)
    assert last_line(rehearse("broken.py", "undefined_kernel")).endswith("the cluster would show")


IN_ZERO_INIT = """
import sys
import deepspeed
ds_config = {{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": 3}}}}
deepspeed.init_distributed()
{before}
with deepspeed.zero.Init(config_dict_or_path=ds_config):
    from transformers import BertConfig, BertModel
    config = BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=100)
    {model}
"""
_IMPORTED = "import torch._dynamo"


@pytest.mark.parametrize(
    ("before", "model", "ending"),
    [
        ("", "BertModel(config)", "import the model's class, or torch._dynamo, before it"),
        (_IMPORTED, "BertModel(config)", "and call from_config() without zero.Init"),
        (_IMPORTED, "BertModel.from_pretrained(sys.path[0])", "and call from_pretrained() without zero.Init"),
        (_IMPORTED, "BertModel.from_pretrained(sys.path[0], no_such=1)", "is what the cluster would show"),
        (_IMPORTED, "raise ValueError('of my own')", "is what the cluster would show"),
    ],
)
def test_a_model_of_transformers_in_zero_init_is_told_how_to_be_made(
    before: str, model: str, ending: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 1, "vocab_size": 9}')
    (tmp_path / "train.py").write_text(IN_ZERO_INIT.format(before=before, model=model), encoding="utf-8")
    # A forked worker has it imported.
    outcome = commands.rehearse("--num-gpus", 1, "train.py", cwd=tmp_path, forked=before == _IMPORTED)
    assert outcome.code == 2
    assert last_line(outcome).endswith(ending)


def test_an_operator_without_a_stand_in_is_named_with_its_line(rehearse: Rehearse) -> None:
    outcome = rehearse("broken_gap.py")
    assert outcome.code == 2
    line = last_line(outcome)
    assert "aten::bincount" in line
    assert "broken_gap.py:12" in line
    assert not outcome.out


def test_a_mistake_that_comes_later_than_the_rehearsal_ends_is_not_found(rehearse: Rehearse) -> None:
    assert rehearse("broken.py", "shapes_late", steps=2).code == 0
    late = rehearse("broken.py", "shapes_late", steps=4)
    assert late.code == 2
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in late.err
    assert "after 2 optimizer steps" in last_line(late)


def test_made_up_losses_are_finite_and_the_largest_batch_is_rehearsed(rehearse: Rehearse) -> None:
    outcome = rehearse("stops_on_nan.py", both=True)
    assert outcome.code == 0
    report = outcome.report
    assert (report["steps"], report["device"]["peak_step"]) == (3, 2)
    assert report["fit"]["batch"] == "2 x 4,096 tokens (batch 4 of epoch 1, rank 0)"
    assert (report["batches"]["rehearsed_tokens"], report["batches"]["longest_tokens"]) == (8192, 8192)
    assert report["batches"]["first"]["shape"] == [2, 8]
    first, second, largest = report["per_step"]
    activations = 2 * 8192 * 512 * 2
    assert largest["peak_bytes"] > max(first["peak_bytes"], second["peak_bytes"]) + activations
    assert any("the loader of a list" in line and "4 x 16 tokens" in line for line in report["warnings"])
    # The figures of an ordinary step are those of the second.
    assert report["device"]["steady_bytes"] == second["steady_bytes"]
    assert report["flops_per_step"] == second["flops"]


def test_what_a_script_printed_before_does_not_hide_why_it_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = tmp_path / "train.py"
    script.write_text("print('begins')\nraise KeyError('best')\n")  # a file gets the first line at the end
    here = job(script=str(script), cwd=str(tmp_path), recording_file=str(tmp_path / "rank-0.npz"))
    with pytest.raises(ZerokitError, match=r"\(KeyError: 'best'\)"):
        run_workers([here], output=Output.DROPPED)
