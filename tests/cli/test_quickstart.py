from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch


def test_ctrl_c_says_how_to_go_on(
    zerokit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zerokit.quickstart.run.quickstart", interrupted)
    code, _, err = zerokit("quickstart")
    assert (code, err) == (
        130,
        "zerokit: stopped. The same command goes on after the last run that came to its end\n",
    )
