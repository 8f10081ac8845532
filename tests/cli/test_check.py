import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import work
from tests.cli.conftest import refused
from zerokit import console
from zerokit.lint import Subject
from zerokit.lint.rule import RULES, Hit, Rule
from zerokit.lint.run import all_rules

Run = Callable[..., tuple[int, str, str]]
PRESETS = Path(__file__).parents[2] / "ds_configs"
ZERO2 = PRESETS / "zero2.json"
ZERO3 = PRESETS / "zero3.json"

RunProcess = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.json"
    file.write_text(
        '{\n  "train_batch_size": 8,\n  "gradient_cliping": 1.0,\n  "zero_optimization": {"stage": 2}\n}\n'
    )
    return file


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    file = tmp_path / "doubtful.json"
    file.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2, "sub_group_size": 1e9}}')
    return file


def test_a_good_file(zerokit: Run) -> None:
    code, out, err = zerokit("check", ZERO2)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"{ZERO2}: nothing found"


def test_errors_are_named_with_their_place_and_give_1(zerokit: Run, bad: Path) -> None:
    code, out, err = zerokit("check", bad, "--severity", "error")
    assert (code, err) == (1, "")
    first, *_, summary = out.splitlines()
    assert first == (
        f"{bad}:3:3: error: unknown key 'gradient_cliping'. Did you mean 'gradient_clipping'? [unknown-key]"
    )
    assert summary == "1 error in 1 file (1 can be fixed by --fix)"


def test_warnings_alone_give_0(zerokit: Run, doubtful: Path) -> None:
    code, out, _ = zerokit("check", doubtful)
    assert code == 0
    assert "warning" in out


@pytest.mark.parametrize("value", ["[2]", "{a: 1}", "null", "x"])
def test_launch_files_may_have_any_values(zerokit: Run, tmp_path: Path, value: str) -> None:
    keys = ("num_machines", "num_processes", "main_process_ip", "main_process_port", "machine_rank")
    text = "".join(f"{key}: {value}\n" for key in keys)
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(f"distributed_type: DEEPSPEED\ndeepspeed_config: {{zero_stage: 2}}\n{text}")
    code, out, err = zerokit("check", *files, "--severity", "info")
    assert (code in (0, 1), err) == (True, "")
    assert "in 2 files" in out


def test_infos_are_for_those_who_ask(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 3, "overlap_comm": false}}')
    assert "overlap-off" not in zerokit("check", file)[1]
    assert "overlap-off" in zerokit("check", file, "--severity", "info")[1]
    assert "overlap-off" in zerokit("check", file, "--only", "overlap-off")[1]


def test_a_file_that_cannot_be_read_gives_2_and_the_others_are_still_checked(zerokit: Run, bad: Path) -> None:
    code, out, err = zerokit("check", "absent.json", bad, "gone.json")
    assert code == 2
    assert "gradient_cliping" in out
    assert [line.split()[2] for line in err.splitlines()] == ["absent.json:", "gone.json:"]


def test_a_syntax_error_gives_2_with_its_line(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n"stage": 1\n')
    assert "a.json:3:1: the file ends, but the '{' of line 1, column 1 is not closed" in refused(
        zerokit, "check", tmp_path / "a.json"
    )


def test_what_deepspeed_alone_reads_is_checked_nevertheless(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{\n"train_batch_size": 8, // all GPUs\n"stage": 1,\n}')
    assert zerokit("check", file, "--only", "not-plain-json")[0] == 0
    code, out, _ = zerokit("check", file, "--only", "not-plain-json", "--target", "trainer")
    assert code == 1
    assert f"{file}:2:24: error: " in out
    assert f"{file}:3:1: error: " in zerokit("check", file)[1]


def test_json_is_one_object_of_the_agreed_form(zerokit: Run, bad: Path) -> None:
    code, out, err = zerokit("check", bad, ZERO3, "--format", "json", "--severity", "error")
    assert (code, err) == (1, "")
    data = json.loads(out)
    assert data["files"] == [
        {
            "file": str(bad),
            "findings": [
                {
                    "rule": "unknown-key",
                    "severity": "error",
                    "path": "gradient_cliping",
                    "line": 3,
                    "column": 3,
                    "message": "unknown key 'gradient_cliping'",
                    "hint": "Did you mean 'gradient_clipping'?",
                    "fixable": True,
                }
            ],
        },
        {"file": str(ZERO3), "findings": []},
    ]
    assert {item["rule"] for item in data["not_run"]} <= RULES.keys()


@pytest.mark.parametrize("form", ["json", "github", "sarif"])
def test_other_forms_are_alone_on_stdout(zerokit: Run, bad: Path, form: str) -> None:
    code, out, err = zerokit("check", bad, "absent.json", "--format", form)
    assert (code, "absent.json" in err) == (2, True)
    if form == "github":
        assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in out.splitlines())
    else:
        assert json.loads(out)


def test_the_target_decides_who_fills_auto(zerokit: Run) -> None:
    assert zerokit("check", ZERO2, "--target", "trainer")[0] == 0
    code, out, _ = zerokit("check", ZERO2, "--target", "deepspeed")
    assert code == 1
    assert "unfilled-auto" in out


def test_the_number_of_gpus_decides_whether_batch_sizes_fit(zerokit: Run, doubtful: Path) -> None:
    assert zerokit("check", doubtful, "--num-gpus", 4)[0] == 0
    assert zerokit("check", doubtful, "--num-gpus", 3)[0] == 1


def test_it_says_that_it_does_not_look_whether_the_run_fits(zerokit: Run) -> None:
    _, _, err = zerokit("check", ZERO2, "--model", "llama-3.1-8b", "--gpu", "4090")
    assert "check does not judge whether the run fits; 'zerokit estimate' does" in err


@pytest.fixture
def subjects(monkeypatch: pytest.MonkeyPatch) -> list[Subject]:
    """What the rules were given, in place of what they would say."""
    seen: list[Subject] = []

    def look(subject: Subject) -> Iterator[Hit]:
        seen.append(subject)
        yield from ()

    all_rules()
    monkeypatch.setattr(
        "zerokit.lint.run.RULES", {"look": Rule("look", "zero", "error", "Look", "Text", {}, {}, check=look)}
    )
    return seen


def test_what_the_options_say_of_the_run_reaches_the_rules(
    zerokit: Run, subjects: list[Subject], tmp_path: Path
) -> None:
    model = tmp_path / "config.json"
    model.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 100,
            }
        )
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: gpt2\ndata: {train: a.jsonl}\ntraining: {learning_rate: 1e-5}\n")
    options = ["--num-gpus", 16, "--gpus-per-node", 4, "--model", model, "--recipe", recipe]
    options += ["--gpu-memory", "80GiB", "--host-memory", "1TiB", "--deepspeed-version", "0.16.4"]
    assert zerokit("check", ZERO2, *options)[0] == 0
    (run,) = (subject.run for subject in subjects)
    assert (run.cluster.num_gpus, run.cluster.gpus_per_node) == (16, 4)
    assert (run.cluster.gpu_memory_bytes, run.cluster.host_bytes) == (80 * 2**30, 2**40)
    assert run.model is not None
    assert run.model.hidden_size == 64
    assert run.recipe is not None
    assert run.recipe.training == {"learning_rate": 1e-5}
    assert run.target == "trainer"  # which zerokit's recipes run on
    assert str(run.deepspeed_version) == "0.16.4"


@pytest.mark.parametrize(("name", "hidden_size"), [("gpt2", 768), ("./not-here", None)])
def test_the_model_is_the_recipes_where_none_is_given(
    name: str, hidden_size: int | None, zerokit: Run, subjects: list[Subject], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model: {name}\ndata: {{train: a.jsonl}}\n")
    assert zerokit("check", ZERO2, "--num-gpus", 8, "--recipe", recipe)[0] == 0
    model = subjects[0].run.model
    assert (model.hidden_size if model else None) == hidden_size


@pytest.mark.parametrize(("num_gpus", "local"), [(4, 4), (64, 8)])
def test_nodes_have_8_gpus_unless_there_are_fewer(
    zerokit: Run, subjects: list[Subject], num_gpus: int, local: int
) -> None:
    zerokit("check", ZERO2, "--num-gpus", num_gpus)
    assert subjects[0].cluster.local_ranks == local
    assert subjects[0].run.target is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu-memory", "much"], "--gpu-memory: 'much' is not a size"),
        (["--host-memory", "80"], "--host-memory: '80' is less than a MiB"),
        (["--num-gpus", "0"], "--num-gpus"),
        (["--num-gpus", "16", "--gpus-per-node", "5"], "--num-gpus: 16 GPUs do not fill nodes of 5"),
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--recipe", "absent.yaml"], "absent.yaml: no such file"),
        (["--deepspeed-version", "zero"], "zero"),
        (["--only", "unknown-kee"], "--only: there is no rule 'unknown-kee'. Did you mean 'unknown-key'?"),
        (["--disable", "qqqqqqq"], "--disable: there is no rule 'qqqqqqq'"),
        (["--dry-run"], "--dry-run: there is nothing to try. Add --fix"),
        (["--format", "xml"], "xml"),
        (["--severity", "worst"], "worst"),
        (["--ignore", "batch-size"], "there is no --ignore. Write --disable RULE"),
        (["--strict"], "there is no --strict. Errors give exit code 1, warnings 0"),
        (["--ds-version", "0.17.0"], "Write --deepspeed-version VERSION"),
    ],
)
def test_options_that_cannot_be_used_give_2_and_one_line(zerokit: Run, options: list[str], message: str) -> None:
    assert message in refused(zerokit, "check", ZERO2, *options)


def test_fix_fixes_the_file_and_says_what_it_did(zerokit: Run, bad: Path) -> None:
    bad.chmod(0o640)
    before = bad.read_text()
    code, out, _ = zerokit("check", bad, "--fix", "--severity", "warning")
    assert code == 0
    assert bad.read_text() == before.replace("cliping", "clipping")
    assert bad.stat().st_mode & 0o777 == 0o640
    assert list(bad.parent.iterdir()) == [bad]
    became = "gradient_cliping -> gradient_clipping: 1.0"
    assert out.splitlines()[0] == f"{bad}:3:3: fixed: unknown key 'gradient_cliping': {became} [unknown-key]"
    assert out.splitlines()[1] == f"{bad}: nothing found"
    again = zerokit("check", bad, "--fix", "--severity", "warning")
    assert again[0] == 0
    assert "fixed" not in again[1]


def test_fix_leaves_what_a_person_must_decide(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    text = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}'
    file.write_text(text)
    code, out, _ = zerokit("check", file, "--fix")
    assert code == 1
    assert "offload-param-stage" in out
    assert file.read_text() == text


def test_fix_keeps_line_ends_and_does_not_touch_a_good_file(zerokit: Run, bad: Path) -> None:
    bad.write_bytes(bad.read_bytes().replace(b"\n", b"\r\n"))
    zerokit("check", bad, "--fix")
    assert bad.read_bytes().count(b"\r\n") == bad.read_bytes().count(b"\n") == 5
    times = bad.stat().st_mtime_ns, bad.stat().st_ino
    zerokit("check", bad, "--fix", "--only", "unknown-key")
    assert (bad.stat().st_mtime_ns, bad.stat().st_ino) == times


@pytest.mark.parametrize("option", ["--dry-run", "--diff"])
def test_a_dry_run_prints_the_change_and_writes_nothing(zerokit: Run, bad: Path, option: str) -> None:
    before = bad.read_text()
    code, out, err = zerokit("check", bad, "--fix", option)
    assert code == 1
    assert bad.read_text() == before
    assert "note: preview only" in err
    assert out.splitlines()[:2] == [f"--- a/{bad}", f"+++ b/{bad}"]
    assert '+  "gradient_clipping": 1.0,' in out.splitlines()


def test_a_file_that_cannot_be_written_is_said(zerokit: Run, bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    assert f"{bad}: cannot be written: Permission denied" in refused(zerokit, "check", bad, "--fix")
    assert list(bad.parent.iterdir()) == [bad]


def test_a_read_only_file_is_left_alone_and_the_others_are_fixed(zerokit: Run, bad: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_bytes(bad.read_bytes())
    kept.chmod(0o444)
    code, out, err = zerokit("check", kept, bad, "--fix", "--severity", "warning")
    assert code == 2
    assert f"{kept}: cannot be written: the file is read-only" in err
    assert kept.read_text().count("gradient_cliping") == 1
    assert f"{bad}:3:3: fixed: unknown key 'gradient_cliping'" in out
    assert "gradient_cliping" not in bad.read_text()


def test_standard_input(zerokit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give('{"train_batch_size": 8, "gradient_cliping": 1}')
    code, out, _ = zerokit("check", "-")
    assert code == 1
    assert "<stdin>:1:25: error: unknown key 'gradient_cliping'" in out
    give('{"train_batch_size": 8, "gradient_cliping": 1}')
    assert zerokit("check", "-", "--fix")[0] == 2
    give('{"train_batch_size": 8, "gradient_cliping": 1}')
    assert '+{"train_batch_size": 8, "gradient_clipping": 1}' in zerokit("check", "-", "--fix", "--diff")[1]


def test_folders(zerokit: Run, bad: Path, doubtful: Path) -> None:
    (bad.parent / "other.json").write_text('{"name": "not a ds_config"}')
    code, out, _ = zerokit("check", bad.parent, "--severity", "error")
    assert code == 1
    assert "bad.json:3:3" in out
    assert "doubtful.json: nothing found" in out
    assert "other.json" not in out
    (bad.parent / "empty").mkdir()
    assert "there is no ds_config in this folder" in refused(zerokit, "check", bad.parent / "empty")


def test_presets_have_no_problem_worth_a_warning(zerokit: Run) -> None:
    code, out, _ = zerokit("check", PRESETS, "--severity", "warning")
    assert code == 0
    assert "warning: " not in out


def test_a_rule_that_fails_is_reported_as_a_bug_and_the_others_go_on(
    zerokit: Run, bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(subject: Subject) -> Iterator[Hit]:
        raise IndexError("too far")
        yield

    broken = Rule("broken", "zero", "error", "Broken", "Text", {}, {}, check=fail)
    monkeypatch.setattr("zerokit.lint.run.RULES", {**all_rules(), "broken": broken})
    code, out, err = zerokit("check", bad, ZERO2)
    assert code == 2
    assert "gradient_cliping" in out
    assert err.count("the rule broken failed on this file, which is a bug of zerokit: IndexError: too far") == 2
    assert "Traceback" not in err


def test_colours_are_for_terminals_and_change_no_word(
    zerokit: Run, bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = zerokit("check", bad, ZERO2)[1]
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console.stdout.cache_clear()
    coloured = zerokit("check", bad, ZERO2)[1]
    console.stdout.cache_clear()
    assert "\x1b[1;31merror\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_one_file_is_little_work() -> None:
    """From the first import to the end, 250,000 calls: a third of a second."""
    assert work.calls_of_command("check", ZERO2) < 400_000


@pytest.mark.slow
def test_many_files_are_little_work_each(tmp_path: Path, bad: Path) -> None:
    """5,000 calls for a file, 200 files a second, and no more for the last than for the first."""
    texts = [file.read_text() for file in sorted(PRESETS.glob("*.json"))] + [bad.read_text()]
    calls = []
    for times in (1, 2, 4):
        folder = tmp_path / str(times)
        folder.mkdir()
        for number in range(times * len(texts)):
            (folder / f"{number}.json").write_text(texts[number % len(texts)])
        calls.append(work.calls_of_command("check", folder, "--num-gpus", "8"))
    second, later = (calls[1] - calls[0]) / len(texts), (calls[2] - calls[1]) / (2 * len(texts))
    assert second < 12_000
    assert later < 1.1 * second


def test_a_folder_is_fixed_without_what_links_of_it_lead_to(zerokit: Run, bad: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/link.json").symlink_to(bad)
    before = bad.read_text()
    code, _, err = zerokit("check", tmp_path / "configs", "--fix")
    assert (code, bad.read_text()) == (2, before), err


def test_upgrade_reports_changes_only_and_gives_1_for_an_error(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 1.0,\n'
        ' "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}'
    )
    code, out, err = zerokit("check", file, "--upgrade", "0.17.5..0.17.6", "--format", "json")
    assert (code, err) == (1, "")
    (checked,) = json.loads(out)["files"]
    assert [(one["rule"], one["line"]) for one in checked["findings"]] == [("defect-comes", 2)]
    code, out, _ = zerokit("check", file, "--upgrade", "0.18.8..0.18.9", "--severity", "warning")
    assert (code, out.splitlines()[0]) == (0, f"{file}: no changes")


@pytest.mark.parametrize("other", [("--fix",), ("--deepspeed-version", "0.19.8"), ("--format", "sarif")])
def test_upgrade_is_refused_together_with(zerokit: Run, other: tuple[str, ...]) -> None:
    message = "zerokit: error: --upgrade: cannot be combined with " + " ".join(other).removesuffix(" 0.19.8")
    code, out, err = zerokit("check", ZERO2, "--upgrade", "0.16.4..", *other)
    assert (code, out) == (2, "")
    assert err.startswith(message)


def launch_file(folder: Path, ds_config: str, **keys: object) -> Path:
    """A launch file that names a ds_config beside it."""
    lines = [
        "distributed_type: DEEPSPEED",
        f"deepspeed_config: {{deepspeed_config_file: {ds_config}}}",
        "num_machines: 1",
        *(f"{key}: {value}" for key, value in keys.items()),
    ]
    file = folder / "launch.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def found(out: str) -> list[tuple[str, str]]:
    """File and rule of each finding in JSON, in order."""
    return [
        (Path(file["file"]).name, finding["rule"]) for file in json.loads(out)["files"] for finding in file["findings"]
    ]


def test_the_ds_config_that_a_launch_file_names_is_checked_as_its_run(zerokit: Run, tmp_path: Path) -> None:
    ds_config = tmp_path / "ds.json"
    # 12 is no multiple of 8; nothing is said of running without the Trainer and accelerate.
    ds_config.write_text('{"train_batch_size": 12, "bf16": {"enabled": "auto"}}')
    launch = launch_file(tmp_path, "ds.json", num_processes=8)
    expected = [("ds.json", rule) for rule in ("accelerate-without-zero", "batch-size")]
    for files in ([launch], [tmp_path], [launch, ds_config], [ds_config, launch]):
        code, out, _ = zerokit("check", *files, "--format", "json")
        assert (code, sorted(found(out))) == (1, expected)
    alone = zerokit("check", ds_config, "--format", "json")[1]
    assert found(alone) == [("ds.json", "auto-beside-numbers")]


def test_a_named_ds_config_is_looked_for_from_the_folders_above(
    zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 9}}')
    launch_file(tmp_path / "conf", "conf/ds.json", num_processes=8)
    monkeypatch.chdir(tmp_path / "conf")
    assert found(zerokit("check", "launch.yaml", "--format", "json")[1]) == [("ds.json", "bad-value")]
    launch_file(tmp_path / "conf", "gone/ds.json", num_processes=8)
    assert found(zerokit("check", "launch.yaml", "--format", "json")[1]) == [("launch.yaml", "launch-ds-config")]


def test_all_defects_of_a_named_ds_config_are_told(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": "auto", "bf16": {"enabled": true}, "zero_optimization": {"stage": 0}}'
    )
    launch = launch_file(tmp_path, "ds.json", num_processes=8)
    _, out, _ = zerokit("check", launch, "--deepspeed-version", "0.18.2", "--format", "json")
    assert found(out).count(("ds.json", "known-defect")) == 2


def test_a_named_ds_config_that_cannot_be_read_is_an_error_of_its_own(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": [')
    launch = launch_file(tmp_path, "ds.json", num_processes=8, use_cpu="true")
    code, out, err = zerokit("check", launch)
    assert (code, "[launch-cpu]" in out) == (2, True)
    assert err.startswith(f"zerokit: error: {tmp_path / 'ds.json'}:1")


@pytest.mark.parametrize(
    ("keys", "rules"),
    [
        ({}, [("b.yaml", "launch-machine-rank")]),
        ({"machine_rank": 1}, []),
        ({"mixed_precision": "bf16"}, []),  # another run
        ({"main_process_ip": "10.0.0.2"}, []),
        ({"num_machines": 1}, []),
        ({"deepspeed_config": "{deepspeed_multinode_launcher: standard, zero_stage: 1}"}, []),
    ],
)
def test_each_machine_has_its_own_rank(
    zerokit: Run, tmp_path: Path, keys: dict[str, object], rules: list[tuple[str, str]]
) -> None:
    shared: dict[str, object] = {
        **{"distributed_type": "DEEPSPEED", "num_machines": 2, "num_processes": 8},
        **{"main_process_ip": "10.0.0.1", "machine_rank": 0},
        "deepspeed_config": "{deepspeed_multinode_launcher: standard}",
    }
    for name, more in (("a.yaml", {}), ("b.yaml", keys)):
        lines = (f"{key}: {value}" for key, value in (shared | more).items())
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    assert found(zerokit("check", tmp_path, "--format", "json")[1]) == rules
    (tmp_path / "other").mkdir()
    other = shutil.copy(tmp_path / "a.yaml", tmp_path / "other" / "c.yaml")
    assert found(zerokit("check", tmp_path / "a.yaml", other, "--format", "json")[1]) == []


def test_fix_leaves_a_named_ds_config_alone(zerokit: Run, bad: Path) -> None:
    before = bad.read_text()
    code, out, _ = zerokit("check", launch_file(bad.parent, bad.name), "--fix")
    assert (code, bad.read_text()) == (1, before)
    assert "gradient_cliping" in out


def test_a_file_that_does_not_fit_the_recipe_hides_no_other(zerokit: Run, tmp_path: Path, bad: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model: gpt2\ndata: {train: a.jsonl}\ntraining: {output_dir: out, optim: deepspeed_muon, max_grad_norm: 0.5}\n"
    )
    other = tmp_path / "other.json"
    other.write_text('{"zero_optimization": {"stage": 2}}')
    code, out, err = zerokit("check", other, bad, "--recipe", recipe, "--only", "unknown-key")
    assert (code, len(err.splitlines())) == (2, 2)
    code, out, err = zerokit("check", other, bad, "--recipe", recipe, "--format", "json")
    assert [bool(file.get("error")) for file in json.loads(out)["files"]] == [True, True]


def test_a_diff_does_not_hide_what_it_leaves(zerokit: Run, bad: Path) -> None:
    bad.write_text(bad.read_text().replace('{"stage": 2}', '{"stage": 9}'))
    other = bad.with_name("other.json")
    other.write_text('{"zero_optimization": {"stag": 1, "stage": 7}}')
    code, out, err = zerokit("check", bad, other, "--fix", "--diff")
    assert code == 1
    assert "error" not in out  # the patch alone
    assert [line.rsplit("[", 1)[-1] for line in err.splitlines() if ": error: " in line].count("bad-value]") == 2
    assert "gradient_cliping" not in err


def test_what_several_files_have_is_said_once(zerokit: Run, bad: Path) -> None:
    files = [bad, *(bad.with_name(f"bad{number}.json") for number in range(3))]
    for file in files:
        file.write_text(bad.read_text())
    code, out, _ = zerokit("check", *files)
    assert code == 1
    (line,) = [line for line in out.splitlines() if "gradient_cliping" in line]
    assert line.startswith("4 files: error: unknown key 'gradient_cliping'")
    assert all(f"{file}:3:3" in out for file in files)
    assert out.splitlines()[-1].startswith("4 errors in 4 files")
    assert len(found(zerokit("check", *files, "--format", "json")[1])) == 4
    _, out, _ = zerokit("check", *files[:2])
    assert out.count("unknown key") == 2


def test_other_files_are_left_out_on_request(zerokit: Run, bad: Path) -> None:
    package = bad.with_name("package.json")
    package.write_text('{"dependencies": {}}')
    assert zerokit("check", package, "--skip-others")[:2] == (0, "")
    code, out, _ = zerokit("check", package, bad, "--skip-others")
    assert (code, "package" in out, "gradient_cliping" in out) == (1, False, True)
    assert zerokit("check", package)[0] == 2


def test_a_link_to_itself_is_a_file_that_cannot_be_read(zerokit: Run, bad: Path) -> None:
    loop = bad.with_name("loop.json")
    loop.symlink_to(loop)
    code, out, err = zerokit("check", loop, bad)
    assert (code, "gradient_cliping" in out, "Traceback" in err) == (2, True, False)
    assert "loop.json" in err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("FSDP", "starts FSDP, not DeepSpeed; only how it starts processes is checked"),
        ("MULTI_GPU", "starts MULTI_GPU, not DeepSpeed; only how it starts processes is checked"),
        ("DEEPSPEED", "nothing found"),
        ("'NO'", "nothing found"),
    ],
)
def test_a_launch_file_without_deepspeed_is_not_called_good(
    kind: str, said: str, zerokit: Run, tmp_path: Path
) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nnum_processes: 2\n")
    assert zerokit("check", file) == (0, f"{file}: {said}\n", "")


def test_fix_names_the_launch_files_that_it_does_not_fix(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
    file.write_text(f"{text}deepspeed_config:\n  zero_stage: 9\n")
    code, _, err = zerokit("check", file, "--fix")
    assert (code, err) == (1, f"zerokit: note: --fix does not change launch files: {file}\n")
    file.write_text(text)
    assert zerokit("check", file, "--fix")[2] == ""
