"""Why a download or an upload failed, in one line with the way out."""

from __future__ import annotations

from mlxgen.errors import reason_of
from mlxgen.weights.hub.answers import BadAnswer
from mlxgen.weights.hub.names import BUNDLED, suggestion

LOGIN = "log in with `hf auth login` or set HF_TOKEN"


def explain_download(repo: str, revision: str | None, error: Exception) -> str:
    """Why a model could not be downloaded, beginning with its name."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    status = _status(error)
    if isinstance(error, errors.HFValidationError):
        return f"{repo}: not a valid name on the hub, where names have the form owner/name"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo}: has no revision {revision!r}; its branches and tags are listed at {page}/tree/main"
    if isinstance(error, errors.GatedRepoError):
        return f"{repo}: is gated; accept its terms at {page}, then {LOGIN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        where = f"not a local folder, and no such model at {constants.ENDPOINT}"
        return f"{repo}: {where}{suggestion(repo)}; if it is private, {LOGIN}"
    if status in (401, 403):
        return f"{repo}: the hub denied access ({status}); {LOGIN}"
    if status == 429:
        return f"{repo}: the hub received too many requests (429); try again later, or {LOGIN}"
    if status is not None:
        return f"{repo}: the hub answered with error {status}, and the model is not in the cache; try again later"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            f"{repo}: not in the cache, and HF_HUB_OFFLINE is set; unset it and run once while online, "
            f"or use the bundled {BUNDLED}"
        )
    if isinstance(error, BadAnswer):
        where = f"the answer of {constants.ENDPOINT} is invalid"
        return f"{repo}: not in the cache, and {where} ({reason_of(error)}); try again later, or check HF_ENDPOINT"
    return (
        f"{repo}: not in the cache, and {constants.ENDPOINT} cannot be reached ({reason_of(error)}); check the "
        f"network or proxy, or use the bundled {BUNDLED}"
    )


def explain_upload(error: Exception) -> str:
    """Why an upload failed."""
    from huggingface_hub import errors

    if _status(error) in (401, 403) or isinstance(error, errors.LocalTokenNotFoundError):
        return f"the hub denied access; {LOGIN} to a token with write access"
    return reason_of(error)


def _status(error: Exception) -> int | None:
    """The HTTP status of the hub's answer, if it answered."""
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status
