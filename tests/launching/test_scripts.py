"""The files that start a run: whatever its paths are, the shell, the schema and the launcher take them."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml

from tests import processes
from tests.cli.conftest import refused
from tests.tiny import REPOSITORY
from zerokit import extras
from zerokit.choices import LaunchTarget
from zerokit.distributed.ranks import free_port
from zerokit.errors import LaunchError
from zerokit.launching.scripts import Job

Run = Callable[..., tuple[int, str, str]]
ODD = 'it\'s $(touch owned) `id` "x" & ünï'
RECIPE = "model: m\ndata: {train: d.jsonl}\ntraining: {output_dir: out}\n"
HOSTS = "# mine\nworker-1 slots=2\nworker-2 slots=2 # the other\n"
LEAST = ["--num-nodes", "2", "--gpus-per-node", "2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and a recipe whose names a shell would take apart."""
    place = tmp_path / ODD
    place.mkdir()
    (place / f"{ODD}.yaml").write_text(RECIPE)
    (place / "hosts").write_text(HOSTS)
    monkeypatch.chdir(place)
    monkeypatch.setitem(extras.MODULES, "train", ())  # whatever this Python lacks, nothing is said of it
    return place


@pytest.fixture
def written(folder: Path, zerokit: Run) -> Callable[..., str]:
    """The file that is written for a launcher."""

    def text(target: str, *words: str) -> str:
        name = f"./{ODD}.yaml"
        code, out, err = zerokit("launch-script", name, *LEAST, "--for", target, *words, "-o", "made", "--force")
        assert (code, out, err.startswith("written: made. Start it with: ")) == (0, "", True)
        assert target != "slurm" or err.endswith("sbatch made\n")
        return (folder / "made").read_text()

    return text


@pytest.mark.parametrize(
    ("parallel", "code", "message"),
    [
        ("{sequence: 2}", 0, "written: made"),
        ("{sequence: 4}", 0, "nodes of 2 GPUs split groups of 4: sequence parallelism"),
        ("{tensor: 4}", 0, "nodes of 2 GPUs split groups of 4: tensor parallelism"),
        ("{sequence: 3}", 2, "(parallel): 4 GPUs do not divide into groups of 3"),
    ],
)
def test_nodes_that_split_a_group_are_named(
    parallel: str, code: int, message: str, folder: Path, zerokit: Run
) -> None:
    (folder / "mine.yaml").write_text(f"{RECIPE}parallel: {parallel}\n")
    done, _, err = zerokit("launch-script", "mine.yaml", *LEAST, "--for", "slurm", "-o", "made")
    assert done == code
    assert message in err
    assert ("split" in err) is ("split" in message)


@pytest.mark.parametrize(("target", "starts_it"), [("slurm", True), ("deepspeed", True), ("skypilot", False)])
def test_a_python_that_cannot_train_is_named(
    target: str, starts_it: bool, folder: Path, zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.MODULES, "train", ("no_such_module",))
    code, _, err = zerokit("launch-script", f"./{ODD}.yaml", "--for", target)
    assert code == 0
    assert (f"the script starts {sys.executable}, which lacks no_such_module" in err) == starts_it


def stub(folder: Path, name: str, script: str) -> None:
    """A program of that name."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def with_stubs(folder: Path, **variables: str) -> dict[str, str]:
    """The environment in which stubs are found first."""
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}


def job_with_a_free_port() -> str:
    """A number of a Slurm job, from which its port is made."""
    for number in range(os.getpid() % 10_000, 20_000):
        with suppress(LaunchError):
            free_port(20_000 + number % 10_000)
            return str(number)
    raise AssertionError("no port is free")


@pytest.mark.torch
@pytest.mark.distributed
def test_slurm_starts_every_rank_by_the_real_torchrun(
    written: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    written("slurm")
    bin_ = tmp_path / "bin"
    stub(bin_, "scontrol", "printf '127.0.0.1\\n127.0.0.2\\n'")
    # What srun does with one task on each of two nodes.
    stub(
        bin_,
        "srun",
        'while [[ $1 == -* ]]; do shift; done\n(SLURM_NODEID=0 "$@") & (SLURM_NODEID=1 "$@") & wait -n && wait -n',
    )
    installed = tmp_path / "installed"
    (installed / "zerokit").mkdir(parents=True)
    (installed / "zerokit" / "__init__.py").touch()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    (installed / "zerokit" / "train.py").write_text(
        "import json, os, sys\n"
        f"said = [*map(os.environ.get, {names!r}), *sys.argv[1:]]\n"
        "open('rank' + os.environ['RANK'], 'w').write(json.dumps(said))\n"
    )
    job = job_with_a_free_port()
    env = with_stubs(bin_, SLURM_JOB_NODELIST="n[1-2]", SLURM_JOB_ID=job, SLURM_NNODES="2")
    env["PYTHONPATH"] = str(installed)
    for name in ("torch", "zerokit", "random", "site", "sitecustomize"):
        (folder / f"{name}.py").write_text("raise SystemExit('code of the current folder runs')")
    processes.checked(["bash", "made"], cwd=folder, env=env)
    said = [json.loads((folder / f"rank{rank}").read_text()) for rank in range(4)]
    recipe = str(folder / f"{ODD}.yaml")
    assert said == [
        [str(rank), str(rank % 2), "4", "2", "127.0.0.1", "--recipe", recipe, "--resume", "auto"] for rank in range(4)
    ]
    assert not (folder / "owned").exists()


@pytest.mark.parametrize(
    ("step", "code", "requeued"),
    [
        ("exit 0", 0, False),
        ("exit 1", 1, False),
        # torchrun, whose ranks save and end with 75, and a run that is finished by then.
        ("trap 'sleep 0.1; exit 1' TERM; kill -TERM $PPID; while :; do sleep 0.05; done", 75, True),
        ("trap 'exit 0' TERM; kill -TERM $PPID; while :; do sleep 0.05; done", 0, False),
    ],
    ids=["finished", "failed", "asked to stop", "asked to stop at its end"],
)
def test_a_slurm_job_that_is_asked_to_stop_is_queued_again(
    step: str, code: int, requeued: bool, written: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    text = written("slurm")
    for line in ("--open-mode=append", "--requeue", "--signal=B:TERM@120"):
        assert f"\n#SBATCH {line}\n" in text
    stub(tmp_path / "bin", "srun", step)
    stub(tmp_path / "bin", "scontrol", '[ "$1" = show ] && echo n1 || echo "$@" > queued')
    env = with_stubs(tmp_path / "bin", SLURM_JOB_NODELIST="n1", SLURM_JOB_ID="17")
    done = processes.run(["bash", "made"], cwd=folder, env=env)
    assert done.returncode == code, done.stderr
    assert (folder / "queued").exists() == requeued
    assert not requeued or (folder / "queued").read_text() == "requeue 17\n"


def test_what_bash_runs_are_the_words_that_were_meant(
    written: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    recipe = str(folder / f"{ODD}.yaml")
    for target, words in (("deepspeed", ["--hostfile", "hosts"]), ("torchrun", []), ("skypilot", [])):
        text = written(target, *words)
        program = Path(sys.executable).parent / ("deepspeed" if target == "deepspeed" else Path(sys.executable))
        if target == "skypilot":
            text, program, recipe_there = yaml.safe_load(text)["run"], Path("python"), f"{ODD}.yaml"
        else:
            recipe_there = recipe
        assert shlex.quote(str(program)) in text
        # The program itself is replaced, and says what it is given.
        text = text.replace(f"{shlex.quote(str(program))} ", "show ").replace("exec show", "show")
        stub(tmp_path / "bin", "show", 'printf "%s\\n" "$@" > said; [ ! -e "$2" ] || cat "$2" > hosts_of')
        (folder / "made").write_text(text)
        env = with_stubs(tmp_path / "bin", NODE_RANK="1", MASTER_ADDR="10.0.0.1")
        env |= {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
        processes.checked(["bash", "made"], cwd=folder, env=env)
        said = (folder / "said").read_text().splitlines()
        assert said[-3:] == ["zerokit.train", "--recipe", recipe_there]
        if target == "deepspeed":
            assert (folder / "hosts_of").read_text() == "worker-1 slots=2\nworker-2 slots=2\n"
        else:
            options = dict(zip(said[2:12:2], said[3:12:2], strict=True))
            assert options["--nnodes"] == options["--nproc-per-node"] == "2"
            assert (options["--node-rank"], options["--master-addr"]) == ("1", "10.0.0.1")
    assert not (folder / "owned").exists()


def test_kubernetes_takes_the_job(written: Callable[..., str], folder: Path) -> None:
    job = yaml.safe_load(written("kubernetes", "--image", "me/zerokit:1", "--volume", "work"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert job["metadata"] == {"name": "it-s-touch-owned-id-x-n"}
    roles = job["spec"]["pytorchReplicaSpecs"]
    assert {name: role["replicas"] for name, role in roles.items()} == {"Master": 1, "Worker": 1}
    for role in roles.values():
        assert set(role) == {"replicas", "restartPolicy", "template"}
        pod = role["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"
        assert all(isinstance(word, str) for word in container["command"])
        assert container["command"][-1] == str(folder / f"{ODD}.yaml").replace("$(", "$$(")
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("7b", "run-7b"), ("ü", "zerokit"), ("Qwen_3-", "qwen-3"), ("a" * 39 + "-b", "a" * 39), ("_7", "run-7")],
)
def test_kubernetes_takes_the_name(recipe: str, name: str) -> None:
    job = Job(Path(f"/w/{recipe}.yaml"), Path("/w"), 1, 8)
    assert job.name == name
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)  # NameIsDNS1035Label


SET = {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "=eth7"}
QUOTED = [f'{name}="{value}"' for name, value in SET.items()]
ENV = "env | sort | grep -E '^(NCCL|GLOO)_' > said; cat \"${DS_ENV_FILE:-/dev/null}\" > handed_on"


@pytest.fixture
def report(folder: Path) -> Path:
    """What the doctor says of machines whose names lead to themselves."""
    looks = [{"what": "disk", "verdict": "ok"}, {"what": "interface", "verdict": "ok", "variables": SET}]
    (folder / "doctor.json").write_text(json.dumps({"checks": looks}))
    return folder / "doctor.json"


@pytest.mark.parametrize("target", ["deepspeed", "torchrun", "slurm"])
def test_variables_are_set_where_the_doctor_found_a_reason(
    target: str,
    report: Path,
    written: Callable[..., str],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.deepspeed_env").write_text("NCCL_DEBUG=WARN")  # without an end of line
    (folder / ".deepspeed_env").write_text("MINE=1\n")
    words = ["--hostfile", "hosts"] if target == "deepspeed" else []
    env = with_stubs(tmp_path / "bin", NODE_RANK="1", MASTER_ADDR="a", HOME=str(tmp_path / "home"))
    env |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "1"}
    (tmp_path / "temporary").mkdir()
    env["TMPDIR"] = str(tmp_path / "temporary")
    monkeypatch.delenv("DS_ENV_FILE", raising=False)
    for name in ("show", "srun"):
        stub(tmp_path / "bin", name, ENV)
    stub(tmp_path / "bin", "scontrol", "echo n1")
    program = shlex.quote(str(Path(sys.executable).parent / "deepspeed" if words else Path(sys.executable)))
    for given, expected in ((["--doctor", "doctor.json"], SET), ([], {})):
        text = written(target, *words, *given)
        (folder / "made").write_text(text.replace(f"{program} ", "show ").replace("exec show", "show"))
        processes.checked(["bash", "made"], cwd=folder, env={k: v for k, v in env.items() if k not in SET})
        said = dict(line.split("=", 1) for line in (folder / "said").read_text().splitlines())
        assert {name: said.get(name) for name in SET} == {name: expected.get(name) for name in SET}
        handed_on = (folder / "handed_on").read_text().splitlines()
        settings = [*QUOTED, "NCCL_DEBUG=WARN", "MINE=1"]
        assert handed_on == (settings if target == "deepspeed" and given else [])
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_file_of_variables_that_the_user_names_is_read_as_deepspeed_reads_it(
    is_absolute: bool, report: Path, written: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    for place in (tmp_path / "home", folder):
        (place / "my env").write_text(f"PLACE={place.name}\n")
        (place / ".deepspeed_env").write_text("NOT_READ=1\n")
    named = f"{tmp_path}/home/my env" if is_absolute else "my env"
    env = with_stubs(tmp_path / "bin", HOME=str(tmp_path / "home"), DS_ENV_FILE=named)
    stub(tmp_path / "bin", "show", ENV)
    program = shlex.quote(str(Path(sys.executable).parent / "deepspeed"))
    text = written("deepspeed", "--hostfile", "hosts", "--doctor", "doctor.json")
    (folder / "made").write_text(text.replace(f"{program} ", "show "))
    processes.checked(["bash", "made"], cwd=folder, env=env)
    places = ["home"] if is_absolute else ["home", folder.name]
    handed_on = (folder / "handed_on").read_text().splitlines()
    assert handed_on == [*QUOTED, *(f"PLACE={place}" for place in places)]


@pytest.mark.torch
def test_deepspeed_hands_them_to_any_shell_as_they_are() -> None:
    from deepspeed.launcher.multinode_runner import PDSHRunner

    runner = PDSHRunner(SimpleNamespace(user_args=[], user_script=""), "")
    for line in QUOTED:
        runner.add_export(*line.split("=", maxsplit=1))
    # No word begins with "=", of which zsh makes the path of a program.
    assert not any(value.startswith("=") for value in runner.exports.values())
    words = [f"export {name}={value};" for name, value in runner.exports.items()]
    said = processes.checked(f"{' '.join(words)} echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME")
    assert said.split() == ["eth7", "=eth7"]


def test_accelerate_is_started_with_variables(report: Path, written: Callable[..., str]) -> None:
    first = written("accelerate", "--doctor", "doctor.json").splitlines()[0]
    assert "number: GLOO_SOCKET_IFNAME='eth7' NCCL_SOCKET_IFNAME='=eth7' PYTHONSAFEPATH=1 accelerate launch " in first
    assert "_SOCKET_IFNAME" not in written("accelerate")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "is no report of 'zerokit doctor --format json'"),
        ('{"checks": {}}', "is no report of 'zerokit doctor --format json'"),
        ('{"checks": [{"variables": {"LD_PRELOAD": "a.so"}}]}', "has 'LD_PRELOAD', which the doctor never"),
        ('{"checks": [{"variables": {"NCCL_X": "$(id)"}}]}', "has an invalid value of 'NCCL_X'"),
        ('{"checks": [{"variables": {"NCCL_X": 1}}]}', "has an invalid value of 'NCCL_X'"),
    ],
)
def test_what_is_no_report_of_the_doctor_sets_nothing(content: str, says: str, folder: Path, zerokit: Run) -> None:
    (folder / "doctor.json").write_text(content)
    assert says in refused(zerokit, "launch-script", f"./{ODD}.yaml", "--for", "torchrun", "--doctor", "doctor.json")


def test_a_report_without_a_reason_for_any_variable_is_said_to_set_none(folder: Path, zerokit: Run) -> None:
    (folder / "doctor.json").write_text(json.dumps({"checks": [{"what": "disk", "verdict": "ok"}]}))
    words = ("launch-script", f"./{ODD}.yaml", "--for", "torchrun")
    code, out, err = zerokit(*words, "--doctor", "doctor.json")
    assert code == 0
    assert "note: doctor.json suggests no network variable, so the script sets none" in err
    assert zerokit(*words)[1] == out


@pytest.mark.parametrize("target", ["kubernetes", "skypilot"])
def test_a_recipe_must_lie_in_the_folder_that_is_sent(
    target: str, folder: Path, zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--for", target, *(["--image", "i", "--volume", "v"] if target == "kubernetes" else [])]
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.yaml").write_text(RECIPE)
    (folder / "7b.yaml").write_text(RECIPE)
    (folder.parent / "link").symlink_to(folder / "sub")
    (folder / "sub" / "link").symlink_to(folder)
    monkeypatch.chdir(folder / "sub")
    for recipe in ("../7b.yaml", str(folder / "7b.yaml"), "link/7b.yaml"):
        refused(zerokit, "launch-script", recipe, *words)
    for recipe in ("../sub/deep.yaml", str(folder.parent / "link" / "deep.yaml"), "./deep.yaml"):
        code, out, err = zerokit("launch-script", recipe, *words)
        assert (code, err) == (0, "")
        job = yaml.safe_load(out)
        if target == "kubernetes":
            pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
            place = pod["containers"][0]["command"][-1].replace("$$(", "$(")
            assert place == str(folder / "sub" / "deep.yaml")
        else:
            assert job["run"].endswith(" --recipe deep.yaml\n")


def test_what_the_run_reads_is_not_written_over(folder: Path, zerokit: Run) -> None:
    (folder / "link").symlink_to(f"{ODD}.yaml")
    for output, words in (("link", []), ("hosts", ["--hostfile", "hosts"])):
        command = ["launch-script", f"./{ODD}.yaml", *LEAST, "--for", "torchrun", *words]
        assert "is what this run reads" in refused(zerokit, *command, "-o", output, "--force")
    refused(zerokit, "launch-script", f"./{ODD}.yaml", "--for", "slurm", "-o", "x" * 300)
    assert (folder / f"{ODD}.yaml").read_text() == RECIPE
    assert (folder / "hosts").read_text() == HOSTS


@pytest.mark.torch
def test_accelerate_reads_its_config(written: Callable[..., str], folder: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    written("accelerate", "--hostfile", "hosts")
    config: Any = load_config_from_file(str(folder / "made"))
    assert (config.num_processes, config.num_machines, config.main_process_ip) == (4, 2, "worker-1")


@pytest.mark.parametrize("target", get_args(LaunchTarget))
def test_one_machine_needs_no_names(target: str, folder: Path, zerokit: Run, tmp_path: Path) -> None:
    words = ["--image", "i", "--volume", "v"] if target == "kubernetes" else []
    code, out, err = zerokit("launch-script", f"./{ODD}.yaml", "--for", target, *words)
    assert (code, err) == (0, "")
    if out.startswith("#!/bin/bash"):
        processes.checked(["bash", "-n", "-c", out])
    else:
        assert isinstance(yaml.safe_load(out), dict)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--for", "slurm", "--gpus-per-node", "9"], "no machine has 9 GPUs"),
        (["--for", "deepspeed"], "needs the names of the machines"),
        (["--for", "kubernetes"], "needs a container image"),
        (["--for", "deepspeed", "--hostfile", "twice"], "twice:2: host 'a' is repeated"),
        (["--for", "deepspeed", "--hostfile", "none"], "none:1: host 'a' has no slots"),
        (["--for", "deepspeed", "--hostfile", "odd"], "odd:1: '-oProxyCommand=id slots=2' is not HOST slots=N"),
        (["--for", "deepspeed", "--hostfile", "empty"], "names no host"),
        (["--for", "deepspeed", "--hostfile", "hosts", "--num-nodes", "3"], "names 2 hosts, and the run has 3"),
        (["--for", "deepspeed", "--hostfile", "hosts", "--gpus-per-node", "8"], "'worker-1' has 2 slots"),
        (["--for", "slurm", "--num-nodes", "0"], "--num-nodes"),
        (["--for", "pbs"], "pbs"),
        (["--for", "slurm", "--hostfile", "hosts"], "--hostfile: is not accepted by --for slurm"),
        (["--for", "slurm", "--image", "x"], "--image: is not accepted by --for slurm"),
        (["--for", "skypilot", "--doctor", "none.json"], "no such file"),
        (["--for", "deepspeed", "--volume", "x"], "Leave it out; it is for kubernetes"),
        (["--for", "kubernetes", "--accelerator", "Z100"], "--accelerator: is not accepted by --for kubernetes"),
        (["--for", "skypilot", "--accelerator", "H100\nrun: id"], "--accelerator: 'H100 run: id' is no name"),
        (["--for", "skypilot", "--accelerator", "H100:8"], "'H100:8' is no name. Give the name alone: their number"),
        (["--for", "kubernetes", "--volume", "Bad_Name"], "--volume: 'Bad_Name' is no name. Give the name of a claim"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, folder: Path, zerokit: Run) -> None:
    files = {"twice": "a slots=2\na slots=2\n", "none": "a slots=0\n", "empty": "# nobody\n"}
    for name, text in {**files, "odd": "-oProxyCommand=id slots=2\n"}.items():
        (folder / name).write_text(text)
    assert says in refused(zerokit, "launch-script", f"./{ODD}.yaml", *LEAST, *words, "-o", "made")
    assert not (folder / "made").exists()


def test_the_example_hostfile_is_read(zerokit: Run) -> None:
    from zerokit.launching.hostfile import read_hostfile

    assert read_hostfile(REPOSITORY / "launch" / "hostfile") == {"worker-1": 8, "worker-2": 8}
