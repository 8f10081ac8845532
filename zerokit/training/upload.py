"""Uploads the trained model to the Hugging Face Hub (``--push-to-hub``)."""

from __future__ import annotations

from pathlib import Path

from zerokit.documents import read_document
from zerokit.errors import LaunchError, RunError, ZerokitError
from zerokit.hub import describe_failure, is_hub_id
from zerokit.training.report import REPORT_FILE

OPTION = "--push-to-hub"


def check_upload(repo: str) -> None:
    """Refuse, before training, an upload that would fail (LaunchError).

    It fails without a valid name, network or login, with a read-only token, or if the user may not write to
    the owner. The Hub does not report the permissions of fine-grained tokens, nor the free space.
    """
    from huggingface_hub import HfApi, constants, get_token

    if "/" not in repo or not is_hub_id(repo):
        raise LaunchError(f"'{repo}' is no name on the Hub", where=OPTION, hint="Write OWNER/NAME")
    if constants.is_offline_mode():
        raise LaunchError(
            "nothing can be uploaded: HF_HUB_OFFLINE is set",
            where=OPTION,
            hint="Unset it, or upload the saved model later, with 'hf upload'",
        )
    if get_token() is None:
        raise LaunchError("no user is logged in at the Hub", where=OPTION, hint="Run 'hf auth login'")
    try:
        user = HfApi().whoami()
    except Exception as error:  # its own, httpx's and the system's
        raise LaunchError(
            describe_failure(error, "the name that the token is of"),
            where=OPTION,
            hint="Fix that, or upload the saved model later, with 'hf upload'",
        ) from None
    name = user["name"]
    if ((user.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        raise LaunchError(
            f"the token of {name} is read-only", where=OPTION, hint="Run 'hf auth login' with one that may write"
        )
    owner, _, model = repo.partition("/")
    writable = {name, *(org["name"] for org in user.get("orgs") or () if org.get("roleInOrg") != "read")}
    if owner.lower() not in {each.lower() for each in writable}:
        raise LaunchError(
            f"{name} may not write to {owner}",
            where=OPTION,
            hint=f"Write {name}/{model}, or ask {owner} for a role that may write",
        )


def upload(folder: Path, repo: str) -> str:
    """Upload the model of a run; a new repository is private. Returns its address. Raises RunError."""
    from huggingface_hub import HfApi

    try:
        files = read_document(folder / REPORT_FILE).data["files"]
        api = HfApi()
        address = str(api.create_repo(repo, private=True, exist_ok=True))
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=[*files, *(f"{name}/*" for name in files)],
            commit_message="Model trained by zerokit",
        )
    except Exception as error:
        why = error.message if isinstance(error, ZerokitError) else describe_failure(error, "room for it")
        raise RunError(
            f"the model is saved, and not uploaded: {why}",
            where=folder,
            hint=f"Try again with 'hf upload {repo} {folder}'",
        ) from None
    return address
