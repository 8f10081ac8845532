"""One test for each group of many small cases, where calling a test takes longer than what it does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def each(
    values: Iterable[T], *, by: Callable[[T], str], named: Callable[[T], object] = lambda value: value
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make of a check of one value a test of each group of `values`: the check is called with every one.

    Its first parameter is the value; others are fixtures, or parametrized as usual. Every value that
    fails is named.

    Args:
        values: all of them.
        by: the group that a value is in, by which its test is called.
        named: what a value is called where it fails.
    """
    groups = {name: list(found) for name, found in groupby(sorted(values, key=by), key=by)}
    assert groups, "no values: the test would pass"

    def make(check: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(check).parameters.values())

        @functools.wraps(check)
        def of_group(group: str, **more: Any) -> None:
            failures: list[BaseException] = []
            names: list[str] = []
            for value in groups[group]:
                try:
                    check(value, **more)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # none is left out
                    error.add_note(f"with {named(value)}")
                    failures.append(error)
                    names.append(str(named(value)))
            if failures:
                # In its own words: of a group Python shows some of its errors only.
                counted = f"{len(failures)} of {len(groups[group])} values"
                raise BaseExceptionGroup(f"{counted}: {', '.join(names)}", failures)

        parameters[0] = parameters[0].replace(name="group")
        of_group.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("group", groups)(of_group)

    return make
