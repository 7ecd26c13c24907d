"""Whether the job's token may write to its repository, and why not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.system.masking import mask


def full_model_id(api: HfApi, model_id: str) -> str:
    """The full id: a name without a namespace belongs to the token's account.

    Looked up explicitly, because the client takes `gpt2` for the public model of that name.
    """
    return model_id if "/" in model_id else f"{api.whoami()['name']}/{model_id}"


def require_write(api: HfApi, model_id: str) -> None:
    """Raise the client's error if the token may not write to this repository.

    `create_repo` does not check this: with `exist_ok` it accepts any readable repository.
    """
    try:
        api.auth_check(model_id, write=True)
    except RepositoryNotFoundError:
        raise
    except HfHubHTTPError as error:
        if error.response.status_code != 404:  # 404: a mirror of the Hub without this route
            raise


def name_of_token(spec: JobSpec) -> str:
    """Whose it is, at the beginning of a sentence."""
    secret = spec.hub_token_secret
    return "The operator's Hub token" if secret is None else f"The Hub token in `{secret}`"


@contextmanager
def refusals_explained(api: HfApi, token: str, model_id: str) -> Iterator[None]:
    """Raise StageError if the Hub refuses access: hub_unauthorized for a read-only token, else
    hub_forbidden. `token`: its name."""
    try:
        yield
    except HfHubHTTPError as error:
        if not (isinstance(error, RepositoryNotFoundError) or error.response.status_code == 403):
            raise
        account = _account(api)
        if account is None:
            raise
        answer = mask(error.server_message or str(error))
        raise _refusal(account, token, model_id, answer) from error


def _account(api: HfApi) -> dict[str, Any] | None:
    """The token's account; None if the Hub does not return it."""
    try:
        return dict(api.whoami())
    except HfHubHTTPError:
        return None


def _refusal(account: dict[str, Any], token: str, model_id: str, answer: str) -> StageError:
    name = account["name"]
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        return StageError(
            FailureCode.HUB_UNAUTHORIZED,
            f"{token} may not write to {model_id!r}: it has the role `read`.",
            model_id=model_id,
            answer=answer,
        )
    namespaces = [name, *(organization["name"] for organization in account.get("orgs", []))]
    return StageError(
        FailureCode.HUB_FORBIDDEN,
        f"{token} may not write to {model_id!r} ({answer}). "
        f"The namespaces of its account: {', '.join(namespaces)}.",
        model_id=model_id,
        namespaces=namespaces,
    )
