"""Sending a model folder to the hub."""

from __future__ import annotations

import shlex
from pathlib import Path

from mlxgen import __version__
from mlxgen.errors import MlxgenError
from mlxgen.weights.files.model_folder import ORIGIN
from mlxgen.weights.hub.explain import explain_upload


def upload_folder(folder: Path, repo: str) -> str:
    """Upload the folder as the repository ``repo``, which is created if need be.

    Returns the address of its page. Raises MlxgenError.
    """
    import huggingface_hub
    from huggingface_hub import constants

    try:
        api = huggingface_hub.HfApi(library_name="mlxgen", library_version=__version__)
        full = api.create_repo(repo, exist_ok=True).repo_id
        api.upload_folder(
            repo_id=full, folder_path=folder, commit_message="Converted by mlxgen", ignore_patterns=[ORIGIN]
        )
    except Exception as error:  # no network, no access, a bad name
        again = shlex.join(["hf", "upload", repo, str(folder), "--exclude", ORIGIN])
        raise MlxgenError(
            f"the upload failed ({explain_upload(error)}); the model is in {folder}, and `{again}` tries again"
        ) from None
    return f"{constants.ENDPOINT}/{full}"
