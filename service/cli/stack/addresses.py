"""Which addresses the service may listen on, and what its own URL is."""

import ipaddress

from service.cli.terminal.exit_codes import UsageError
from service.settings import Auth


def check_address(host: str, auth: Auth) -> None:
    """Refuse any host but the loopback if no key is required."""
    if auth == "off" and not is_loopback(host):
        raise UsageError(
            f"refused to listen on {host}: with FINETUNE_AUTH=off anyone who reaches this address "
            "could use the service. Remove FINETUNE_AUTH=off and give everybody a key with "
            "`finetune keys create NAME`, or listen on 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name may resolve to anything
        return False


def local_url(host: str, port: int) -> str:
    """How this machine itself reaches a server that listens on `host`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"
