import re

import pytest

from tests.combinations import ALL
from tests.tiny import REPOSITORY
from zerokit.config.key_index import sections
from zerokit.documents import dotted
from zerokit.errors import ConfigError
from zerokit.lint.explain import explain, overview
from zerokit.lint.rule_pages import page
from zerokit.lint.run import all_rules
from zerokit.lint.topics import topic_page, topics
from zerokit.lint.upgrade import LABELS


def test_a_rule_is_explained_by_its_page() -> None:
    rule = all_rules()["deprecated-key"]
    assert explain("deprecated-key") == page(rule)


def test_every_rule_is_in_the_overview() -> None:
    listed = [row[0] for row in overview()]
    assert listed == list(all_rules())


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "zero_optimization.overlap_comm",
            ["# zero_optimization.overlap_comm", "Reduce gradients", "true or false", "stages 1, 2 and 3"],
        ),
        (
            "zero_optimization.stage",
            [
                "Value: 0, 1, 2, 3",
                '"auto" under the Trainer and accelerate: 2 (accelerate, which has no other setting)',
                "- offload-param-stage: ",
            ],
        ),
        (
            "max_live_parameters",
            ["# zero_optimization.stage3_max_live_parameters", "Also read as:", "Acts in stage 3"],
        ),
        ("bfloat16", ["# bf16\n", "Also read as: `bfloat16`", "- `enabled`: "]),
        (
            "optimizer.params.lr",
            [
                "# optimizer.params.lr",
                "a number",
                '"auto" under the Trainer: learning_rate; another value must say the same',
                '"auto" under accelerate: lr of DummyOptim',
            ],
        ),
        ("optimizer.type", ["# optimizer.type", "It must be given"]),
        ("zero_optimization.offload_param.device", ['"none", "cpu", "nvme"', "ZeRO stages: 3"]),
        ("amp", ["# amp", "DeepSpeed refuses it"]),
        ("zero_optimization.mics_shard_size", ["MiCS"]),
        ("compute_grad_norm", ["Since DeepSpeed 0.19.7"]),
    ],
)
def test_a_key_is_explained_with_what_it_takes_and_where_it_acts(name: str, facts: list[str]) -> None:
    text = explain(name)
    for fact in facts:
        assert fact in text
    assert text.endswith("\n")


def test_a_name_that_several_sections_have_is_explained_in_each() -> None:
    titles = re.findall(r"^# (.*)$", explain("pin_memory"), re.MULTILINE)
    assert {f"zero_optimization.{key}.pin_memory" for key in ("offload_optimizer", "offload_param")} <= set(titles)


def test_a_key_of_each_section_can_be_explained() -> None:
    """All keys on schedule."""
    for path, model in sections().items():
        for name in list(model.model_fields)[:: 1 if ALL else 5]:
            assert explain(dotted((*path, name))).startswith(f"# {dotted((*path, name))}\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("overlap_com", "zero_optimization.overlap_comm"),
        ("zero_optimization.stag", "stage"),
        ("deprecated-kee", "deprecated-key"),
        ("bucket", "'reduce_bucket_size'"),
        ("qqqqqqqqqq", "lists all rules"),
        ("", "lists all rules"),
    ],
)
def test_what_there_is_not_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(name)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["zero3_init_flag", "monitor_config", "enable_triton", "replace_method"])
def test_a_key_of_another_program_is_distinguished_from_a_slip(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(name)
    foreign = str(caught.value).startswith(f"DeepSpeed has no key '{name}'")
    assert foreign is (name != "enable_triton")


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("sub_group_size", "stage3-key"),
        ("stage3_gather_16bit_weights_on_model_save", "stage3-key"),
        ("round_robin_gradients", "stage12-key"),
        ("parameter_alignment", "stage12-key"),
        ("cpu_offload_use_pin_memory", "deprecated-key"),
    ],
)
def test_a_key_names_the_rules_of_all_keys_of_its_kind(key: str, rule: str) -> None:
    assert f"- {rule}: {all_rules()[rule].title}\n" in explain(key)


@pytest.mark.parametrize("key", ["train_batch_size", "zero_optimization.overlap_comm"])
def test_a_key_that_acts_in_every_stage_of_zero_has_no_rules_of_one(key: str) -> None:
    assert "- stage" not in explain(key)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("moe", "`moe-leaf-module`"),
        ("Muon", "`muon-learning-rate`"),
        ("long context", "`sequence_parallel_size`"),
        ("sequence-parallelism", "`sequence_parallel_size`"),
        ("oom", "explain-exit"),
        ("zero", "`zero_optimization.stage`"),
        ("how do I use cpu offload", "`zero_optimization.offload_optimizer`"),
        ("page-locked", "`zero_optimization.offload_param.pin_memory`"),  # in no topic: found in texts
    ],
)
def test_topics_lead_to_keys_rules_and_a_guide(name: str, words: str) -> None:
    assert words in explain(name)


def test_topics_have_guides_and_words_of_their_own() -> None:
    known = [word for topic in topics().values() for word in topic.words]
    assert len(known) == len(set(known))
    for title, topic in topics().items():
        assert (REPOSITORY / "docs" / topic.guide).is_file()
        page_of_title = topic_page(title)
        assert all(topic_page(word) == page_of_title for word in topic.words)


def test_a_key_that_is_a_topic_too_has_both() -> None:
    pages = [line for line in explain("offload").splitlines() if line.startswith("# ")]
    assert pages == ["# offload", "# zero_optimization.zenflow.offload"]
    assert explain("optimizer").startswith("# optimizer\n")  # the key; the topic is "optimizers"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("offload", "`zero_optimization.offload_optimizer`"),
        ("resume", "`checkpoint`"),
        ("checkpoints", "`checkpoint`"),
        ("fsdp", "`zero_optimization.stage`"),
        ("long context", "`sequence_parallel_size`"),
    ],
)
def test_the_key_of_that_name_comes_first(name: str, first: str) -> None:
    assert explain(name).partition("Keys:\n\n")[2].startswith(f"- {first}: ")


def test_the_labels_of_an_upgrade_are_explained() -> None:
    text = (REPOSITORY / "zerokit/lint/upgrade.py").read_text()
    assert set(re.findall(r'rule="([^"]+)"', text)) == set(LABELS)
    for name, meaning in LABELS.items():
        assert explain(name) == f"# {name}\n\nA label of `zerokit check --upgrade`. {meaning}\n"
