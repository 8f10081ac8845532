"""Every refusal that the rules know, for a config that has been resolved."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from zerokit.config.load import is_passed_over, load_valid_part
from zerokit.documents import Document, dotted
from zerokit.findings import Finding
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.lint.adjust import for_this_run
from zerokit.lint.plain_json import check_text
from zerokit.lint.rule import Rule
from zerokit.lint.run import all_rules, check_document, missing_needs
from zerokit.lint.subject import Subject
from zerokit.resolving.run import Run
from zerokit.resolving.trace import Refused, Resolution

_OF_THE_FILE = ("structure", "auto", "trainer", "accelerate")
"""Topics of rules about what is written, and what the target does with it. The others are about what
DeepSpeed gets, which the file does not show before it is resolved."""


_ADDED_BY_RECIPE = ("no-batch-size", "lost-argument", "accelerate-without-zero", "not-plain-json")
"""Rules about keys that are absent from a ds_config and that its recipe fills, and about its text, which the
Trainer does not get to read."""


def errors_of_training(document: Document, num_gpus: int, parallelism: Parallelism) -> list[Finding]:
    """What ``zerokit train`` refuses of the ds_config of a recipe."""
    run = Run(target="trainer", cluster=Cluster(num_gpus), parallelism=parallelism)
    found = check_document(document, run).findings
    errors = [one for one in found if one.severity == "error" and one.rule not in _ADDED_BY_RECIPE]
    for key in () if errors else ("pipeline", "expert_parallel"):
        if document.data.get(key) not in (None, 1):
            return [Finding((key,), "divides the model in a way that zerokit train does not run", "Remove it")]
    return errors


def refusals(subject: Subject, rules: Iterable[Rule]) -> Iterator[Refused]:
    """What stops the run when it starts or at its first step, as some of the rules find it."""
    for rule in rules:
        if rule.check is None or not rule.stops or missing_needs(rule, subject):
            continue
        for hit in rule.check(subject):
            if hit.stops and (hit.severity or rule.severity) == "error":
                yield Refused(dotted(hit.path), hit.message, hit.hint)


def _of_single_keys(findings: list[Finding], document: Document, run: Run) -> Iterator[Finding]:
    """What the target refuses of a value or of the text, though DeepSpeed itself would take it."""
    all_rules()  # registers the rules about the text
    adjusted = [for_this_run(one, document, run) for one in findings]
    of_text = [] if run.recipe is not None else check_text(document, adjusted, run.target)[1]
    for finding in adjusted + of_text:
        if finding.severity == "error" and not is_passed_over(finding, document):
            yield finding


def with_refusals(resolution: Resolution, document: Document, run: Run) -> Resolution:
    """`resolution` with everything that the target and DeepSpeed refuse; what is refused is not lost.

    A refusal of the resolution replaces what the rules report about the same key.
    """
    valid = load_valid_part(document)
    of_file = [rule for rule in all_rules().values() if rule.topic in _OF_THE_FILE]
    others = [rule for rule in all_rules().values() if rule.topic not in _OF_THE_FILE]
    if run.recipe is not None and run.target == "trainer":
        by_itself = errors_of_training(document, run.world_size, run.parallelism)
        of_file = [rule for rule in of_file if "recipe" in rule.needs]  # all others have run
    else:
        by_itself = list(_of_single_keys(valid.findings, document, run))
    found = [Refused(dotted(one.path), one.message, one.hint) for one in by_itself]
    if valid.config is not None:
        found += refusals(Subject.of(valid, run), of_file)
    if resolution.loaded is not None:
        handed_over = replace(run, target="deepspeed", recipe=None)
        final = Subject(config=resolution.loaded, written=resolution.loaded.dump(), run=handed_over)
        found += refusals(final, others)
    known = {one.name for one in resolution.refused}
    refused = (*resolution.refused, *dict.fromkeys(one for one in found if one.name not in known))
    names = {one.name for one in refused}
    lost = tuple(one for one in resolution.lost if one.name not in names)
    return replace(resolution, refused=refused, lost=lost)
