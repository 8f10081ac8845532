import json
from collections.abc import Callable

from zerokit.config.schema import json_schema


def test_it_prints_the_schema(zerokit: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = zerokit("schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == json_schema()
