"""Which receivers may be reached: public addresses, and those that the operator allows."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HTTPS: Final = 443
_FIRST_FREE_PORT: Final = 1024
_LAST_PORT: Final = 65535
SETTING: Final = "FINETUNE_WEBHOOK_ALLOW"
_HOST: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
"""As it is in the DNS: of one with other letters the form that begins with `xn--`."""
_LOCAL_NAMES: Final = ("localhost", ".localhost", ".local", ".internal")
# For protocols, tunnels and examples; `ipaddress` of older Pythons takes some of them for public.
_SPECIAL: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
    )
)


class ReceiverNotAllowedError(Exception):
    """This receiver is not allowed; the text says why."""


@dataclass(frozen=True)
class Allowed:
    """What FINETUNE_WEBHOOK_ALLOW names: hosts, addresses and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Sequence[str]) -> "Allowed":
        """Raises ValueError for an entry that would allow nothing: a network with host bits set, a
        URL, a pattern."""
        hosts, networks = set(), []
        for entry in entries:
            text = entry.strip().lower().rstrip(".")
            try:
                networks.append(ipaddress.ip_network(text.strip("[]")))
            except ValueError:
                if not _HOST.fullmatch(text):
                    raise ValueError(
                        f"{entry!r} is not a host name (hooks.example.internal), an address "
                        "(10.1.2.3) or a network (10.0.0.0/8)"
                    ) from None
                hosts.add(text)
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Whether the operator has named this host, or the address that it is."""
        text = host.lower().rstrip(".")
        return text in self.hosts or self._has(_parsed(text))

    def require_reachable(self, host: str, address: str) -> None:
        """Raises ReceiverNotAllowedError for an address of `host` that is not a public one."""
        found = _parsed(address)
        if self.names(host) or self._has(found):
            return
        if found is None or not is_public(found):
            raise ReceiverNotAllowedError(
                f"{host} is at {address}, which is not a public address; the operator can allow it "
                f"with {SETTING}"
            )

    def _has(self, address: Address | None) -> bool:
        return address is not None and _in(address, self.networks)


def _parsed(text: str) -> Address | None:
    try:
        return unmapped(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return None


def _in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_public(address: Address) -> bool:
    """Whether it is a public address of a single host."""
    address = unmapped(address)
    # `is_global` says yes to some of the others.
    is_special = (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or address.is_loopback
        or address.is_link_local
        or address.is_private
    )
    if isinstance(address, ipaddress.IPv6Address):
        is_special = is_special or address.is_site_local
    return address.is_global and not is_special and not _in(address, _SPECIAL)


def check_url(url: str, allowed: Allowed) -> httpx.URL:
    """The URL of a receiver, as far as it can be judged without looking up its name. Raises
    ReceiverNotAllowedError."""
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, ValueError) as error:
        raise ReceiverNotAllowedError(f"it is not a URL ({error})") from None
    host = parsed.raw_host.decode("ascii", "replace").lower()
    if parsed.scheme not in ("http", "https") or not host:
        raise ReceiverNotAllowedError("it must be https://HOST/…")
    if port is not None and not 0 < port <= _LAST_PORT:
        raise ReceiverNotAllowedError("its port must be 1 to 65535")
    if parsed.userinfo:
        raise ReceiverNotAllowedError("it must not hold a user name or a password")
    if allowed.names(host):
        return parsed
    if parsed.scheme != "https":
        raise ReceiverNotAllowedError(
            f"it must begin with https://; the operator can allow plain http with {SETTING}"
        )
    if port is not None and port != _HTTPS and port < _FIRST_FREE_PORT:
        raise ReceiverNotAllowedError("its port must be 443, or 1024 or more")
    if host in _LOCAL_NAMES or host.rstrip(".").endswith(_LOCAL_NAMES):
        raise ReceiverNotAllowedError(
            f"{host} is a name of local hosts; the operator can allow it with {SETTING}"
        )
    if _parsed(host) is not None:
        allowed.require_reachable(host, host.strip("[]"))
    return parsed
