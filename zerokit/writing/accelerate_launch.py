"""The `accelerate launch` config that goes with a ds_config.

With `deepspeed_config_file` accelerate refuses every key that the ds_config has too (`zero_stage`,
`mixed_precision`, ...; `DeepSpeedPlugin._deepspeed_config_checks` in accelerate `utils/dataclasses.py`), so
only what starts processes is written.
"""

import json

from zerokit.choices import DEFAULT_PORT
from zerokit.errors import ConfigError
from zerokit.writing.request import Decisions


def accelerate_yaml(decisions: Decisions, ds_config_file: str) -> str:
    """The text of a YAML file for ``accelerate launch --config_file``.

    Args:
        ds_config_file: its path, as seen from where `accelerate launch` is run.

    Raises:
        ConfigError: the target is DeepSpeed alone, or the GPUs do not fill their nodes.
    """
    if decisions.target == "deepspeed":
        raise ConfigError(
            "accelerate does not launch a config for DeepSpeed alone", hint="Choose the target trainer or accelerate"
        )
    machines = 1 if decisions.run.cluster.num_gpus is None else decisions.run.cluster.num_nodes
    lines = [f"# accelerate launch --config_file THIS_FILE {_launch_options(decisions, machines)}SCRIPT.py"]
    if decisions.precision is None and decisions.target == "accelerate":
        lines += [
            "# The precision is the script's, Accelerator(mixed_precision=...), or --mixed_precision's;",
            "# accelerate refuses it in this file.",
        ]
    lines += [
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: DEEPSPEED",
        "deepspeed_config:",
        f"  deepspeed_config_file: {json.dumps(ds_config_file)}",
        f"  zero3_init_flag: {json.dumps(decisions.zero_stage == 3)}",
    ]
    if machines > 1:
        # torchrun's own, on every node; the default, pdsh, wants ssh and a hostfile.
        lines.append("  deepspeed_multinode_launcher: standard")
    lines.append(f"num_machines: {machines}")
    if decisions.run.cluster.num_gpus is not None:
        lines.append(f"num_processes: {decisions.run.cluster.num_gpus}")
    if machines > 1:
        lines += ["same_network: true", "rdzv_backend: static"]
    return "\n".join(lines) + "\n"


def _launch_options(decisions: Decisions, machines: int) -> str:
    options = "" if decisions.run.cluster.num_gpus is not None else "--num_processes N "
    if machines > 1:
        options += f"--machine_rank R --main_process_ip ADDRESS --main_process_port {DEFAULT_PORT} "
    return options
