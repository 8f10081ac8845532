"""What a lint rule is, the list of all rules, and the functions that check some of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from zerokit.documents import KeyPath
from zerokit.findings import Edit, Severity
from zerokit.lint.examples import run_facts
from zerokit.lint.launch import Launch
from zerokit.lint.subject import Subject
from zerokit.tables import table_of

Need = Literal["num_gpus", "model", "recipe", "gpu", "gpu_memory", "host_memory"]
"""What a rule needs to know besides the config: the names of options of ``zerokit check``."""
NEEDS: tuple[Need, ...] = get_args(Need)

TOPICS: Mapping[str, str] = table_of(__file__)
"""Topic of rules -> its heading."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule yields; the engine adds rule, line and column."""

    path: KeyPath
    """As the models spell it (`bf16`, not `bfloat16`); the engine translates it to the file's spelling."""
    message: str
    hint: str
    fix: tuple[Edit, ...] = ()
    severity: Severity | None = None
    """None: the rule's."""
    stops: bool = True
    """False: though an error, it stops no run, unlike others of a rule that does."""


Check = Callable[[Subject], Iterator[Hit]]
LaunchCheck = Callable[[Launch], Iterator[Hit]]
"""A rule of the YAML of ``accelerate launch``."""


@dataclass(frozen=True)
class Rule:
    """One kind of mistake, with the text of its page of documentation."""

    id: str
    """Stable: people write it in files to switch the rule off."""
    topic: str
    """One of `TOPICS`."""
    severity: Severity
    title: str
    """One line, without a full stop."""
    text: str
    """What DeepSpeed does, why that hurts, how to fix it, and the source. Markdown paragraphs."""
    bad: Mapping[str, Any] | str
    """A config in which the rule finds something, or the text of one; a test runs it."""
    good: Mapping[str, Any]
    """The same config, fixed: no finding of any rule that is an error, and none of this rule."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the run for which both examples are run, such as ``num_gpus``, as `TOPIC.json` names them."""
    needs: tuple[Need, ...] = ()
    """What must be given for the rule to run. Without it the rule is listed as not run."""
    check: Check | None = None
    """None for the rules of topic `structure`, which the models themselves find, and of launch files."""
    stops: bool = False
    """Whether its errors are refusals: the target or DeepSpeed stops when training starts, or at the first
    step."""
    check_launch: LaunchCheck | None = None
    """For the YAML of ``accelerate launch`` (``default_config.yaml``): then `bad` and `good` are such files,
    and paths are those of the file."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of the run for which both examples are run, for :meth:`Run.of`."""
        return run_facts(self.given)


RULES: dict[str, Rule] = {}
"""Every rule by its id, in the order in which they are documented and run."""


CHECKS: dict[str, Check] = {}
LAUNCH_CHECKS: dict[str, LaunchCheck] = {}
"""Functions that find what a rule is about, by the rule's id."""


def rule(id: str) -> Callable[[Check], Check]:
    """Make a function the check of a rule. Its docstring is the rule's title; `TOPIC.json` has the rest."""

    def register(check: Check) -> Check:
        CHECKS[id] = check
        return check

    return register


def launch_rule(id: str) -> Callable[[LaunchCheck], LaunchCheck]:
    """Make a function the check of a rule of the YAML of ``accelerate launch``; which gets a `Launch`."""

    def register(check: LaunchCheck) -> LaunchCheck:
        LAUNCH_CHECKS[id] = check
        return check

    return register


def add(new: Rule) -> None:
    """Put a rule on the list. ValueError if the id is taken."""
    if new.id in RULES:
        raise ValueError(f"two rules have the id '{new.id}'")
    RULES[new.id] = new
