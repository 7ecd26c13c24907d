"""Which receivers may be reached."""

import ipaddress

import pytest

from service.webhooks.addresses import Allowed, ReceiverNotAllowedError, check_url, is_public

NOBODY = Allowed()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1"),
        *("192.168.1.1", "169.254.169.254", "fe80::1", "fd00:ec2::254", "100.64.0.1"),
        *("224.0.0.1", "239.255.255.250", "ff02::1", "255.255.255.255", "240.0.0.1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "fec0::1"),
        *("192.0.2.1", "198.18.0.1", "2001:db8::1", "192.0.0.8", "3fff::1"),
        *("64:ff9b:1::1", "64:ff9b::808:808", "2002:a9fe:a9fe::", "fe80::1%1", "100::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


SCHEME = "it must be https://HOST/…"
PLAIN = "it must begin with https://; the operator can allow plain http with FINETUNE_WEBHOOK_ALLOW"
PORT = "its port must be 443, or 1024 or more"
LOCAL = "{} is a name of local hosts; the operator can allow it with FINETUNE_WEBHOOK_ALLOW"
PRIVATE = (
    "{} is at {}, which is not a public address; the operator can allow it with "
    "FINETUNE_WEBHOOK_ALLOW"
)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", PLAIN),
        ("ftp://example.com/", SCHEME),
        ("https:///x", SCHEME),
        ("https://u:p@example.com/", "it must not hold a user name or a password"),
        ("https://u@example.com/", "it must not hold a user name or a password"),
        ("https://example.com:22/", PORT),
        ("https://example.com:1023/", PORT),
        ("https://example.com:0/", "its port must be 1 to 65535"),
        ("https://example.com:65536/", "its port must be 1 to 65535"),
        ("https://localhost/", LOCAL.format("localhost")),
        ("https://a.localhost/", LOCAL.format("a.localhost")),
        ("https://db.internal./", LOCAL.format("db.internal.")),
        ("https://printer.local/", LOCAL.format("printer.local")),
        ("https://127.0.0.1/", PRIVATE.format("127.0.0.1", "127.0.0.1")),
        ("https://169.254.169.254/latest", PRIVATE.format("169.254.169.254", "169.254.169.254")),
        ("https://[::1]/", PRIVATE.format("::1", "::1")),
        ("https://[::ffff:127.0.0.1]/", PRIVATE.format("::ffff:127.0.0.1", "::ffff:127.0.0.1")),
        ("https://[fe80::1]/", PRIVATE.format("fe80::1", "fe80::1")),
    ],
)
def test_urls_that_are_refused_and_why(url: str, reason: str) -> None:
    with pytest.raises(ReceiverNotAllowedError) as refused:
        check_url(url, NOBODY)
    assert str(refused.value) == reason


@pytest.mark.parametrize("url", ["https://[::1/", "https://example.com:port/"])
def test_what_is_not_a_url(url: str) -> None:
    with pytest.raises(ReceiverNotAllowedError, match=r"^it is not a URL \(.+\)$"):
        check_url(url, NOBODY)


@pytest.mark.parametrize(
    "url",
    [
        *("https://example.com/a?b=c", "https://example.com:1024/", "https://example.com:443/"),
        *("https://EXAMPLE.com/", "https://example.com:65535/"),
    ],
)
def test_urls_that_are_taken(url: str) -> None:
    assert check_url(url, NOBODY).host == "example.com"


def test_the_operator_allows_hosts_addresses_and_networks() -> None:
    allowed = Allowed.parse(["hooks.internal", "127.0.0.1", "10.0.0.0/8"])
    for url in ("http://hooks.internal:81/", "http://127.0.0.1:9/", "http://10.1.2.3/"):
        check_url(url, allowed)
    allowed.require_reachable("hooks.internal", "192.168.0.1")
    allowed.require_reachable("any.example.com", "10.9.9.9")
    with pytest.raises(ReceiverNotAllowedError, match="not a public address"):
        allowed.require_reachable("any.example.com", "192.168.0.1")
    with pytest.raises(ReceiverNotAllowedError):
        check_url("http://127.0.0.2/", allowed)


@pytest.mark.parametrize(
    "entry",
    [
        *("10.0.0.1/8", "https://hooks.example.org", "*.example.org", "*", "hooks:8080"),
        *("127.0.0.1:8090", "a b", "bücher.example", ".example.org", "fe80::1/64"),
    ],
)
def test_an_entry_that_would_allow_nothing(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        Allowed.parse([entry])
