"""Sending a model folder to the hub."""

from __future__ import annotations

from pathlib import Path

from mlxgen import __version__
from mlxgen.errors import MlxgenError


def upload(folder: Path, repo: str) -> str:
    """Put the folder on the hub as ``repo``, made if need be; the page's address. Raises MlxgenError."""
    import huggingface_hub
    from huggingface_hub import constants

    try:
        api = huggingface_hub.HfApi(library_name="mlxgen", library_version=__version__)
        full = api.create_repo(repo, exist_ok=True).repo_id
        api.upload_folder(repo_id=full, folder_path=folder, commit_message="Converted by mlxgen")
    except Exception as error:  # no network, no access, a bad name
        raise MlxgenError(
            f"not uploaded: {_reason(error)}; the model itself is in {folder}, and `hf upload {repo} {folder}` "
            "tries it again"
        ) from None
    return f"{constants.ENDPOINT}/{full}"


def _reason(error: Exception) -> str:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) or isinstance(error, errors.LocalTokenNotFoundError):
        return "the hub refuses; log in with `hf auth login`, or set HF_TOKEN, to a token that may write there"
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
