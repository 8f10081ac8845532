"""The YAML of ``accelerate launch``, and the ds_config that accelerate makes of it.

`DeepSpeedPlugin.__post_init__` and `set_mixed_precision` in accelerate `utils/dataclasses.py` (1.15) make it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.documents import Document, KeyPath, is_file
from zerokit.errors import DocumentError

SECTION = "deepspeed_config"
FILE_KEY = "deepspeed_config_file"

_TELLING = frozenset({"compute_environment", SECTION, "distributed_type"})
"""Keys that only accelerate's file has; `ClusterConfig` in `accelerate/commands/config/config_args.py`."""

_STAGE = (SECTION, "zero_stage")
_PLACES: Mapping[KeyPath, KeyPath] = {
    ("gradient_accumulation_steps",): (SECTION, "gradient_accumulation_steps"),
    ("gradient_clipping",): (SECTION, "gradient_clipping"),
    (ZERO,): _STAGE,
    (ZERO, "offload_optimizer"): (SECTION, "offload_optimizer_device"),
    (ZERO, "offload_param"): (SECTION, "offload_param_device"),
    (ZERO, "stage3_gather_16bit_weights_on_model_save"): (SECTION, "zero3_save_16bit_model"),
    ("bf16",): ("mixed_precision",),
    ("fp16",): ("mixed_precision",),
}
"""Key of the ds_config -> the key of the launch file that it is made of."""
PLACES_IN_DS_CONFIG: Mapping[str, KeyPath] = {
    str(place[-1]): path for path, place in _PLACES.items() if place[0] == SECTION and place != _STAGE
} | {"zero_stage": (ZERO, "stage")}
"""The other way round, for the keys of `deepspeed_config`."""


def is_launch_file(data: Any) -> bool:
    """Whether `data` is the YAML of ``accelerate launch`` (``default_config.yaml``)."""
    return isinstance(data, Mapping) and not _TELLING.isdisjoint(data)


def is_local(data: Mapping[str, Any]) -> bool:
    """Whether accelerate starts the processes itself, rather than on SageMaker."""
    return bool(data.get("compute_environment", "LOCAL_MACHINE") == "LOCAL_MACHINE")


def runs_deepspeed(data: Mapping[str, Any]) -> bool:
    """Whether ``accelerate launch`` starts DeepSpeed with this file."""
    return is_local(data) and data.get("distributed_type") == "DEEPSPEED"


def deepspeed_section(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of `deepspeed_config`, if DeepSpeed is started."""
    section = data.get(SECTION)
    return section if runs_deepspeed(data) and isinstance(section, Mapping) else {}


def named_ds_config(section: Mapping[str, Any]) -> str | None:
    """The `deepspeed_config_file`."""
    name = section.get(FILE_KEY)
    return name if isinstance(name, str) and name != "none" else None


def find_ds_config(document: Document) -> Path | None:
    """The ds_config that a launch file names, if it is here.

    accelerate looks for it from the working directory. Here the folders around the launch file count too,
    because the check may run elsewhere.
    """
    named = named_ds_config(deepspeed_section(document.data))
    if named is None:
        return None
    file = Path(document.name)
    folders = [Path(), *file.parents, *file.absolute().parents]
    return next((folder / named for folder in folders if is_file(folder / named)), None)


def launch_place(path: KeyPath) -> KeyPath:
    """The place in the launch file of a key of the ds_config that accelerate makes."""
    ends = (path[:end] for end in range(len(path), 0, -1))
    return next((_PLACES[end] for end in ends if end in _PLACES), (SECTION,))


def ds_config_of(document: Document) -> Document:
    """The ds_config that accelerate makes of a launch file, with the lines of that file.

    A precision that the file leaves to the script is "auto".

    Raises:
        DocumentError: the file does not start DeepSpeed.
    """
    data = document.data
    if not runs_deepspeed(data):
        kind = data.get("distributed_type")
        raise DocumentError(
            f"starts {kind}, not DeepSpeed",
            where=document.where(("distributed_type",)),
            hint='Name a ds_config, or a file of accelerate launch with "distributed_type": DEEPSPEED',
        )
    section = deepspeed_section(data)
    zero: dict[str, Any] = {"stage": _number(section.get("zero_stage"), 2)}
    for key in ("offload_optimizer", "offload_param"):
        device = str(section.get(f"{key}_device") or "none").lower()
        if device != "none":
            # accelerate passes no path on, and writes this one.
            zero[key] = {"device": device} | ({"nvme_path": "none"} if device == "nvme" else {})
    if str(section.get("zero3_save_16bit_model")).lower() == "true":
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": _number(section.get("gradient_accumulation_steps"), AUTO),
        "gradient_clipping": _number(section.get("gradient_clipping"), AUTO),
        ZERO: zero,
        **_precisions(str(data.get("mixed_precision")).lower()),
    }
    if config["gradient_clipping"] == 0:
        del config["gradient_clipping"]
    positions = {}
    for path in ((), *_PLACES, (ZERO, "stage")):
        place = document.position(launch_place(path) if path else ())
        if place is not None:
            positions[path] = place
    return Document(config, document.name, positions)


def _precisions(word: str) -> dict[str, Any]:
    if word == "fp16":
        return {"fp16": {"enabled": True, "auto_cast": True}, "bf16": {"enabled": False}}
    if word in ("bf16", "fp8"):
        return {"bf16": {"enabled": True}, "fp16": {"enabled": False}}
    return {"bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO}}


def _number(value: Any, default: Any) -> Any:
    """What accelerate reads from the variable that it sets to `str(value)`."""
    if value is None or isinstance(value, bool):
        return default if value is None else value
    text = str(value).lower()
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text
