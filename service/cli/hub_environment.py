"""How the Hub is reached by a worker's code that a command runs on this machine."""

import os

from service import child_environment
from service.settings import Settings


def hub_environment() -> tuple[dict[str, str], dict[str, str]]:
    """The environment of this process, with the Hub and the token of the service's settings: (what
    may be seen, secrets, which `service.inherited_secrets` passes on)."""
    settings = Settings()
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    if settings.hub_endpoint is not None:
        environment["HF_ENDPOINT"] = settings.hub_endpoint
    if settings.hub_token is not None:
        environment["HF_TOKEN"] = settings.hub_token.get_secret_value()
    return child_environment.split(environment)
