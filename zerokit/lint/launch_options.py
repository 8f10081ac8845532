"""Keys and values of the YAML of ``accelerate launch``; ``launch_options.json`` has the names of its keys.

Names and values are those of accelerate 1.15; a test compares them.
"""

from zerokit.tables import table_of

_NAMES: dict[str, list[str]] = table_of(__file__)

TOP_KEYS = frozenset(_NAMES["top_keys"])
"""Fields of `ClusterConfig` in `accelerate/commands/config/config_args.py`."""

OLD_TOP_KEYS = frozenset({"fp16", "dynamo_backend"})
"""Keys of older versions, which `BaseConfig.process_config` there still understands."""

DEEPSPEED_KEYS = frozenset(_NAMES["deepspeed_keys"])
"""Keys of `deepspeed_config`: the options of ``accelerate launch`` that concern DeepSpeed."""

OTHER_OPTIONS = frozenset(_NAMES["other_options"])
"""All other options. accelerate takes any of them inside `deepspeed_config` too: it copies what is there over
its own arguments (`_validate_launch_command` in `accelerate/commands/launch.py`)."""

DISTRIBUTED_TYPES = tuple(_NAMES["distributed_types"])
"""`DistributedType` in `accelerate/utils/dataclasses.py`."""

PRECISIONS = tuple(_NAMES["precisions"])
"""`PrecisionType` there."""

MULTINODE_LAUNCHERS = tuple(_NAMES["multinode_launchers"])
"""`DEEPSPEED_MULTINODE_LAUNCHERS` in `accelerate/utils/constants.py`; the first is the default."""

REFUSED_WITH_FILE = tuple(_NAMES["refused_with_file"])
"""Keys refused together with `deepspeed_config_file`: `DeepSpeedPlugin._deepspeed_config_checks` there."""
