"""The first thing that each process of the service does."""

from service.settings import get_settings
from service.system import inherited_secrets, own_packages
from service.system.prctl import forbid_inspection


def begin() -> None:
    """Find our own packages first; read the secrets that the parent has passed on, and keep them
    from other processes of this user. Before anything is forked or started."""
    own_packages.come_first()
    inherited_secrets.adopt()
    if not get_settings().allow_debuggers:
        forbid_inspection()
