"""Reads YAML with positions."""

import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from zerokit.documents.causes import FIX_SYNTAX
from zerokit.documents.document import Document, fits_float, shortened
from zerokit.documents.paths import KeyPath
from zerokit.errors import DocumentError


def parse_yaml(text: str, name: str = "<yaml>", *, most_entries: int | None = None) -> Document:
    """Parse YAML with the safe schema, plus ``1e-5`` as a number (YAML 1.1 reads it as a string).

    Raises:
        DocumentError: too many entries, a syntax error or a duplicate key, with its line.
    """
    import yaml

    loader = None
    try:
        loader = _yaml_loader_class(name, most_entries)(text)  # refuses control characters
        node = loader.get_single_node()
        if node is None:
            return Document(None, name)
        positions = dict(_yaml_positions(node, name))
        return Document(loader.construct_document(node), name, positions)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise DocumentError(
            f"is not YAML: {error.problem or error.context}", where=where, hint=_hint(text, mark)
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise DocumentError(f"is not YAML: {error}", where=name, hint="Fix the syntax") from None
    except (AttributeError, LookupError):  # from PyYAML, for a tag as in `!!bool maybe`
        raise DocumentError(
            "is not YAML: a value is not of the type that its tag names", where=name, hint="Leave out the tag"
        ) from None
    except RecursionError:
        raise DocumentError("is nested too deeply", where=name, hint="Flatten it") from None
    finally:
        if loader is not None:
            loader.dispose()


def parse_scalar(text: str) -> Any:
    """A command-line value as YAML reads it: ``1e-5``, ``true``, ``[1, 2]``, ``null``, a string.

    Raises:
        DocumentError: not a YAML value.
    """
    return parse_yaml(text, name=f"value '{shortened(text)}'").data


def _hint(text: str, mark: Any) -> str:
    line = text.split("\n")[mark.line] if mark is not None and mark.line <= text.count("\n") else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "Indent with spaces: YAML allows no tabs there"
    return FIX_SYNTAX


def _yaml_loader_class(name: str, most_entries: int | None) -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        num_nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.num_nodes += 1  # one for the whole, and two per entry of a mapping
            if most_entries is not None and self.num_nodes > 2 * most_entries + 1:
                raise DocumentError(
                    f"has more than {most_entries:,} entries", where=name, hint="Name a file of settings, not of data"
                )
            return super().compose_node(parent, index)

        def construct_yaml_int(self, node: Any) -> Any:
            """Refuse numbers beyond a float: parsing base 60, such as 1:30, takes quadratic time."""
            text = self.construct_scalar(node)
            number = super().construct_yaml_int(node) if len(text) <= _MOST_DIGITS else math.inf
            return number if fits_float(number) else self.refuse(node)

        def construct_yaml_float(self, node: Any) -> Any:
            number = super().construct_yaml_float(node)
            return self.refuse(node) if math.isinf(number) and "inf" not in node.value.lower() else number

        def refuse(self, node: Any) -> NoReturn:
            problem = f"the number {shortened(node.value)} does not fit a float"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    Loader.add_constructor(_INTEGER, Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    # YAML 1.2's float: 1e-5 is a number, as in learning rates.
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
    return Loader


_INTEGER = "tag:yaml.org,2002:int"
_MOST_DIGITS_OF_KEY = 18
_MOST_DIGITS = 2000
"""Maximum length of an integer: in base 2 the largest float has 1,024 digits."""
_MOST_NODES = 1_000_000
"""Maximum nodes of a document with its aliases expanded."""


def _yaml_positions(root: Any, name: str) -> Iterator[tuple[KeyPath, tuple[int, int]]]:
    """Positions of every key path below `root`. Duplicate keys are errors.

    A node with aliases is walked once, so that nested aliases do not make the walk exponential.

    Raises:
        DocumentError: a key is wrong, or aliases refer to themselves or expand a small file into a huge document.
    """
    import yaml

    sizes: dict[int, int] = {}
    """Nodes in what a node contains, aliases expanded; 0 while it is walked."""

    def walk(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, tuple[int, int]]]:
        if id(node) in sizes:
            if not sizes[id(node)]:
                place = f"{name}:{node.start_mark.line + 1}"
                raise DocumentError("an alias that refers to itself", where=place, hint="Write the value out")
            return
        size, sizes[id(node)] = 1, 0
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, value_node in node.value:
                line = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    raise DocumentError(
                        "a key that is itself a list or a mapping",
                        where=f"{name}:{line}",
                        hint="Use a plain word as the key",
                    )
                key = key_node.value
                if key_node.tag == _INTEGER and len(key) > _MOST_DIGITS_OF_KEY:
                    # Integers that differ by 2**61 - 1 have one hash: a dict of them takes quadratic time.
                    raise DocumentError(
                        f"the number {shortened(key)} as a key", where=f"{name}:{line}", hint="Use a word"
                    )
                if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                    raise DocumentError(
                        f"the key '{key}' appears twice (first on line {seen[key]})",
                        where=f"{name}:{line}",
                        hint="Remove one of them",
                    )
                seen[key] = line
                yield (*path, key), (line, key_node.start_mark.column + 1)
                yield from walk(value_node, (*path, key))
                size += 1 + sizes[id(value_node)]
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*path, index), (item.start_mark.line + 1, item.start_mark.column + 1)
                yield from walk(item, (*path, index))
                size += sizes[id(item)]
        if size > _MOST_NODES:
            raise DocumentError("its aliases make it too large", where=name, hint="Write fewer of them")
        sizes[id(node)] = size

    yield (), (root.start_mark.line + 1, root.start_mark.column + 1)
    yield from walk(root, ())
