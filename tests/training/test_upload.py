"""What is asked of the Hub, and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from zerokit.errors import LaunchError, RunError
from zerokit.training.upload import check_upload, upload


class Hub:
    """One that takes everything, or has no network."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.error: Exception | None = None
        self.role = "write"

    def __call__(self) -> Hub:
        return self

    def whoami(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        orgs = [{"name": "ours", "roleInOrg": "write"}, {"name": "theirs", "roleInOrg": "read"}]
        return {"name": "me", "orgs": orgs, "auth": {"accessToken": {"role": self.role}}}

    def create_repo(self, repo: str, **options: Any) -> str:
        self.calls.append((repo, options))
        self.whoami()
        return f"https://hub/{repo}"

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload", options))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "secret")
    monkeypatch.setattr(huggingface_hub.constants, "is_offline_mode", lambda: False)
    return made


def test_what_cannot_be_uploaded_is_refused_before_training(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for repo in ("me/mine", "ours/mine"):
        check_upload(repo)
    for repo in ("you/mine", "theirs/mine"):
        with pytest.raises(LaunchError, match=r"me may not write to \w+\. Write me/mine, or ask"):
            check_upload(repo)
    hub.role = "read"
    with pytest.raises(LaunchError, match="the token of me is read-only"):
        check_upload("me/mine")
    with pytest.raises(LaunchError, match="--push-to-hub: 'mine' is no name on the Hub"):
        check_upload("mine")
    hub.error = ConnectionError(111, "Connection refused")
    with pytest.raises(LaunchError, match=r"the Hub cannot be reached \(Connection refused\). Fix that, or"):
        check_upload("me/mine")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(LaunchError, match="no user is logged in at the Hub"):
        check_upload("me/mine")
    monkeypatch.setattr(huggingface_hub.constants, "is_offline_mode", lambda: True)
    with pytest.raises(LaunchError, match="nothing can be uploaded: HF_HUB_OFFLINE is set"):
        check_upload("me/mine")
    assert hub.calls == []


def test_the_model_alone_is_uploaded_and_stays_where_that_fails(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"files": ["config.json", "run.json"]}))
    assert upload(tmp_path, "me/mine") == "https://hub/me/mine"
    assert hub.calls[0] == ("me/mine", {"private": True, "exist_ok": True})
    assert hub.calls[1][1]["allow_patterns"] == ["config.json", "run.json", "config.json/*", "run.json/*"]
    hub.error = ConnectionError(111, "Connection refused")
    with pytest.raises(RunError, match="is saved, and not uploaded: the Hub cannot be reached"):
        upload(tmp_path, "me/mine")
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunError, match="is saved, and not uploaded"):
        upload(tmp_path, "me/mine")
