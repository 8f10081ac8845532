"""The text of ``zerokit explain`` about a rule, a defect or a key."""

import re
from collections.abc import Iterator, Mapping

from zerokit.config.base import ALL_STAGES, AUTO, Section, second_names
from zerokit.config.descriptions import description, section_description, shown
from zerokit.config.key_index import all_keys, canonical, model_of, places_of, section_at, since, stages_of
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.repairs import choices_at
from zerokit.config.unknown_keys import meaning_of
from zerokit.documents import ABSENT, KeyPath, dotted, split_dotted, value_at, with_value
from zerokit.errors import ConfigError, nearest
from zerokit.lint.defects import KNOWN_DEFECTS
from zerokit.lint.rule import Rule
from zerokit.lint.rule_pages import page
from zerokit.lint.run import all_rules, check_config
from zerokit.lint.topics import is_title, search_page, topic_page, topics
from zerokit.lint.upgrade import LABELS, OPTION
from zerokit.resolving.filled_keys import filled_in_words
from zerokit.spelling import mistyped

_MOST_NAMES = 4
"""Most names in the hint for an unknown one."""
_NOTHING_ALIKE = "'zerokit explain' lists all rules and topics, 'zerokit schema' all keys"
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


def explain(name: str) -> str:
    """The text, in Markdown, of a rule, of a defect, of a key, of all keys of that name, or of a topic.

    Args:
        name: the id of a rule or of a defect of DeepSpeed, a key: dotted (`zero_optimization.stage`) or by
            itself (`stage`), or a topic such as `moe`.

    Raises:
        ConfigError: there is no such rule, defect, key or topic, and no text has the words.
    """
    rules = all_rules()
    if name in rules:
        return page(rules[name])
    if name in KNOWN_DEFECTS:
        return KNOWN_DEFECTS[name].page
    if name in LABELS:
        return f"# {name}\n\nA label of `zerokit check {OPTION}`. {LABELS[name]}\n"
    pages = [_of_key(path) for path in _paths(name)]
    topic = topic_page(name)
    if topic is not None:
        pages.insert(0 if is_title(name) else len(pages), topic)
    if pages:
        return "\n".join(pages)
    refusal = _unknown(name)
    page_found = search_page(name) if refusal.hint == _NOTHING_ALIKE else None
    if page_found is None:
        raise refusal
    return page_found


def overview() -> list[tuple[str, str, str]]:
    """All rules: name, severity, and what each finds."""
    return [(rule.id, rule.severity, f"{rule.title}{_needs(rule)}") for rule in all_rules().values()]


def topic_names() -> str:
    """All topics, in a line."""
    return ", ".join(topics())


def _needs(rule: Rule) -> str:
    options = (f"--{need.replace('_', '-')}" for need in rule.needs)
    return f" (needs {' and '.join(options)})" if rule.needs else ""


def _paths(name: str) -> Iterator[KeyPath]:
    path: KeyPath = split_dotted(name)
    if len(path) == 1:
        # The section of that name first, then keys inside others.
        for place in sorted(places_of(name), key=len):
            yield canonical((*place, name))
        yield from (removed for removed in REMOVED_KEYS if removed[-1] == name)
    elif model_of(path) is not None:
        yield canonical(path)
    elif path in REMOVED_KEYS:
        yield path


def _unknown(name: str) -> ConfigError:
    path: KeyPath = split_dotted(name)
    names = [*all_rules(), *KNOWN_DEFECTS, *LABELS]
    if len(path) > 1 or "_" in name or mistyped(name, names) is None:
        meaning = meaning_of(path)
        if meaning.foreign:
            return ConfigError(f"DeepSpeed has no key '{name}'", hint=meaning.hint)
        if meaning.to is not None:
            hint = meaning.hint if meaning.kind != "misplaced" else f"Did you mean '{dotted(meaning.to)}'?"
            return ConfigError(f"there is no key '{name}'", hint=hint)
    close = nearest(name, names)
    meant = _that_hold(name) or ([close] if close else [])
    hint = (
        f"Did you mean {' or '.join(filter(None, [', '.join(map(repr, meant[:-1])), repr(meant[-1])]))}?"
        if meant
        else _NOTHING_ALIKE
    )
    return ConfigError(f"there is no rule and no key '{name}'", hint=hint)


def _that_hold(name: str) -> list[str]:
    """The first keys and rules with a word that a name such as "zero" is or begins."""
    if not re.fullmatch("[a-z][a-z0-9]+", name):
        return []
    names = [*all_keys(), *all_rules()]
    starting = [one for one in names if re.split("[-_]", one)[0].startswith(name)]
    holding = [one for one in names if name in re.split("[-_]", one)]
    return list(dict.fromkeys([*starting, *holding]))[:_MOST_NAMES]


def _of_key(path: KeyPath) -> str:
    removed = REMOVED_KEYS.get(path)
    if removed is not None:
        feature, hint = removed
        return f"# {dotted(path)}\n\nDeepSpeed refuses it: {feature} was removed. {hint}.\n"
    model = model_of(path)
    assert model is not None  # `_paths` names keys only
    said = description(model, str(path[-1]))
    parts = [f"# {dotted(path)}", said]
    facts = list(_facts(path, model, said))
    if facts:
        parts.append("\n".join(f"- {fact}" for fact in facts))
    section = section_at(path)
    if section is not None:
        keys = [f"- `{name}`: {description(section, name)}" for name in section.model_fields]
        parts += [section_description(section), "Keys:\n\n" + "\n".join(keys)]
    found = _found_at(path, model)
    rules = [rule for rule in all_rules().values() if rule.id in found or _speaks_of(rule, path)]
    if rules:
        listed = "\n".join(f"- {rule.id}: {rule.title}" for rule in rules)
        parts.append(f"Rules about it:\n\n{listed}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(path: KeyPath, model: type[Section], said: str) -> Iterator[str]:
    """Facts that are not in the description."""
    name = str(path[-1])
    field = model.model_fields[name]
    if section_at(path) is None:
        values = ", ".join(shown(choice) for choice in choices_at(path) if choice != AUTO)
        annotation = str(field.annotation)
        kinds = [words for kind, words in _TYPES.items() if re.search(rf"\b{kind}\b", annotation)]
        if values or kinds:
            yield f"Value: {values or kinds[0]}"
        if field.is_required():
            yield "It must be given"
    other = second_names(model).get(name)
    if other is not None:
        yield f"Also read as: `{other}`"
    yield from filled_in_words(path)
    stages = stages_of(path)
    if len(stages) < len(ALL_STAGES) and "Acts in" not in said:
        yield f"ZeRO stages: {', '.join(map(str, stages))}"
    release = since(path)
    if release is not None and "Since DeepSpeed" not in said:
        yield f"Since DeepSpeed {release}"


def _speaks_of(rule: Rule, path: KeyPath) -> bool:
    """Whether a rule's text names the key, or only its bad example has it, so that it must be what is bad."""
    if rule.check is None and rule.check_launch is None:
        return False  # they are about any key
    if re.search(rf"[`'.]{re.escape(str(path[-1]))}[`'=:]", f"{rule.title} {rule.text}"):
        return True
    if not isinstance(rule.bad, Mapping) or rule.check_launch is not None:
        return False
    bad, good = (value_at(config, path, ABSENT) for config in (rule.bad, rule.good))
    return bad != good and not isinstance(bad, Mapping)


def _found_at(path: KeyPath, model: type[Section]) -> set[str]:
    """The rules, such as those of any key of one stage, that find something in the key where it is the only
    one.

    They run with a value that the key may have, in each stage.
    """
    field = model.model_fields[str(path[-1])]
    default = field.get_default(call_default_factory=True)
    plain = default if isinstance(default, int | float | str) and default else 1
    value = next((choice for choice in choices_at(path) if choice != AUTO), plain)
    value = True if re.search(r"\bbool\b", str(field.annotation)) else value
    found = set()
    for stage in ALL_STAGES:
        config = with_value({"train_batch_size": 1, "zero_optimization": {"stage": stage}}, path, value)
        found |= {finding.rule for finding in check_config(config).findings if finding.path == path}
    return {name for name in found if all_rules()[name].check is not None}
