"""The page of a rule, for ``zerokit explain`` and the documentation site."""

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.documents import Document, parse_json
from zerokit.errors import DocumentError
from zerokit.files import json_text
from zerokit.findings import Finding
from zerokit.lint.outputs import line_of
from zerokit.lint.rule import TOPICS, Rule
from zerokit.lint.run import Report, check_document, check_launch_document
from zerokit.resolving.run import Run
from zerokit.units import format_bytes


def page(rule: Rule) -> str:
    """The page of one rule, in Markdown."""
    return "\n\n".join(_parts(rule)) + "\n"


def example_document(rule: Rule, example: Mapping[str, Any] | str) -> Document:
    """One of the two examples of a rule as a file, such as it is printed on the rule's page."""
    name = _file(rule)
    text = _example_text(rule, example)
    try:
        read = parse_json(text, name, lenient=True)
    except DocumentError:
        return Document(example, name)
    # Where a file cannot hold what the example is about, such as a key that is no string, the data can.
    return read if isinstance(example, str) or read.data == example else Document(example, name)


def check_example(rule: Rule, example: Mapping[str, Any] | str) -> Report:
    """What is found in one of the two examples of a rule."""
    document = example_document(rule, example)
    if rule.check_launch is not None:
        return check_launch_document(document)
    return check_document(document, Run.of(**rule.facts))


def _parts(rule: Rule) -> Iterator[str]:
    report = check_example(rule, rule.bad)
    found = [finding for finding in report.findings if finding.rule == rule.id]
    yield f"# {rule.id}"
    yield f"{rule.title}."
    yield _facts(rule, found)
    yield rule.text
    language = "yaml" if rule.check_launch else "json"
    yield f"## What it finds\n\n```{language}\n{_example_text(rule, rule.bad)}```"
    lines = "".join(f"{line_of(_file(rule), finding)}\n" for finding in found)
    yield f"`{_command(rule)}` says:\n\n```text\n{lines}```"
    yield f"## Fixed\n\n```{language}\n{_example_text(rule, rule.good)}```"


def _facts(rule: Rule, found: list[Finding]) -> str:
    facts = [f"Severity: {rule.severity}"]
    others = sorted({finding.severity for finding in found} - {rule.severity})
    if others:
        facts[0] += f" (here: {', '.join(others)})"
    facts.append(f"topic: {TOPICS[rule.topic].lower() if rule.topic != 'auto' else TOPICS['auto']}")
    if rule.needs:
        facts.append(f"needs {' and '.join(map(in_code, rule.needs))}")
    if any(finding.fix for finding in found):
        facts.append("`--fix` fixes it where there is one right answer")
    return "; ".join(facts) + "."


def in_code(need: str) -> str:
    """The option that gives a rule what it needs."""
    return f"`--{need.replace('_', '-')}`"


def _file(rule: Rule) -> str:
    return "default_config.yaml" if rule.check_launch else "ds_config.json"


def _command(rule: Rule) -> str:
    options = (_option(name, value) for name, value in rule.given.items())
    return " ".join(["zerokit check", *options, _file(rule)])


def _option(name: str, value: Any) -> str:
    option = f"--{name.removesuffix('_bytes').replace('_', '-')}"
    if name == "recipe":
        return f"{option} recipe.yaml"
    if name == "model":
        return f"{option} MODEL"
    if name.endswith("_bytes"):
        return f"{option} {format_bytes(value).replace('.00 ', '')}"
    return f"{option} {value}"


def _example_text(rule: Rule, example: Mapping[str, Any] | str) -> str:
    if isinstance(example, str):
        return example
    if rule.check_launch is not None:
        import yaml

        text: str = yaml.safe_dump(dict(example), sort_keys=False)
        return text
    return json_text(example)
