"""The meaning of log lines: a file per topic, and the ordered table of all."""

from __future__ import annotations

from zerokit.exits.causes.checkpoints import CHECKPOINTS
from zerokit.exits.causes.communication import COMMUNICATION
from zerokit.exits.causes.ended import ENDED
from zerokit.exits.causes.entry import Cause
from zerokit.exits.causes.gpus import GPUS
from zerokit.exits.causes.hosts import HOSTS
from zerokit.exits.causes.launch import LAUNCH
from zerokit.exits.causes.schedulers import SCHEDULERS
from zerokit.exits.causes.software import SOFTWARE
from zerokit.exits.causes.training import TRAINING

CAUSES: tuple[Cause, ...] = (
    *SCHEDULERS,
    *GPUS,
    *HOSTS,
    *LAUNCH,
    *CHECKPOINTS,
    *SOFTWARE,
    *TRAINING,
    *ENDED,
    *COMMUNICATION,
)
"""The table; the first entry that matches a line applies."""
