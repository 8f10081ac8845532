"""Bad inputs, made from seeds: files that are damaged, hostile or of something else, and odd options.

A case is the words of one command and the files that lie beside it. The same seed makes the same case.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.tiny import REPOSITORY
from tests.validation.faults.checkpoints import bad_run
from tests.validation.faults.damage import WORDS, Write, bad_json, bad_yaml, damaged, distorted, special


@dataclass(frozen=True)
class Case:
    """One input."""

    name: str
    words: tuple[str, ...]
    """After ``zerokit``."""
    files: dict[str, Write] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()
    """Files that it is asked to write."""
    writes: bool = False
    """Whether it is asked to write a file of any name."""


CONFIG = json.loads((REPOSITORY / "ds_configs" / "plain" / "zero3_nvme.json").read_text())
RECIPE = {
    "model": "./none",
    "data": {"train": "none.jsonl"},
    "task": {"seq_len": 64},
    "training": {"output_dir": "out", "max_steps": 1, "learning_rate": 1e-5},
    "deepspeed": {"zero_optimization": {"stage": 2}},
}
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
NAMES = [
    "a.json",
    "\x1b[31mred.json",
    "-x.json",
    "ä\u202e.json",
    "a b.json",
    "a.yaml",
    "a",
    "a.JSON",
    "x" * 250 + ".json",
]


def of_check(random_: random.Random) -> Case:
    name = random_.choice(NAMES)
    content = bad_yaml(CONFIG, random_) if name.endswith("yaml") else bad_json(CONFIG, random_)
    options = random_.sample(
        ["--num-gpus=4", "--target=deepspeed", "--target=accelerate", "--model=llama-3.1-8b", "--gpu=h100"], 2
    )
    form = random_.choice(["text", "json", "github", "sarif"])
    fix = random_.random() < 0.3
    words = ("check", f"--format={form}", *options, *(("--fix",) if fix else ()), f"./{name}")
    return Case("check", words, {name: content}, frozenset([name] if fix else []))


LAUNCH = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "machine_rank": 0,
    "main_process_ip": "10.0.0.1",
    "main_process_port": 29500,
    "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 4, "zero3_init_flag": True},
}


def of_launch_file(random_: random.Random) -> Case:
    named = {**LAUNCH, "deepspeed_config": {"deepspeed_config_file": "a.json"}}
    content = bad_yaml(random_.choice([LAUNCH, named]), random_)
    files: dict[str, Write] = {"launch.yaml": content, "a.json": bad_json(CONFIG, random_)}
    upgrade = random_.choice(["0.16.4..0.19.8", "0.16.4..", *WORDS])
    words = random_.choice(
        [
            ("check", "."),
            ("check", "launch.yaml", "--target=accelerate", "--deepspeed-version=0.16.4"),
            ("check", "launch.yaml", "a.json", f"--upgrade={upgrade}"),
            ("resolve", "launch.yaml", "--num-gpus=16"),
            ("diff", "launch.yaml", "a.json"),
        ]
    )
    return Case(f"{words[0]} LAUNCH", words, files)


def of_resolve(random_: random.Random) -> Case:
    words = ("resolve", "a.json", "--num-gpus=4", f"--format={random_.choice(['text', 'json'])}", "--all")
    if random_.random() < 0.5:
        return Case("resolve", words, {"a.json": bad_json(CONFIG, random_)})
    content = bad_yaml({**RECIPE, "model": "llama-3.1-8b"}, random_)
    return Case("resolve", ("resolve", "--num-gpus=4", "--recipe=r.yaml"), {"r.yaml": content})


def of_diff(random_: random.Random) -> Case:
    files: dict[str, Write] = {"a.json": bad_json(CONFIG, random_), "b.json": json.dumps(CONFIG).encode()}
    words = random_.sample(["a.json", "b.json"], 2)
    return Case("diff", ("diff", *words, "--num-gpus=4"), files)


def of_estimate(random_: random.Random) -> Case:
    sizes = ("--num-gpus=8", "--micro-batch-size=1", "--seq-len=512")
    if random_.random() < 0.4:
        return Case(
            "estimate --ds-config",
            ("estimate", "llama-3.1-8b", *sizes, "--ds-config=a.json"),
            {"a.json": bad_json(CONFIG, random_)},
        )
    content = bad_json(MODEL, random_)
    model = random_.choice(["config.json", "."])
    return Case("estimate MODEL", ("estimate", model, *sizes, "--zero-stage=3"), {"config.json": content})


def of_train(random_: random.Random) -> Case:
    # Broken in a way that shows before torch is imported: whether the rest would train is not tried here.
    content = damaged("model: [\n" + yaml.safe_dump(RECIPE), random_)
    if random_.random() < 0.5:
        content = yaml.safe_dump({"a": distorted(RECIPE, random_), "model_": 1}).encode(errors="surrogatepass")
    previews = random_.random() < 0.3
    words = ("train", "--recipe=r.yaml", *(("--preview=2",) if previews else ()))
    return Case("train --preview" if previews else "train", words, {"r.yaml": content})


def of_checkpoint(random_: random.Random) -> Case:
    step, files = bad_run(random_)
    form = random_.choice([(), ("--format=json",)])
    command = random_.choice(["show", "verify", "export", "reshard", "diff", "prune"])
    path = random_.choice([step, step, "run", random_.choice([*files, *WORDS])])
    words = {
        "export": (path, "-o", "out", *random_.choice([(), ("--no-verify",), ("--dtype=fp32", "--no-config")])),
        "reshard": (
            path,
            "-o",
            "out",
            f"--num-gpus={random_.choice([1, 3, 3, 0, 10**30])}",
            *random_.choice([(), ("--no-verify",), ("--zero-stage=1",), ("--zero-stage=3", "--no-verify")]),
        ),
        "diff": random_.sample([path, "run"], 2),
        "prune": (random_.choice(["run", "run", path]), f"--keep={random_.choice([1, 1, 2, 10**30])}", "--yes"),
    }.get(command, (path,))
    # What prune removes is for its own tests; here it must end well.
    line = ("checkpoint", command, *words, *form)
    return Case(f"checkpoint {command}", line, files, frozenset(["out"]), writes=command == "prune")


LOG = """\
[2026-11-22 10:00:00,1] [INFO] [runner.py:610:main] cmd = python -u -m deepspeed.launcher.launch train.py
{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': 0.1}  10%|#         | 10/100 [00:10<01:30]
[rank3]:[E1122 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/me/train.py", line 12, in <module>
[rank3]:     main()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity \
of 79.15 GiB, of which 1.44 GiB is free. With non-PyTorch memory, this process has 77.70 GiB memory in use.
[2026-11-22 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9
zerokit: error: recipe.yaml:3: no such key. Remove it
"""


def _bad_log(random_: random.Random) -> Write:
    chance = random_.random()
    if chance < 0.2:
        return special(random_)
    lines = LOG.splitlines(keepends=True)
    if chance < 0.3:
        return random_.choice(lines).strip().encode() * 200_000
    if chance < 0.4:
        return (random_.choice([*" :'[({=.-0a\t\r", "Tried to allocate "]) * 3_000_000).encode()
    if chance < 0.6:
        return "".join(random_.choices(lines, k=random_.choice([1, 30, 40_000]))).encode()
    return damaged(LOG, random_)


def of_explain_exit(random_: random.Random) -> Case:
    files: dict[str, Write] = {"a.log": _bad_log(random_)}
    words = ["explain-exit", random_.choice(["a.log"] * 5 + ["-", "-9", "137", "SIGBUS", *WORDS])]
    if random_.random() < 0.3:
        files["r.yaml"] = bad_yaml(RECIPE, random_)
        words.append("--recipe=r.yaml")
    return Case("explain-exit", (*words, f"--format={random_.choice(['text', 'json'])}"), files)


def of_log_folder(random_: random.Random) -> Case:
    names = random_.sample(
        ["rank0.log", "rank1.log", "attempt_0/0/stderr.log", "a.log.gz", "1\u00b2.log", "x/y.err"], 3
    )
    files: dict[str, Write] = {f"logs/{name}": damaged(LOG, random_) for name in names}
    files[f"logs/{names[0]}"] = _bad_log(random_)
    return Case("explain-exit FOLDER", ("explain-exit", random_.choice(["logs", "logs/", "."])), files)


HOSTS = "# my machines\nworker-1 slots=8\nworker-2 slots=8  # the new one\n"
TARGETS = ("deepspeed", "torchrun", "accelerate", "slurm", "kubernetes", "skypilot")


def of_launch_script(random_: random.Random) -> Case:
    files: dict[str, Write] = {"r.yaml": yaml.safe_dump(RECIPE).encode(), "hosts": HOSTS.encode()}
    name = random_.choice(["r.yaml", "hosts"])
    if name == "r.yaml":
        files[name] = bad_yaml(RECIPE, random_)
    else:
        files[name] = special(random_) if random_.random() < 0.2 else damaged(HOSTS, random_)
    target = random_.choice(TARGETS)
    words = ["launch-script", "r.yaml", f"--for={target}", "--num-nodes=2"]
    words += ["--hostfile=hosts"] * (name == "hosts")
    words += [f"--{random_.choice(['image', 'volume', 'accelerator', 'gpus-per-node'])}={random_.choice(WORDS)}"] * (
        random_.random() < 0.3
    )
    return Case("launch-script", tuple(words), files)


def of_doctor(random_: random.Random) -> Case:
    # As for training, broken before torch is asked; what a look finds is for its own tests.
    if random_.random() < 0.5:
        content = special(random_) if random_.random() < 0.2 else damaged(HOSTS, random_) + b"\nworker slots=\n"
        return Case("doctor", ("doctor", "--hostfile=hosts"), {"hosts": content})
    return Case("doctor", ("doctor", "--recipe=r.yaml"), of_train(random_).files)


_PLAN = ("--gpu=h100", "--max-gpus=1", "--global-batch-size=1", "--rehearse=0", "--no-input")
PRICES = "gpu,usd_per_hour,date\nh100,2.5,2026-11-27\na100-80,1.4,2026-11-27\n"
PLAN = {**dict.fromkeys(("model", "verdict", "method", "command"), "a"), "plans": [], "rejected": [], "steps": 1}


def of_plan(random_: random.Random) -> Case:
    model, rows = json.dumps(MODEL).encode(), b'{"text": "a"}\n' * 3
    words, files = random_.choice(
        [
            ((".", "--tokens=1M", *_PLAN), {"config.json": bad_json(MODEL, random_)}),
            ((".", "--data=a.jsonl", *_PLAN), {"config.json": model, "a.jsonl": damaged(rows.decode(), random_)}),
            (("--recipe=r.yaml", *_PLAN), {"r.yaml": bad_yaml(RECIPE, random_)}),
            (
                (".", "--tokens=1M", "--prices=p.csv", *_PLAN),
                {"config.json": model, "p.csv": damaged(PRICES, random_)},
            ),
            (
                ("--compare", "run.json", "plan.json"),
                {"run.json": bad_json({"steps": 1}, random_), "plan.json": bad_json(PLAN, random_)},
            ),
        ]
    )
    return Case("plan", ("plan", *words), files, writes=True)  # remembers its estimates


def of_report(random_: random.Random) -> Case:
    return Case(
        "report",
        ("report", "plan.json", "-o", "out.html"),
        {"plan.json": bad_json(PLAN, random_)},
        frozenset(["out.html"]),
    )


_OPTIONS = {
    "config": "zero-stage offload-optimizer precision optimizer learning-rate micro-batch-size model num-gpus"
    " gpu gpu-memory hpz-size preset warmup-steps format nvme-path",
    "check good.json": "num-gpus gpus-per-node model recipe gpu gpu-memory only severity upgrade deepspeed-version",
    "resolve good.json": "num-gpus recipe model target argument format",
    "diff good.json good.json": "num-gpus format",
    "estimate llama-3.1-8b": "num-gpus gpus-per-node micro-batch-size seq-len ds-config zero-stage precision"
    " lora-rank lora-targets trainable-parameters freeze gpu gpu-memory fit optimizer plot",
    "schema": "output",
    "gpus": "format",
    "plan gpt2 --tokens=1k --max-gpus=1 --gpu=h100 --rehearse=0": "tokens examples mean-tokens seq-len have"
    " network deadline budget price prices setup hardware explain host-memory for lora-rank data",
    "prices show": "price prices format",
    "models": "format",
    "train": "recipe model_ training task.seq_len_ resume retries",
    "generate": "batch-size seed max-prompt-tokens output dtype",
    "rehearse": "num-gpus gpus-per-node gpu gpu-memory steps rank timeout trace network",
    "evaluate . good.json": "num-gpus batch-size format",
    "quickstart": "max-steps output",
    "checkpoint prune .": "keep format",
    "checkpoint export .": "dtype base output",
    "launch-script r.yaml": "for num-nodes gpus-per-node hostfile image volume accelerator",
    "explain-exit -9": "format",
    "doctor": "hostfile recipe master-port format",
    "env": "format",
}
"""What follows ``zerokit``, and the options that get a value."""
_DO_MUCH = ("evaluate", "generate", "rehearse", "quickstart", "schema", "train", "doctor", "env")
"""Of these, words that happen to be right are not followed."""


def of_options(random_: random.Random) -> Case:
    if random_.random() < 0.1:
        topic = random_.choice([*WORDS, "zero_optimization.stag", "stage3_*", "lost-argument"])
        return Case("explain", ("explain", topic))
    line = random_.choice([*_OPTIONS])
    command, *first = line.split()
    options = _OPTIONS[line].split()
    words = [word if random_.random() < 0.7 else random_.choice(WORDS) for word in first]
    for option in random_.sample(options, min(len(options), random_.randint(1, 2))):
        words.append(f"--{option}={random_.choice(WORDS)}")
    if command in _DO_MUCH or random_.random() < 0.2:
        words.append(f"--{random_.choice(['nonsense', 'num_gpu', '', '💥', 'help=1', 'format'])}")
    writes = any(word.startswith(("--output", "--plot", "--trace")) for word in words)
    files: dict[str, Write] = {"good.json": json.dumps(CONFIG).encode(), "r.yaml": yaml.safe_dump(RECIPE).encode()}
    return Case(f"{command}, options", (command, *words), files, writes=writes)


MAKERS = [
    of_check,
    of_check,
    of_resolve,
    of_diff,
    of_estimate,
    of_train,
    of_options,
    of_options,
    of_checkpoint,
    of_checkpoint,
    of_checkpoint,
    of_explain_exit,
    of_log_folder,
    of_launch_file,
    of_launch_script,
    of_doctor,
    of_plan,
    of_report,
]


def case(number: int) -> Case:
    """The case of a seed."""
    random_ = random.Random(number)
    return MAKERS[number % len(MAKERS)](random_)


def lay_out(made: Case, folder: Path) -> None:
    """Write the files of a case into an empty folder."""
    for name, content in made.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(file)
        else:
            file.write_bytes(content)


def contents(folder: Path, but: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Size and time of change of all in a folder, but what the case is asked to write."""
    found = {}
    for entry in (entry for entry in folder.rglob("*") if entry.relative_to(folder).parts[0] not in but):
        status = entry.lstat()
        found[str(entry)] = (0 if entry.is_dir() else status.st_size, status.st_mtime_ns)
    return found
