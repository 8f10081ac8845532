"""Known defects of accelerate that the YAML of ``accelerate launch`` brings about; the table is
`launch_defects.json`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zerokit.documents import KeyPath, split_dotted, value_at
from zerokit.errors import ConfigError
from zerokit.lint.launch import AccelerateVersion, Launch
from zerokit.tables import table_of


def parse_accelerate_version(text: str) -> AccelerateVersion:
    """``1.7.0`` as numbers.

    Raises:
        ConfigError: no version.
    """
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text.strip(), re.ASCII)
    if found is None:
        hint = "Give one such as 1.13.0"
        raise ConfigError(f"'{text}' is no version of accelerate", where="--accelerate-version", hint=hint)
    return int(found[1]), int(found[2]), int(found[3] or 0)


@dataclass(frozen=True, kw_only=True)
class LaunchDefect:
    """One defect: the releases that have it, the keys that bring it about, what to do."""

    before: str
    """The first release without it."""
    when: Mapping[str, str]
    """Dotted keys and the values that they must all have; "set": anything but no, none and false."""
    at: str
    """The key to report."""
    harm: str
    """What accelerate then does."""
    instead: str
    """What helps other than another release."""
    source: str

    @property
    def path(self) -> KeyPath:
        return split_dotted(self.at)

    @property
    def message(self) -> str:
        return f"accelerate before {self.before} {self.harm}"

    @property
    def advice(self) -> str:
        return f"Use accelerate {self.before} or later, or {self.instead}"

    def is_met(self, launch: Launch) -> bool:
        """Whether the file brings it about in the release; True where the release is not known."""
        version = launch.accelerate_version
        if version is not None and version >= parse_accelerate_version(self.before):
            return False
        return all(_has(launch, key, wanted) for key, wanted in self.when.items())


def _has(launch: Launch, key: str, wanted: str) -> bool:
    value = str(value_at(launch.data, split_dotted(key))).lower()
    return value not in ("no", "none", "false", "") if wanted == "set" else value == wanted


LAUNCH_DEFECTS = tuple(LaunchDefect(**row) for row in table_of(__file__))
