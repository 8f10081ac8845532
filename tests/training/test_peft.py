"""The recipe's peft section."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.memory.runs import run
from zerokit.checkpoint.pretrained import load_weights, read_config
from zerokit.errors import ConfigError, RecipeError, ZerokitError
from zerokit.extras import install_command
from zerokit.memory import Ia3, Lora
from zerokit.memory.layout import layout_of
from zerokit.models import load_model_shape
from zerokit.recipe import load_recipe
from zerokit.training.model import PreparedModel
from zerokit.training.peft.adapter import add_adapter
from zerokit.training.peft.compatibility import check_trained, finds_end_by_ids
from zerokit.training.peft.keys import check_peft_keys
from zerokit.training.tasks import task_of
from zerokit.training.tasks.sequence_classification import SequenceClassification

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def words(**keys: str) -> list[str]:
    return [f"--peft.{key}={value}" for key, value in keys.items()]


def add(model: PreTrainedModel, *, checkpointing: bool = False, **keys: str) -> PreTrainedModel:
    args: Any = SimpleNamespace(gradient_checkpointing=checkpointing)
    loaded = load_recipe(None, words(**keys))
    return add_adapter(copy.deepcopy(model), check_peft_keys(loaded), loaded, args, "CAUSAL_LM")


def test_without_the_section_all_parameters_are_trained(model: PreTrainedModel) -> None:
    assert check_peft_keys(load_recipe()) is None
    assert all(p.requires_grad for p in add(model).parameters())


def test_the_keys_are_those_of_lora_config() -> None:
    asked = check_peft_keys(load_recipe(None, words(type="lora", r="4", target_modules="[q_proj]")))
    assert asked is not None
    assert asked.keys == {"r": 4, "target_modules": ["q_proj"]}
    asked = check_peft_keys(load_recipe(None, words(type="qlora", r="4", bnb_4bit_quant_type="fp4")))
    assert asked is not None
    assert (asked.keys, asked.four_bits) == ({"r": 4}, {"bnb_4bit_quant_type": "fp4"})


def test_gradients_reach_the_adapter_through_checkpointed_blocks(model: PreTrainedModel) -> None:
    import torch

    adapted = add(model, checkpointing=True, r="4", target_modules="[q_proj]")
    # A checkpointed block gives gradients only where one of its inputs needs one.
    assert adapted.get_input_embeddings()(torch.tensor([[5, 6]])).requires_grad
    plain = add(model, r="4", target_modules="[q_proj]")
    assert not plain.get_input_embeddings()(torch.tensor([[5, 6]])).requires_grad


def test_without_peft_installed_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ZerokitError, match=r"\(peft\): needs the packages of zerokit\[peft\]") as raised:
        check_peft_keys(load_recipe(None, words(r="4")))
    assert raised.value.hint == f"Run {install_command('peft')}"


def test_a_new_head_of_several_layers_is_saved_so_that_peft_loads_it(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import RobertaConfig, RobertaForMaskedLM

    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 8)
    RobertaForMaskedLM(
        RobertaConfig(num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16, **sizes)
    ).save_pretrained(tmp_path / "base")
    kind = SequenceClassification.model
    config = read_config(tmp_path / "base", where="model", kind=kind, num_labels=3)

    def loaded() -> PreTrainedModel:
        return load_weights(tmp_path / "base", config, where="model", kind=kind, dtype=torch.float32)

    model = loaded()
    args: Any = SimpleNamespace(gradient_checkpointing=False)
    recipe = load_recipe(None, words(r="2"))
    adapted = add_adapter(model, check_peft_keys(recipe), recipe, args, "SEQ_CLS").eval()
    adapted.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(loaded(), str(tmp_path / "adapter")).eval()
    ids = torch.tensor([[2, 5, 3]])
    assert torch.equal(again(input_ids=ids).logits, adapted(input_ids=ids).logits)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "intermediate_size": 64, "num_key_value_heads": 2, "pad_token_id": 1},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "pad_token_id": 1},
    "falcon": {**SIZES, "multi_query": True},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8},
    "bert": {**SIZES, "intermediate_size": 64, "max_position_embeddings": 64},
    "electra": {**SIZES, "intermediate_size": 64, "embedding_size": 16, "max_position_embeddings": 64},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 64},
    "t5": {
        **{"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4},
        **{"vocab_size": 64, "decoder_start_token_id": 1, "pad_token_id": 1},
    },
}
METHODS = ("lora", "ia3", "p_tuning", "prefix_tuning", "prompt_tuning")
TASKS_OF = {
    "causal_lm": ("llama", "gpt2"),
    "dpo": ("llama",),
    "sequence_classification": ("bert", "electra", "distilbert", "llama"),
    "token_classification": ("bert", "gpt2"),
    "seq2seq": ("t5",),
    "masked_lm": ("bert",),
}


@pytest.mark.parametrize(
    ("stage", "ranks", "more", "refused"),
    [
        (2, 2, [], True),
        (1, 2, ["--peft.target_modules", "[fc1]"], True),
        (2, 2, ["--peft.target_modules", "[q_proj]"], False),
        (3, 2, [], False),
        (2, 1, [], False),
    ],
)
def test_experts_called_one_by_one_are_refused_without_their_weights(
    stage: int, ranks: int, more: list[str], refused: bool
) -> None:
    from transformers import CONFIG_MAPPING

    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    counts = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_sparse_step"), 1)
    config = CONFIG_MAPPING["nllb-moe"](**sizes, **counts, num_experts=2, vocab_size=32)
    loaded = load_recipe(None, ["--task.type", "seq2seq", "--task.seq_len", "16", *more])
    resolved: Any = SimpleNamespace(training={}, ds_config={"zero_optimization": {"stage": stage}})
    model = PreparedModel(config, Path("there"))  # where there is nothing to load
    with pytest.raises(ConfigError, match="one by one") if refused else nullcontext():
        check_trained(loaded, check_peft_keys(loaded), resolved, model, task_of(loaded.recipe.task), ranks)


def tried(model_type: str, task_type: str, *more: str, stage: int = 2, **training: Any) -> PreTrainedModel:
    """A small model with the adapter of the words `more`, if nothing refuses it."""
    import torch
    from transformers import CONFIG_MAPPING

    given = ["--task.type", task_type, "--task.seq_len", "16", *more]
    loaded = load_recipe(None, [*given, "--task.target_len", "8"] if task_type == "seq2seq" else given)
    task = task_of(loaded.recipe.task)
    config = CONFIG_MAPPING[model_type](**CONFIGS[model_type])
    resolved: Any = SimpleNamespace(training=training, ds_config={"zero_optimization": {"stage": stage}})
    asked = check_peft_keys(loaded)
    check_trained(loaded, asked, resolved, PreparedModel(config, Path("there")), task)
    torch.manual_seed(0)
    args: Any = SimpleNamespace(gradient_checkpointing=False)
    return add_adapter(task.model.auto.from_config(config), asked, loaded, args, task.peft_type)


REFUSED = {
    ("p_tuning", "sequence_classification", "llama"): "llama classifies by the last token, which it cannot",
    ("prompt_tuning", "sequence_classification", "llama"): "llama classifies by the last token, which it cannot",
    ("prefix_tuning", "sequence_classification", "distilbert"): "keys and values alone, which distilbert has",
    **{
        (method, "masked_lm", "bert"): "for masked_lm. Choose peft.type lora or ia3"
        for method in METHODS
        if "tuning" in method
    },
}


@pytest.mark.parametrize(
    ("method", "task_type", "model_type"),
    [(method, task, model) for method in METHODS for task, models in TASKS_OF.items() for model in models],
)
def test_a_method_tells_examples_apart_by_what_they_say_or_is_refused(
    method: str, task_type: str, model_type: str
) -> None:
    """Alone and beside a longer example, one has the same logits, which depend on what is learned."""
    import torch

    refused = REFUSED.get((method, task_type, model_type))
    if refused is not None:
        with pytest.raises(RecipeError, match=refused):
            tried(model_type, task_type, "--peft.type", method)
        return
    adapted = tried(model_type, task_type, "--peft.type", method).eval()
    ids = torch.arange(5, 25).view(2, 10)
    mask = torch.ones_like(ids)
    ids[1, 7:], mask[1, 7:] = 1, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    answer = {"labels": torch.full((2, 4), 5)} if task_type == "seq2seq" else {}
    length = 4 if task_type == "seq2seq" else 7
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad and "modules_to_save" not in name:
                parameter += 0.3 * torch.randn_like(parameter)
        both = adapted(**inputs, **answer).logits[1:]
        one = adapted(
            **{name: value[1:, :7] for name, value in inputs.items()},
            **{name: value[1:] for name, value in answer.items()},
        ).logits
        if "tuning" in method:
            without = adapted.base_model(**inputs, **answer).logits[1:]
        else:
            with adapted.disable_adapter():
                without = adapted(**inputs, **answer).logits[1:]
    if both.ndim == 3:
        assert both.shape[1] == (4 if task_type == "seq2seq" else 10)
        both, without = both[:, :length], without[:, :length]
    torch.testing.assert_close(both, one, rtol=0, atol=4e-6)
    assert (both - without).abs().max() > 4e-5


@pytest.mark.parametrize(
    ("model_type", "words_", "training", "said"),
    [
        ("falcon", "--peft.type=prefix_tuning", {}, "prefix tuning does not fit falcon: Sizes of tensors"),
        ("mamba", "--peft.type=prefix_tuning", {}, "keys and values alone, which mamba has not"),
        (
            "llama",
            "--peft.type=prefix_tuning",
            {"gradient_checkpointing": True},
            "which checkpointing drops. Set it to false",
        ),
        (
            "gpt2",
            "--peft.type=p_tuning --task.seq_len 1010",
            {},
            "1010 tokens and 20 learned ones before them, but the model has 1024 positions. "
            "Set task.seq_len to at most 1004",
        ),
        ("llama", "--peft.type=lora --peft.target_modules=[nothing]", {}, "the model has no module 'nothing'"),
        (
            "llama",
            "--peft.type=p_tuning --peft.encoder_hidden_size=a",
            {},
            "expected a whole number, found the string",
        ),
        ("llama", "--peft.type=qlora --peft.bnb_4bit_quant_type=[]", {}, "transformers refuses it: "),
    ],
)
def test_what_does_not_go_together_is_refused_before_weights_are_loaded(
    model_type: str, words_: str, training: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        tried(model_type, "causal_lm", *words_.split(), **training)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_four_bits_are_whole_on_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="ZeRO-3 divides what bitsandbytes cannot divide"):
        tried("llama", "causal_lm", "--peft.type=qlora", stage=3)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "bitsandbytes" else name)
    with pytest.raises(RecipeError, match="qlora needs bitsandbytes, which is not installed"):
        tried("llama", "causal_lm", "--peft.type=qlora")


def test_a_type_that_peft_knows_no_targets_of_has_all_its_linear_layers_adapted() -> None:
    for method, count in (("lora", 12), ("ia3", 12)):
        adapted = tried("distilbert", "sequence_classification", "--peft.type", method)
        layers = {name.partition(".lora_")[0] for name, _ in adapted.named_parameters() if ".lora_A" in name}
        vectors = [name for name, _ in adapted.named_parameters() if "ia3_l" in name]
        assert len(layers or vectors) == count


def test_layers_that_no_adapter_can_sit_beside_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers that return pairs, and what Mamba's kernels read by themselves; not a layer of Falcon's own."""
    experts = {"num_local_experts": 2, "num_key_value_heads": 2}
    mamba = {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
    hybrid = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    feed_forward = {"gate_proj", "up_proj", "down_proj"}
    expected = {
        "phimoe": (experts, attention),
        "llama4_text": (experts | {"interleave_moe_layer_step": 1}, attention | feed_forward),
        "mamba2": (mamba, {"in_proj"}),
        "mamba": ({"state_size": 8}, {"in_proj"}),
        "jamba": (
            {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
            {"in_proj", "x_proj", "out_proj"} | attention | feed_forward,
        ),
        "bamba": (hybrid | {"attn_layer_indices": [1]}, {"in_proj"} | attention | feed_forward),
        "falcon": ({}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
        "mixtral": (experts, {"q_proj", "v_proj"}),
    }
    for model_type, (sizes, adapted_layers) in expected.items():
        monkeypatch.setitem(CONFIGS, model_type, {**CONFIGS["llama"], **sizes})
        named = [] if model_type == "mixtral" else ["--peft.target_modules=all-linear"]
        adapted = tried(model_type, "causal_lm", "--peft.type=lora", *named)
        layers = {name.split(".lora_A")[0] for name, _ in adapted.named_parameters() if ".lora_A" in name}
        assert {layer.rpartition(".")[2] for layer in layers} == adapted_layers, model_type


@pytest.mark.parametrize("excluded", ["[in_proj]", ".*in_proj"])
def test_what_a_recipe_excludes_is_left_out_beside_them(excluded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, "mamba2", {**CONFIGS["mamba"], "num_heads": 4, "head_dim": 16, "n_groups": 1})
    words_ = ("--peft.type=lora", "--peft.target_modules=all-linear", f"--peft.exclude_modules={excluded}")
    with pytest.raises(RecipeError, match="no module is left to adapt"):
        tried("mamba2", "causal_lm", *words_)


def test_targets_that_nobody_names_are_those_that_the_estimate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, "olmo2", CONFIGS["llama"])  # which peft does not know
    for model_type in ("llama", "gpt2", "olmo2"):
        for method, ours in (("lora", Lora(8)), ("ia3", Ia3())):
            adapted = tried(model_type, "causal_lm", "--peft.type", method)
            shape = load_model_shape(adapted.config.to_dict())
            counted = layout_of(run(model=shape, **{method: ours}))
            assert counted.num_trainable == adapted.get_nb_trainable_parameters()[0], (model_type, method)


def test_prompts_begin_as_words() -> None:
    adapted = tried("llama", "causal_lm", "--peft.type=prompt_tuning")
    words_ = adapted.get_input_embeddings().weight
    prompt = adapted.prompt_encoder["default"].embedding.weight
    assert prompt.shape == (20, 32)
    assert all((words_ == token).all(-1).any() for token in prompt)


@pytest.mark.parametrize("tolerated", [True, False])
def test_code_that_asks_tensors_without_weights_for_numbers_ends_no_run(
    tolerated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import LlamaForCausalLM

    made = LlamaForCausalLM.__init__

    def init(self: Any, config: Any) -> None:
        made(self, config)
        (torch.linspace(0, 1, 2) if tolerated else self.lm_head.weight.sum()).max().item()

    monkeypatch.setattr(LlamaForCausalLM, "__init__", init)
    assert tried("llama", "causal_lm", "--peft.type", "lora").peft_config


@pytest.mark.parametrize(
    ("model_type", "reads"),
    [(t, True) for t in ("llama", "gpt2", "bart", "gemma3", "sourceless")] + [("bert", False), ("distilbert", False)],
)
def test_a_classifier_that_finds_the_last_token_by_ids_is_known(model_type: str, reads: bool) -> None:
    from transformers import CONFIG_MAPPING
    from transformers import AutoModelForSequenceClassification as Auto

    own: dict[str, Any] = {}
    exec("def forward(self, input_ids): return self.pooled(input_ids)", own)
    config = CONFIG_MAPPING["bert" if model_type == "sourceless" else model_type]()
    class_ = Auto._model_mapping[type(config)]

    class Delegating(class_):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.pooled(*args, **kwargs)

        def pooled(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class Pooling(Delegating):
        def pooled(self, input_ids: Any, **_: Any) -> Any:
            return input_ids != self.config.pad_token_id

    if model_type == "sourceless":
        class_ = type("Sourceless", (class_,), {"forward": own["forward"]})
    own_reads = reads and model_type != "sourceless"
    for tried_class, found in ((class_, reads), (Delegating, own_reads), (Pooling, True)):
        assert finds_end_by_ids(object.__new__(tried_class)) is found
