"""The YAML of ``accelerate launch``: processes, machines and devices."""

from collections.abc import Iterator

from zerokit.config.launch_file import SECTION, is_local, runs_deepspeed
from zerokit.documents import KeyPath
from zerokit.findings import SetValue
from zerokit.lint.launch import Launch
from zerokit.lint.rule import Hit, launch_rule

_NO_ADDRESS = ("", "none", "null")
_OWN_ADDRESSES = ("localhost", "127.0.0.1", "::1")
_MPI, _FILTERS = ("openmpi", "mpich", "mvapich", "impi"), ("exclusion_filter", "inclusion_filter")
_FALSE_WORDS = ("false", "no", "off", "n", "0", "none")


def _count(launch: Launch, key: str) -> int | None:
    value = launch.option(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@launch_rule("launch-processes")
def launch_processes(launch: Launch) -> Iterator[Hit]:
    """A number of processes that does not suit the machines or --num-gpus"""
    if not launch.starts_gpus:
        return
    given = launch.option("num_processes")
    if given in (None, -1):
        if runs_deepspeed(launch.data):
            message = "'num_processes' is absent, so accelerate launch needs the option --num_processes"
            hint = 'Add "num_processes", unless the command line has it'
            yield Hit((), message, hint, severity="info")
        return
    processes, machines = _count(launch, "num_processes"), _count(launch, "num_machines") or 1
    path = ("num_processes",)
    if processes is None:
        # A text is passed on as it is, and works where accelerate does not calculate with it.
        works = str(given).isdigit() and machines == 1 and not launch.data.get("use_cpu")
        message = f"'num_processes' must be a whole number, not {given!r}"
        yield Hit(path, message, "Write a whole number", severity="warning" if works else None)
    elif processes % machines:
        each = processes // machines
        message = f"{processes} processes do not divide among {machines} machines: accelerate starts {each} on each"
        yield Hit(path, message, f"Write a multiple of {machines}")
    elif launch.num_gpus not in (None, processes):
        message = f"this file starts {processes} process{'es' * (processes > 1)}, but --num-gpus is {launch.num_gpus}"
        yield Hit(path, message, f"Write {launch.num_gpus}, or give --num-gpus {processes}", severity="warning")


def _machines(launch: Launch) -> int:
    """The number of machines; 1 where accelerate starts no GPUs."""
    return (_count(launch, "num_machines") or 1) if launch.starts_gpus else 1


def _launcher(launch: Launch) -> str:
    """What starts the processes of several machines."""
    if not runs_deepspeed(launch.data):
        return "standard"
    return str(launch.option("deepspeed_multinode_launcher") or "pdsh")


@launch_rule("launch-hostfile")
def launch_hostfile(launch: Launch) -> Iterator[Hit]:
    """Several machines without a hostfile"""
    machines, launcher = _machines(launch), _launcher(launch)
    if machines > 1 and launcher != "standard" and launch.option("deepspeed_hostfile") is None:
        message = f"{machines} machines with the launcher {launcher} need a 'deepspeed_hostfile'"
        path = (SECTION,) if SECTION in launch.data else ()
        yield Hit(path, message, "Add it, or use the launcher standard")


@launch_rule("launch-mpi")
def launch_mpi(launch: Launch) -> Iterator[Hit]:
    """A launcher that refuses what accelerate passes to it"""
    launcher = _launcher(launch)
    if _machines(launch) == 1 or launcher not in _MPI:
        return
    key = "deepspeed_multinode_launcher"
    path = (SECTION, key) if key in launch.section else (key,)
    passed = next((name for name in _FILTERS if launch.option(f"deepspeed_{name}") is not None), "--num_gpus")
    message = f"accelerate passes {passed} to DeepSpeed's launcher {launcher}, which refuses it"
    hint = "Use the launcher standard or pdsh, or start without accelerate: deepspeed --launcher "
    yield Hit(path, message, f"{hint}{launcher}")


@launch_rule("launch-address")
def launch_address(launch: Launch) -> Iterator[Hit]:
    """Processes that do not know where to meet"""
    machines, port = _machines(launch), launch.option("main_process_port")
    if isinstance(port, int) and not 0 <= port < 2**16:
        yield Hit(("main_process_port",), f"{port} is no port", "Write a number up to 65535, such as 29500")
    address, ranks = (launch.option("main_process_ip"), f"another machine_rank from 0 to {machines - 1} into each")
    if machines > 1 and _launcher(launch) == "nossh" and address is None:
        message = "without 'main_process_ip' the launcher nossh asks the first host for its address by ssh"
        yield Hit((SECTION,), message, "Write main_process_ip into the file", severity="warning")
    if machines == 1 or _launcher(launch) != "standard":
        return
    place: KeyPath = ("main_process_ip",) if "main_process_ip" in launch.data else ("num_machines",)
    if address is None or str(address).lower() in _NO_ADDRESS:
        message = f"{machines} machines without 'main_process_ip': each looks for a host named None"
        hint = (
            "Write main_process_ip and main_process_port of the first machine into each machine's file, and "
            f"{ranks}; or give these as options of accelerate launch"
        )
        yield Hit(place, message, hint)
    elif str(address).lower() in _OWN_ADDRESSES:
        message = f"'main_process_ip' {address} is each machine itself: the {machines} machines do not meet"
        yield Hit(place, message, f"Write the address of the machine with machine_rank 0, and {ranks}")
    if port == 0:
        message = "with 'main_process_port' 0 each machine chooses another port, so that they do not meet"
        yield Hit(("main_process_port",), message, "Write a number such as 29500, the same on all machines")


@launch_rule("launch-rendezvous")
def launch_rendezvous(launch: Launch) -> Iterator[Hit]:
    """A 'rdzv_backend' that accelerate does not read"""
    backend = launch.data.get("rdzv_backend")
    if _machines(launch) > 1 and _launcher(launch) == "standard" and backend not in (None, "static"):
        message = f"accelerate does not read 'rdzv_backend' {backend} from this file, and uses static"
        hint = f"Give --rdzv_backend {backend} to accelerate launch, or write static"
        yield Hit(("rdzv_backend",), message, hint)


@launch_rule("launch-machine-rank")
def launch_machine_rank(launch: Launch) -> Iterator[Hit]:
    """A machine rank out of range, or of two machines"""
    machines, rank = _count(launch, "num_machines") or 1, launch.option("machine_rank")
    rank = int(rank) if isinstance(rank, str) and rank.isdigit() else rank
    each = machines > 1 and _launcher(launch) in ("standard", "nossh")
    if launch.starts_gpus and isinstance(rank, int) and not 0 <= rank < machines:
        message = f"'machine_rank' {rank} is not one of {machines} machines, which count from 0"
        hint = f"Write a number from 0 to {machines - 1}"
        yield Hit(("machine_rank",), message, hint, severity="error" if each else None)
    elif each and launch.twin is not None and launch.starts_gpus:
        message = f"'machine_rank' {rank or 0} is also that of {launch.twin}, which has the same content"
        hint = f"If they are for two machines, give each its own, from 0 to {machines - 1}"
        yield Hit(("machine_rank",), message, hint)


@launch_rule("launch-gpu-ids")
def launch_gpu_ids(launch: Launch) -> Iterator[Hit]:
    """A list of GPUs that accelerate cannot use"""
    path, ids = ("gpu_ids",), launch.data.get("gpu_ids")
    if not is_local(launch.data) or ids is None or ids == "all":
        return
    if not isinstance(ids, str):
        meant = str(ids) if isinstance(ids, int) and not isinstance(ids, bool) else None
        fix = (SetValue(path, meant),) if meant is not None else ()
        yield Hit(path, f"'gpu_ids' must be a text, not {ids!r}", f'Write "{meant or "0,1"}", in quotes', fix)
        return
    listed = [part for part in ids.split(",") if part.strip()]
    processes, machines = _count(launch, "num_processes"), _count(launch, "num_machines") or 1
    if launch.starts_gpus and processes is not None and processes // machines > len(listed):
        each = processes // machines
        message = f"{each} processes on a machine, but 'gpu_ids' has {len(listed)}"
        hint = f"List as many, or write 'num_processes' {len(listed) * machines}"
        if machines > 1:
            message = (
                f"'num_processes' {processes} counts those of all {machines} machines, which start the same "
                f"number each: {each}, but 'gpu_ids' has {len(listed)}"
            )
            hint += "; unequal machines need torchrun on each, with its own --nproc-per-node"
        yield Hit(path, message, hint, severity="warning" if runs_deepspeed(launch.data) else None)


@launch_rule("launch-cpu")
def launch_cpu(launch: Launch) -> Iterator[Hit]:
    """'use_cpu', which has no effect with DeepSpeed"""
    if runs_deepspeed(launch.data) and launch.data.get("use_cpu") is True:
        message = "'use_cpu' has no effect with 'distributed_type' DEEPSPEED"
        yield Hit(("use_cpu",), message, "Write false; set CUDA_VISIBLE_DEVICES to hide the GPUs")


@launch_rule("launch-switch")
def launch_switch(launch: Launch) -> Iterator[Hit]:
    """A switch that is on because its value is a string"""
    if not runs_deepspeed(launch.data):
        return
    value = launch.data.get("debug")
    if isinstance(value, str) and value.lower() in _FALSE_WORDS:
        message = f"'debug' is the text \"{value}\", which accelerate takes for true"
        yield Hit(("debug",), message, "Write false, without quotes", (SetValue(("debug",), False),))
