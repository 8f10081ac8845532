import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests import processes
from tests.cli.conftest import refused
from tests.rehearsal import fake_worker
from tests.rehearsal.recordings import Recorder, job, training
from zerokit.choices import Launcher
from zerokit.cli.rehearse import rehearse as command
from zerokit.errors import LaunchError, ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import virtual_device
from zerokit.rehearsal.parent.rehearse import rehearse
from zerokit.rehearsal.recording import RankFacts, Recording
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.combination import on_nodes

pytestmark = pytest.mark.torch

Run = Callable[..., tuple[int, str, str]]

RECORDING = training()
SMALL_GPU = ["--gpu-memory", "1GiB"]
"""On which the recorded run does not fit."""


def _held(size: int) -> Recording:
    """A run that holds so many bytes."""
    run = Recorder()
    run.allocate(size)
    run.end_step(1)
    run.end_step(1)
    return run.recording()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_worker.install(monkeypatch, tmp_path)
    return fake_worker.script(tmp_path, recording=RECORDING)


@pytest.fixture
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that no script works in, so that what the worker writes there stays."""
    return tmp_path_factory.mktemp("told")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--num-gpus"),
        (["--num-gpus", 0], "--num-gpus"),
        (["--num-gpus", 4, "--rank", 4], "--rank: there is no rank 4 among 4. Choose 0 to 3"),
        (["--num-gpus", 12], "--num-gpus: 12 GPUs do not fill nodes of 8. Say with --gpus-per-node"),
        (["--num-gpus", 4, "--gpus-per-node", 0], "--gpus-per-node"),
        (["--num-gpus", 4, "--steps", -1], "--steps"),
        (["--num-gpus", 4, "--accelerate-config", "absent.yaml"], "absent.yaml: no such file. accelerate"),
        (["--num-gpus", 4, "--launcher", "mpirun"], "--launcher"),
        (["--num-gpus", 4, "--gpu-memory", "0"], "--gpu-memory: '0' is less than a MiB. Write it like 80GiB"),
        (
            ["--num-gpus", 4, "--time", "--gpu", "H1000"],
            "--gpu: there is no GPU 'H1000'. Did you mean 'H100'? For another card give its figures: ",
        ),
        (["--num-gpus", 4, "--gpu", "gaudi2"], "--gpu: Gaudi2 is no card of torch.cuda"),
        (["--num-gpus", 4, "--real-time"], "--real-time: there is no virtual time. Add --time"),
        (["--num-gpus", 4, "--timeline", "a.svg"], "--timeline: there is no virtual time. Add --time"),
        (["--num-gpus", 4, "--timeout", 0], "--timeout: 0 seconds are none. Give more than 0"),
        (["--num-gpus", 4, "--timeout", "5 parsecs"], "--timeout: '5 parsecs' is not a duration"),
        (["--num-gpus", 4, "--scan", 5, "minutes"], "minutes: no such script. Write a time as one word"),
        (
            ["--num-gpus", 4, "--ds-config-override", "zero_optimization.stge=3"],
            "--ds-config-override zero_optimization.stge: unknown key 'stge'. Did you mean 'stage'?",
        ),
        (["--num-gpus", 4, "--ds-config-override", "zero_optimization.stage=7"], "zero_optimization.stage: "),
        (["--num-gpus", 4, "--ds-config-override", "stage"], "--ds-config-override: 'stage' is not KEY=VALUE"),
        (["--num-gpus", 4, "--ds-config-override", "a..b=1"], "is not KEY=VALUE"),
        (["--num-gpus", 4, "--plot", "memory.png"], "--plot memory.png: a picture is written as SVG, not as PNG"),
        (["--num-gpus", 4, "--trace", "absent/t.json"], "absent/t.json: cannot be written: its folder does not exist"),
        (["--num-gpus", 4, "-o", "/"], "/: is a folder"),
        (["--num-gpus", 4, "--trace", "-"], "--trace -: is no file. Name one: the report is on stdout"),
        (["--num-gpus", 4, "--format", "xml"], "--format"),
        (["--num-gpus", 4, "--absent"], "--absent"),
    ],
)
def test_bad_options_are_one_line_and_2(zerokit: Run, script: Path, options: list[object], message: str) -> None:
    assert message in refused(zerokit, "rehearse", *options, script)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent.py"], "absent.py: no such script. Name a Python file, after all options"),
        (["x" * 300], "xxx: no such script"),
        (["."], ".: is a folder. Name the Python file in it that trains"),
        (["zero3.json"], "zero3.json: is no Python script, but a .json file. Name the Python file"),
        (["-m", "package/train.py"], "package/train.py: is not the name of a module"),
        (["-m", "train.py"], "-m train.py: is a file, not the name of a module. Leave out -m"),
        (["-m", "absent.train"], "-m absent.train: no such module. Name one of the current folder or of"),
    ],
)
def test_what_is_no_script(
    zerokit: Run, script: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    Path("zero3.json").write_text("{}")
    assert said in refused(zerokit, "rehearse", "--num-gpus", 4, *words)


def test_a_script_whose_engine_makes_no_step_is_not_said_to_fit(zerokit: Run, tmp_path: Path, script: Path) -> None:
    for done, reached in ((5, "after 5 of the 8 micro-steps"), (0, "as engine.step() was never called. ")):
        facts = RankFacts(idle_micro_steps=(done, 8))
        fake_worker.script(tmp_path, recording=replace(RECORDING, step_marks=(), facts=facts))
        ended = f"train.py: the script ended before its DeepSpeed engine made an optimizer step, {reached}"
        assert ended in refused(zerokit, "rehearse", "--num-gpus", 16, script)
    assert zerokit("rehearse", "--num-gpus", 16, *SMALL_GPU, "--no-advise", script)[0] == 1


def test_an_option_behind_the_script_is_named(zerokit: Run, script: Path) -> None:
    for words in (["--num-gpus", 4], ["--num-gpus=4"]):
        code, _, err = zerokit("rehearse", script, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert f"{words[0]} stands after SCRIPT and goes to it: put it before SCRIPT" in err


def test_times_are_written_as_people_write_them(
    zerokit: Run, tmp_path: Path, told: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float | None] = []
    monkeypatch.setattr(
        "zerokit.rehearsal.parent.start.run_workers",
        lambda *_, timeout, **__: given.append(timeout) or ([RECORDING], None),
    )
    for text, seconds in (("5min", 300), ("5m", 300), ("300", 300), ("300s", 300), ("1h", 3600)):
        assert zerokit("rehearse", "--num-gpus", 1, "--timeout", text, "--scan", text, script)[0] == 0
        assert given.pop() == seconds


def test_the_report_is_json_on_stdout_and_in_a_file(zerokit: Run, tmp_path: Path, script: Path) -> None:
    file = tmp_path / "report.json"
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, "--format", "json", "-o", file, script)
    assert code == 0
    alone = analyse(RECORDING, job(script=str(script), device=virtual_device(find_gpu("H100"))))
    judged = on_nodes(alone, Cluster(16, gpu=find_gpu("H100")))
    both = {**judged.model_dump(mode="json"), "ranks_rehearsed": [0, 15]}
    assert json.loads(out) == json.loads(file.read_text()) == both
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, "-o", "-", script)
    assert (code, json.loads(out)) == (0, both)
    code, _, err = zerokit("rehearse", "--num-gpus", 16, "-o", file, script)
    assert (code, "the file exists. Add --force" in err) == (2, True)
    assert zerokit("rehearse", "--num-gpus", 16, "-o", file, "--force", script)[0] == 0


def test_what_does_not_fit_gives_1(zerokit: Run, tmp_path: Path, script: Path) -> None:
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, *SMALL_GPU, "--no-advise", script)
    assert code == 1
    assert "Does not fit: needs" in out


def test_what_would_not_end_gives_2_above_its_report(zerokit: Run, tmp_path: Path, script: Path) -> None:
    alone = """
from zerokit.rehearsal.ranks.call_order import STEPS_DONE
from zerokit.rehearsal.ranks.exchange import Exchange
exchange = Exchange(pathlib.Path(job["exchange_folder"]), job["rank"], 16)
if job["rank"] == 0:
    exchange.record_call(tuple(range(16)), "barrier")
exchange.close(STEPS_DONE, steps=2)
"""
    fake_worker.script(tmp_path, "import pathlib" + alone, RECORDING)
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, script)
    assert code == 2
    first, second, *_ = out.splitlines()
    assert first.startswith("The cluster would wait for ever: rank 0 calls barrier at ")
    assert second.startswith("Fits: needs")
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, "--format", "json", script)
    assert (code, len(json.loads(out)["stuck"])) == (2, 1)


def test_what_does_not_fit_gets_advice(zerokit: Run, tmp_path: Path, script: Path) -> None:
    smaller = _held(2**20)
    change = f"if 'gradient_checkpointing' in job['overrides']: {fake_worker.saved(tmp_path, smaller)}"
    fake_worker.script(tmp_path, recording=RECORDING, then=change)
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, *SMALL_GPU, "--format", "json", script)
    assert code == 1
    assert [(one["change"], one["peak_bytes"]) for one in json.loads(out)["advice"]] == [
        ("gradient checkpointing", 2**20)
    ]


def test_the_answer_comes_first_and_ctrl_c_keeps_the_advice_up_to_then(
    zerokit: Run, tmp_path: Path, script: Path
) -> None:
    smaller = fake_worker.saved(tmp_path, _held(2**20))
    fake_worker.script(
        tmp_path,
        "import os, signal",
        RECORDING,
        f"if 'gradient_checkpointing' in job['overrides']: {smaller}\n"
        f"if job['num_gpus'] > 16: os.kill({os.getpid()}, signal.SIGINT); signal.pause()",
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    try:
        code, out, err = zerokit("rehearse", "--num-gpus", 16, *SMALL_GPU, script)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130, err
    answer, table, known, end = (
        out.index(words)
        for words in ("Does not fit", "GPU, needed", "gradient checkpointing", "Interrupted: other changes")
    )
    assert answer < table < known < end
    assert "What would help" not in out[:table]
    assert "gradient checkpointing: " in err


def test_a_change_is_rehearsed_on_all_ranks_that_differ_and_named_if_it_fails(
    zerokit: Run, tmp_path: Path, told: Path, script: Path
) -> None:
    note = f"""
changed = "" if job["num_gpus"] == 16 else "more"
if not job["overrides"]:
    folder = pathlib.Path(job["exchange_folder"])
    open(f'{told}/{{changed}}{{job["rank"]}}', "w").write(str([file.name for file in folder.iterdir()]))
if job["rank"]:
    {fake_worker.saved(tmp_path, _held(2**40))}
if changed and job["rank"]:
    print("RuntimeError: no room")
    raise SystemExit(3)
"""
    fake_worker.script(tmp_path, "import pathlib", RECORDING, note)
    code, out, _ = zerokit("rehearse", "--num-gpus", 16, "--details", *SMALL_GPU, script)
    assert code == 1
    assert sorted(file.name for file in told.iterdir()) == ["0", "15", "more0", "more31"]
    why = "twice the GPUs: the script fails after 2 optimizer steps (RuntimeError: no room)"
    assert f"Could not be rehearsed: {why}" in out


def test_a_failing_script_gives_2(zerokit: Run, tmp_path: Path, script: Path) -> None:
    fake_worker.script(tmp_path, "raise SystemExit(3)")
    code, out, err = zerokit("rehearse", "--num-gpus", 16, script, "--lr", 1)
    assert (code, out) == (2, "")
    assert "train.py: the script fails before its first optimizer step" in err
    assert err.endswith("is what the cluster would show\n")
    late = zerokit("rehearse", "--num-gpus", 16, script, "--gpu=h100")[2]
    assert late.count("\n") == 1
    assert "--gpu=h100 went to the script: if meant for rehearse, put it before" in late


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu=h100", "--advise"], "note: --advise, --gpu stand after the script, which gets them\n"),
        (["--num-gpus", 8], "note: --num-gpus stands after the script, which gets it\n"),
        (["--steps", 9, "--trace", "--gpus_per_node=8", "--lr", 1, "-o", "x"], ""),
    ],
)
def test_options_that_the_script_does_not_know_are_noted(
    zerokit: Run, tmp_path: Path, script: Path, words: list[object], said: str
) -> None:
    fake_worker.script(tmp_path, "# parser.add_argument('--steps')", RECORDING)
    (tmp_path / "arguments.py").write_text("class Arguments:\n    trace: bool = False\n    gpus_per_node: int = 8\n")
    (tmp_path / "folder.py").mkdir()
    code, _, err = zerokit("rehearse", "--num-gpus", 1, script, *words)
    assert (code, err) == (0, said)


def test_a_worker_that_has_said_why_is_not_talked_over(zerokit: Run, tmp_path: Path, script: Path) -> None:
    fake_worker.script(tmp_path, "raise SystemExit(2)")
    assert zerokit("rehearse", "--num-gpus", 16, "--rank", 3, script) == (2, "", "")


def test_the_worker_is_told_everything(zerokit: Run, tmp_path: Path, told: Path, script: Path) -> None:
    note = f"import json; open(f'{told}/{{job[\"rank\"]}}', 'w').write(json.dumps(job))"
    fake_worker.script(tmp_path, f"import pathlib; {note}", RECORDING)
    trace = tmp_path / "t.json"
    zerokit(
        "rehearse", "--num-gpus", 16, "--gpu-memory", "40GiB", "--steps", 3, "--trace", trace,
        "--ds-config-override", "zero_optimization.stage=3", "--ds-config-override", "optimizer.type=Lion",
        script, "--steps", "9", "-o", "x", "--", "--help",
    )  # fmt: skip
    jobs = {int(file.name): json.loads(file.read_text()) for file in told.iterdir()}
    assert sorted(jobs) == [0, 15]
    first, last = jobs[0], jobs[15]
    assert first["arguments"] == last["arguments"] == ["--steps", "9", "-o", "x", "--", "--help"]
    assert first["overrides"] == {"ds_config": {"zero_optimization.stage": 3, "optimizer.type": "Lion"}}
    assert (first["steps"], first["device"]["total_bytes"], first["module"]) == (3, 40 * 2**30, False)
    assert json.loads(trace.read_text())["traceEvents"]
    assert first["cwd"] == str(Path.cwd())


@pytest.mark.parametrize(
    ("options", "name", "memory"),
    [
        (["--gpu", "t4"], "Tesla T4", 15095 * 2**20),
        (["--gpu", "H200", "--gpu-memory", "100GiB"], "NVIDIA H200", 100 * 2**30),
        (["--gpu", "mi300x"], "NVIDIA H100 80GB HBM3", 196592 * 2**20),
        ([], "NVIDIA H100 80GB HBM3", int(81089.875 * 2**20)),  # as --gpu h100
    ],
)
def test_the_card_is_told_to_the_worker(
    zerokit: Run, tmp_path: Path, told: Path, script: Path, options: list[str], name: str, memory: int
) -> None:
    fake_worker.script(tmp_path, f"import json; open('{told}/job', 'w').write(json.dumps(job))", RECORDING)
    assert zerokit("rehearse", "--num-gpus", 1, *options, script)[0] == 0
    job = json.loads((told / "job").read_text())
    assert (job["device"]["name"], job["device"]["total_bytes"]) == (name, memory)


def test_what_is_uncertain_of_a_card_is_a_warning_of_the_report(zerokit: Run, script: Path) -> None:
    _, out, _ = zerokit("rehearse", "--num-gpus", 1, "--gpu", "mi325x", "--format", "json", script)
    of_memory, of_maker = json.loads(out)["warnings"][-2:]
    assert of_memory.startswith("what torch reports of MI325X is not published: 250.88 GiB is the nominal")
    assert of_maker.startswith("MI325X is rehearsed as an H100 with the memory of MI325X")


def test_one_rank_alone(zerokit: Run, tmp_path: Path, told: Path, script: Path) -> None:
    fake_worker.script(tmp_path, f"open(f'{told}/{{job[\"rank\"]}}', 'w')", RECORDING)
    assert zerokit("rehearse", "--num-gpus", 16, "--rank", 5, script)[0] == 0
    assert [file.name for file in told.iterdir()] == ["5"]


def test_a_module_gets_its_arguments(
    zerokit: Run, tmp_path: Path, told: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker of these tests reads what it is told to run as a file, whatever the name.
    monkeypatch.chdir(tmp_path)
    fake_worker.script(tmp_path, f"import json; open('{told}/job', 'w').write(json.dumps(job))", RECORDING)
    (tmp_path / "train.py").rename(tmp_path / "package.train")
    (tmp_path / "package.py").touch()
    assert zerokit("rehearse", "--num-gpus", 1, "-m", "package.train", "-m", "--lr=1")[0] == 0
    told_job = json.loads((told / "job").read_text())
    assert (told_job["script"], told_job["module"]) == ("package.train", True)
    assert told_job["arguments"] == ["-m", "--lr=1"]


@pytest.mark.parametrize("options", [[], ["--gpu", "A100-80GB"]])
def test_time_is_that_of_the_default_card_and_the_report_says_so(
    zerokit: Run, script: Path, options: list[str]
) -> None:
    words = ["--num-gpus", 1, "--time", "--no-advise", "--format", "json", *options]
    code, out, _ = zerokit("rehearse", *words, script)
    assert code == 0
    report = json.loads(out)
    assumed = [line for line in report["warnings"] if "times are those of an H100" in line]
    assert len(assumed) == (not options)


def test_reporting_needs_no_torch() -> None:
    names = ["recording", "parent.processes", "parent.advice", "report.report", "report.analysis"]
    names += ["report.tables", "report.drawings", "report.trace", "report.combination"]
    imports = ", ".join(f"zerokit.rehearsal.{name}" for name in names)
    check = f"import zerokit.cli.rehearse, {imports}, sys; "
    check += "assert not {'torch', 'transformers', 'deepspeed'} & set(sys.modules)"
    processes.checked([sys.executable, "-c", check])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launcher": "torchrum"}, "there is no launcher 'torchrum'. Did you mean 'torchrun'?"),
        ({"launcher": "foo"}, "there is no launcher 'foo'. Choose one of: torchrun, deepspeed, accelerate"),
        ({"steps": -1}, "steps is -1. Give 0 or more; 0 runs the script to its end"),
        ({"hardware": "x.json", "gpu": "H100"}, "--hardware: the file names the card. Leave out --gpu"),
        ({"hardware": "/absent.json"}, "/absent.json: no such file. Check the path"),
    ],
)
def test_the_python_api_refuses_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        rehearse(__file__, num_gpus=2, **options)
    assert str(caught.value) == message


def test_time_by_a_file_that_does_not_tell_a_card_s_speed_is_refused_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x1.json"
    file.write_text('{"gpu": {"name": "X1", "nominal_gb": 64, "tflops": {"bf16": 500}}}', encoding="utf-8")
    with pytest.raises(ZerokitError) as caught:
        rehearse(__file__, num_gpus=2, hardware=file, time=True)
    missing = "there is no time without bandwidth_gb_s of X1"
    assert str(caught.value) == f"{file}:1 (gpu): {missing}. Give them as in gpus.json"


@pytest.mark.parametrize(("gpus", "more"), [(8, ""), (6, " with a --num-gpus that is a multiple of 4")])
def test_nodes_larger_than_a_file_has_them_are_refused_by_the_file(gpus: int, more: str, tmp_path: Path) -> None:
    file = tmp_path / "x1.json"
    card = {"name": "X1", "nominal_gb": 64, "node": {"gpus": 4}}
    file.write_text(json.dumps({"gpu": card}, indent=1), encoding="utf-8")
    with pytest.raises(ZerokitError) as caught:
        rehearse(__file__, num_gpus=gpus, hardware=file)
    told = f"a node has 4 GPUs, and the run {gpus} on each. Say --gpus-per-node 4{more}, or correct the file"
    assert str(caught.value) == f"{file}:6 (gpu.node.gpus): {told}"
    for run in ({"num_gpus": 8, "gpus_per_node": 4}, {"num_gpus": 2}):
        with pytest.raises(ZerokitError, match="there is no rank 9"):  # the node's shape is none of them
            rehearse(__file__, hardware=file, rank=9, **run)


def test_the_launchers_of_the_command_are_those_of_the_job() -> None:
    assert get_type_hints(command)["launcher"] == Launcher


def test_the_device_is_built_in_sight_once_and_after_all_else_is_checked(
    zerokit: Run, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build() -> None:
        built.append("built")
        raise LaunchError("no C++ compiler", where="rehearse")

    monkeypatch.setattr("zerokit.rehearsal.parent.start.built_library", build)
    for options in (["absent.py"], ["--rank", 9, script], ["--gpu", "gaudi2", script]):
        assert zerokit("rehearse", "--num-gpus", 4, *options)[0] == 2
    assert built == []
    code, out, err = zerokit("rehearse", "--num-gpus", 4, script)
    assert (code, out, err) == (2, "", "zerokit: error: rehearse: no C++ compiler\n")
    assert built == ["built"]
