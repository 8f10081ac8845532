"""Faults planted one by one, each where the doctor reads it for real."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.launching.test_scripts import stub
from zerokit.choices import OUTPUT_DIR
from zerokit.distributed.ranks import free_port
from zerokit.doctor import checks, host, hosts, interfaces, software, speed
from zerokit.doctor.result import CheckResult, ok
from zerokit.errors import LaunchError

Run = Callable[..., tuple[int, str, str]]


def only(results: Iterable[CheckResult], what: str) -> CheckResult:
    """What was found of one thing."""
    (found,) = [result for result in results if result.name == what]
    return found


def is_found(result: CheckResult, status: str, *words: str) -> None:
    assert result.status == status
    assert result.fix
    assert [word for word in words if word not in f"{result.message} {result.fix}"] == []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, the only one on the PATH but for the shell's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def test_full_shared_memory() -> None:
    is_found(host.shared_memory(Path("/proc")), "error", "0 B", "--shm-size")  # which has no room at all


@pytest.mark.torch
def test_libaio_is_what_deepspeed_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDFLAGS", "-Wl,--no-such-option")  # with which nothing is linked, as libaio is
    is_found(software.libaio(), "error", "headers", "libaio-dev")
    monkeypatch.setenv("CXX", "none")
    monkeypatch.setenv("PATH", "")
    assert software.libaio().status == "not checked"


def test_what_deepspeed_fails_at_is_told_apart_from_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "deepspeed"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "git_version_info.py").write_text("raise OSError(8, 'Exec format error', 'nvcc')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = software.libaio()
    assert result.status == "not checked"
    assert result.message == "DeepSpeed failed to look for it: OSError: [Errno 8] Exec format error: 'nvcc'"
    (package / "__init__.py").write_text("raise ImportError('half of it')")
    assert software.libaio().message == "asking deepspeed failed: ImportError: half of it"
    # Nor is it blamed for what else the question imports.
    (package / "__init__.py").write_text("import sys; sys.modules['zerokit'] = None")
    assert software.libaio().message.startswith(
        "asking deepspeed failed: ModuleNotFoundError: No module named 'zerokit"
    )


def test_few_open_files() -> None:
    code = "from zerokit.doctor.host import limits; print(*limits())"
    said = processes.checked(f"ulimit -S -n 64; exec '{sys.executable}' -c '{code}'")
    assert "status='error', message='64 can be open at once'" in said
    assert "ulimit -n" in said


@pytest.mark.parametrize(
    ("gpu", "arches", "status"),
    [
        ("sm_90", ["sm_80", "sm_90a"], "ok"),
        ("sm_86", ["sm_75", "sm_80"], "ok"),
        ("sm_120", ["sm_80", "compute_90"], "ok"),
        ("sm_70", ["sm_75", "sm_80", "compute_120"], "error"),
        ("sm_80", ["sm_86"], "error"),
    ],
)
def test_a_gpu_for_which_torch_has_no_code(gpu: str, arches: list[str], status: str) -> None:
    answer = {"build": "12.8", "nccl": "2.27", "arches": arches, "gpus": [["A card", 80 << 30, gpu]] * 2}
    results = list(software.gpus(answer))
    assert only(results, "GPUs").status == status
    assert only(results, "NCCL").status == "ok"


@pytest.mark.torch
def test_torch_that_sees_no_gpu(programs: Path) -> None:
    answer = {"build": "", "nccl": "", "arches": [], "gpus": []}
    assert only(software.gpus(answer), "GPUs").status == "not checked"
    stub(programs, "nvidia-smi", "")
    is_found(only(software.gpus(answer), "GPUs"), "error", "build for CPUs")
    is_found(only(software.gpus("asking torch failed: libc10.so"), "torch"), "error", "libc10.so")


def test_torch_that_is_not_installed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "package_versions", lambda: {"zerokit": "1"})
    is_found(only(software.packages(), "packages"), "error", "torch, deepspeed")
    assert list(software.gpus("asking torch failed: No module named 'torch'")) == []


def test_no_compiler(programs: Path) -> None:
    is_found(only(software.compiler(needed=True), "compiler"), "error", "apt install g++")
    assert only(software.compiler(needed=False), "compiler").status == "warning"


@pytest.mark.parametrize(
    ("zero", "gpus", "verdicts"),
    [
        ({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}}, 1, ("error", "libaio")),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, 1, ("error",)),
        ({"stage": 2, "offload_param": {"device": "nvme", "nvme_path": "/n"}}, 1, ("warning",)),
        ({"stage": 3, "offload_param": "nvme"}, 1, ("warning",)),
        ({"stage": 3}, 0, ("error",)),
    ],
)
def test_what_a_run_offloads_says_whether_it_needs_a_compiler_and_libaio(
    zero: dict[str, Any],
    gpus: int,
    verdicts: tuple[str, ...],
    programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    zerokit: Run,
) -> None:
    answer = {"build": "12.8", "nccl": "2.27", "arches": ["sm_90"], "gpus": [["A card", 80 << 30, "sm_90"]] * gpus}
    monkeypatch.setattr(software, "ask_torch", lambda: answer)
    monkeypatch.setattr(software, "libaio", lambda: CheckResult("libaio", "ok", "found"))
    (tmp_path / "r.yaml").write_text(
        json.dumps({"model": "m", "data": {"train": "d"}, "deepspeed": {"zero_optimization": zero}})
    )
    _, out, _ = zerokit("doctor", "--recipe", tmp_path / "r.yaml", "--format", "json")
    results = json.loads(out)["checks"]
    said = [result["status"] for result in results if result["name"] == "compiler"]
    assert (*said, *(result["name"] for result in results if result["name"] == "libaio")) == verdicts


def test_an_old_compiler(programs: Path) -> None:
    stub(programs, "c++", "echo 7.5.0")
    is_found(only(software.compiler(needed=True), "compiler"), "error", "7.5.0", "CXX=")
    stub(programs, "c++", "echo 13.2.0")
    assert only(software.compiler(needed=True), "compiler").status == "ok"


def test_a_lock_that_was_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert only(software.locks(), "extensions").status == "ok"
    lock = tmp_path / "torch_extensions" / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w"):  # as one that compiles has it
        assert only(software.locks(), "extensions").status == "ok"
    is_found(only(software.locks(), "extensions"), "error", f"rm '{lock}', unless another machine")
    odd = lock.parent.parent / "a'; touch owned; '" / "lock"
    odd.parent.mkdir()
    lock.rename(odd)
    (found,) = software.locks()
    command = found.fix.partition(", unless")[0]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert not odd.exists()
    assert not (tmp_path / "owned").exists()


def test_a_name_that_leads_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*addresses: str) -> Callable[..., list[object]]:
        return lambda name, port: [(2, 1, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.1.1"))
    is_found(host.network(several=True), "error", "127.0.1.1", "GLOO_SOCKET_IFNAME")
    assert host.network(several=False).status == "warning"
    monkeypatch.setattr(socket, "getaddrinfo", found("10.0.0.5"))
    assert host.network(several=True).status == "ok"


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        is_found(host.port(number), "warning", str(number), "--master_port")
    with socket.socket() as other:  # the store of rank 0 takes all addresses
        other.bind(("127.0.0.2", 0))
        other.listen()
        assert host.port(other.getsockname()[1]).status == "warning"


def test_the_port_that_is_offered_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(wanted: int) -> int:
        raise LaunchError(f"another process has port {wanted}")

    monkeypatch.setattr(host, "free_port", taken)
    for number, another in ((29500, 29511), (65530, 29511), (65524, 65535)):
        is_found(host.port(number), "warning", f"--master_port {another};")


def test_names_that_no_file_system_takes_are_not_there() -> None:
    results = list(checks._paths(checks.Needs(paths=(Path("x" * 300), Path("/")))))
    assert [result.message for result in results] == [f"{'x' * 300} does not exist"]


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ([], "error"),
        (["config.json"], "error"),  # which an estimate has downloaded, or a doctor before
        (["config.json", "model.safetensors"], "ok"),
        (["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"], "error"),
        (["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "ok"),
        (["config.json", "pytorch_model.bin"], "ok"),
        (["config.json", "pytorch_model.bin.index.json", "model.safetensors"], "ok"),
    ],
)
def test_a_model_of_the_hub_is_in_the_cache_or_cannot_be_had(
    files: list[str], status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--owner--name" / "snapshots" / "v1"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    result = checks._on_hub("owner/name", "v1")
    assert (result.status, result.name) == (status, "model")
    assert result.message.startswith("'owner/name' is not on this machine, and ") is (status == "error")


def test_shards_in_folders_are_looked_for_where_the_index_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--owner--name" / "snapshots" / "v1"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.safetensors").touch()
    index = {"weight_map": {"x": "a/model.safetensors", "y": "b/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    assert checks._on_hub("owner/name", "v1").status == "ok"
    (folder / "b" / "model.safetensors").unlink()
    assert checks._on_hub("owner/name", "v1").status == "error"


@pytest.mark.torch  # with huggingface_hub beside it
def test_the_hub_is_asked_and_nothing_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("zerokit.models.hub_config._resolve_host", lambda url: None)  # no name server answers here
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, timeout: asked.append(url))
    assert checks._on_hub("owner/name", "v1") == ok("model", "the Hub gives access to owner/name")
    assert [url.partition("owner/")[2] for url in asked] == ["name/resolve/v1/config.json"]
    assert not list(tmp_path.iterdir())


def test_nothing_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("open('owned', 'w')\nraise SystemExit(3)\n")
    # As an installed one: for tests the clone is on the path.
    (tmp_path / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").write_text("raise ImportError('torch of the site')\n")
    stub(tmp_path / "bin", "ssh", SAME)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    assert software.ask_torch() == "asking torch failed: ImportError: torch of the site"
    assert [result.status for result in hosts.hosts(["a"], [])] == ["ok"]
    assert not (tmp_path / "owned").exists()


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (Path("/proc/out"), tmp_path / "file" / "out"):
        is_found(only(host.disk(output), "output"), "error", str(output), "output_dir")
    assert {result.status for result in host.disk(tmp_path / "new" / "out")} <= {"ok", "warning"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> float:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(host, "_seconds_to_write", full)
    is_found(only(host.disk(tmp_path), "output"), "error", "No space left")


def test_a_control_group_of_1_gib(tmp_path: Path) -> None:
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{1 << 30}\n")
    is_found(host.memory(tmp_path), "error", "1.00 GiB", "--memory")


_NAMED = {"name": "b", "leads": [], "interface": None}
OTHERS = (
    *("{}", "[1]", "1", "[" * 5000),
    *(
        json.dumps({"time": 1.5, "python": "3", "versions": {}, "missing": [], **_NAMED, **other})
        for other in (
            *({"time": math.inf}, {"versions": {"torch": []}}, {"missing": [{}]}),
            *({"name": None}, {"leads": [1]}, {"leads": "127.0.0.1"}, {"interface": 5}),
        )
    ),
)
"""What a host may say that has another program there."""
SAME = 'shift 6; exec bash -c "$1"'
"""What ssh does, on this machine: five words of options, the host, and a line for a shell."""


@pytest.mark.parametrize(
    ("there", "status", "words"),
    [
        (SAME, "ok", []),
        pytest.param(
            f'{SAME.replace("exec ", "")} | sed \'s/"torch": "/&0./\'',
            *("error", ["other versions: torch 0."]),
            marks=pytest.mark.torch,
        ),
        (f'{SAME.replace("exec ", "")} | sed \'s/"time": 1/"time": 2/\'', "error", ["clock is off by"]),
        ("echo 'ssh: connect to host a port 22: No route to host' >&2; exit 255", "error", ["No route"]),
        ("echo 'bash: no such file' >&2; exit 127", "error", ["does not run there"]),
        ("echo zerokit:{", "error", []),
        *((f"echo 'zerokit:{other}'", "error", ["does not run there"]) for other in OTHERS),
    ],
)
def test_another_host(
    there: str, status: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path / "bin", "ssh", there)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (result,) = hosts.hosts(["a"], [str(tmp_path)])
    assert result.status == status
    assert [word for word in words if word not in result.message] == []


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("Could not resolve hostname a: Name or service not known", "Give the name an address in /etc/hosts"),
        ("connect to host a port 22: Connection refused", "Start sshd there, or name its port"),
        ("connect to host a port 22: Connection timed out", "no firewall is between"),
        ("me@a: Permission denied (publickey,password).", "Set up a key without a password"),
        ("Host key verification failed.", "accept its key"),
    ],
)
def test_the_fix_of_ssh_follows_from_its_message(
    message: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path / "bin", "ssh", f"echo 'ssh: {message}' >&2; exit 255")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (result,) = hosts.hosts(["a"], [str(tmp_path)])
    is_found(result, "error", message, fix)


def test_data_that_another_host_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path / "bin", "ssh", SAME)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    lacking = str(tmp_path / "it's $(gone)")
    is_found(only(hosts.hosts(["a"], [str(tmp_path), lacking]), "host a"), "error", f"lacks {lacking}", "Copy")


def test_interfaces_are_found_by_their_addresses() -> None:
    assert interfaces.interface_of("127.0.0.1") == "lo"
    assert interfaces.interface_of("192.0.2.1") is None  # of no machine
    assert interfaces.reaching("127.0.0.1") == "lo"
    assert interfaces.reaching("no such name") is None


@pytest.mark.parametrize(
    ("interface", "leads", "variables"),
    [
        ("eth7", "127.0.1.1", {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "=eth7"}),
        ("eth8", "127.0.1.1", None),
        ("eth7", "10.0.0.2", None),
    ],
)
def test_another_host_whose_name_leads_to_itself(
    interface: str, leads: str, variables: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How this machine's own name is, is not the test's.
    this = {"name": socket.gethostname(), "leads": ["10.0.0.1"], "interface": "lo"}
    other = {"name": "worker", "leads": [leads], "interface": interface}
    edit = {"a": json.dumps(this)[1:], "b": json.dumps(other)[1:]}
    of_host = "\n".join(f"{host}) sed 's/\"name\": .*/{words}/' ;;" for host, words in edit.items())
    stub(tmp_path / "bin", "ssh", f'host=$6; shift 6; bash -c "$1" | case $host in\n{of_host}\nesac')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    asked = []

    def reaching(host: str) -> str:
        asked.append(host)
        return "eth7"

    monkeypatch.setattr(interfaces, "reaching", reaching)
    results = list(hosts.hosts(["a", "b"], []))
    of_b = only(results, "host b")
    if leads == "127.0.1.1":
        is_found(of_b, "error", "its name 'worker' leads to 127.0.1.1 there", "GLOO_SOCKET_IFNAME")
    else:
        assert of_b.status == "ok"
    assert [result.variables for result in results if result.name == "interface"] == [variables] * bool(variables)
    assert asked == (["b"] if leads == "127.0.1.1" else [])  # no name is looked up without need


@pytest.mark.torch
def test_the_doctor_says_all_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zerokit: Run) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model: m\ndata: {{train: {tmp_path}/d.jsonl}}\ntraining: {{output_dir: {tmp_path}/out}}\n")
    code, out, err = zerokit("doctor", "--recipe", recipe, "--format", "json")
    assert (code, err) == (1, "")
    results = {result["name"]: result for result in json.loads(out)["checks"]}
    # How the machine that runs this test is, in other respects, is not the test's.
    errors = {result["name"] for result in results.values() if result["status"] == "error"}
    assert errors - {"shared memory", "open files", "host memory"} == {"paths", "model"}
    assert results["model"]["message"].startswith("'m' is not on this machine, and ")
    assert f"{tmp_path}/d.jsonl does not exist" in results["paths"]["message"]
    assert {"Python", "packages", "compiler", "extensions", "open files", "host memory", "port"} <= results.keys()


@pytest.mark.parametrize("training", ["{}", "{output_dir: null}"])
def test_a_recipe_without_an_output_folder_is_looked_at_where_train_writes(
    training: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zerokit: Run
) -> None:
    monkeypatch.setattr(software, "ask_torch", lambda: {"build": "12.8", "nccl": "", "gpus": []})
    monkeypatch.chdir(tmp_path)
    (tmp_path / OUTPUT_DIR).mkdir(parents=True)
    (tmp_path / "r.yaml").write_text(f"model: m\ndata: {{train: d}}\ntraining: {training}\n")
    _, out, _ = zerokit("doctor", "--recipe", "r.yaml", "--format", "json")
    assert any(result["message"].startswith(f"{tmp_path / OUTPUT_DIR} ") for result in json.loads(out)["checks"])


def test_a_bug_report_has_versions_and_no_secrets(monkeypatch: pytest.MonkeyPatch, zerokit: Run) -> None:
    variables = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_x1", "TORCH_API_KEY": "x2", "OTHER": "x3"}
    variables["TOKENIZERS_PARALLELISM"] = "false"
    for name, value in {**variables, "CUDA_PROXY": "http://me:x4@host"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("zerokit.doctor.environment.ask_torch", lambda: {"build": "12.8", "nccl": "", "gpus": []})
    code, out, err = zerokit("env")
    assert (code, err) == (0, "")
    assert "  NCCL_DEBUG: INFO\n" in out
    assert "  TOKENIZERS_PARALLELISM: false\n" in out
    assert f"  python: {sys.version.split()[0]}\n" in out
    assert [secret for secret in ("hf_x1", "x2", "x3", "x4", str(Path.home()) + "/") if secret in out] == []


def measured(*alone: float, together: float = 1e-3, gpu: str = "NVIDIA H100 80GB HBM3") -> list[CheckResult]:
    """What is said of ranks that took so long for their products, and for an all-reduce."""
    of_ranks = [speed.Measured(one, together, 256 << 20, gpu) for one in alone]
    return list(speed.judge(of_ranks, [("a" if rank < 4 else "b", rank % 4) for rank in range(len(alone))]))


def test_a_slow_gpu_among_fast_ones() -> None:
    ranks, _ = measured(*[1e-3] * 5, 1.9e-3, 1e-3, 1.1e-3)
    is_found(ranks, "warning", "rank 5 (1 on b) takes 1.9 times as long", "nvidia-smi")
    assert only(measured(*[1e-3] * 5, 1.1e-3), "ranks").status == "ok"
    on_cpu = measured(1e-3, 1.9e-3, gpu="")
    assert [result.status for result in on_cpu] == ["ok", "ok"]
    assert only(on_cpu, "all-reduce").message.endswith("is not known")


def test_the_slower_of_two() -> None:
    slow = only(measured(1e-3, 50e-3, gpu=""), "ranks")
    is_found(slow, "warning", "rank 1 (1 on a) takes 50.0 times as long", "nvidia-smi")
    is_found(only(measured(2e-3, 1e-3), "ranks"), "warning", "rank 0 (0 on a) takes 2.0 times", "nvidia-smi")


MISSING = "ModuleNotFoundError: No module named 'torch'"
WAITED = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."


@pytest.mark.parametrize(
    ("answers", "message", "fix"),
    [
        ((WAITED, MISSING), f"rank 1 (0 on b): {MISSING}", "Fix this rank"),
        ((MISSING, "did not answer in 180 s"), f"rank 0 (0 on a): {MISSING}", "Fix this rank"),
        ((WAITED, "did not answer in 180 s"), f"rank 0 (0 on a): {WAITED}", "no firewall closes its port 29511"),
    ],
)
def test_the_rank_that_the_others_waited_for_is_told(
    answers: tuple[str, str], message: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = []

    def ask(host: str, words: Any) -> str:
        met.append(words[3])
        return answers[words[0]]

    monkeypatch.setattr(speed, "_ask", ask)
    (result,) = speed.speed({"a": 1, "b": 1}, 0, 29511)
    assert (result.status, result.message) == ("error", message)
    assert fix in (result.fix or "")
    assert met == ["tcp://a:29511"] * 2


def test_a_machine_without_ssh_asks_no_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (result,) = speed.speed({"a": 1, "b": 1}, 0, 29511)
    is_found(result, "error", "ssh cannot be started here: No such file", "Fix this rank")


def test_an_all_reduce_that_is_slower_than_the_links() -> None:
    four = [1e-3] * 4
    fast = only(measured(*four, together=1.2e-3), "all-reduce")
    assert fast.status == "ok"
    assert "336 GB/s on the bus of 4 ranks, and " in fast.message
    is_found(only(measured(*four, together=20e-3), "all-reduce"), "warning", "20.1 GB/s", "NCCL_DEBUG")
    # Of two hosts, the network between them tells.
    slower = only(measured(*four, *four, together=5e-3), "all-reduce")
    assert slower.status == "ok"


@pytest.mark.torch
def test_ranks_of_two_hosts_measure_what_joins_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path / "bin", "ssh", SAME)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    ranks, all_reduce = speed.speed({"localhost": 1, "127.0.0.1": 1}, 0, free_port())
    assert ranks.name == "ranks"
    assert all_reduce.status == "ok"
    assert "GB/s on the bus of 2 ranks" in all_reduce.message
