"""What Landlock is asked for, for each version of it: a fake kernel notes the system calls."""

import errno
import os
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest

from worker.sandbox import landlock, system_calls
from worker.sandbox.view import Layer, View

NO_NEW_PRIVILEGES = 38
# Bits of the rights, as linux/landlock.h has them.
READ = 0b1101  # execute, read a file, list a folder
LIST = 0b1000
FILE = 0b111 | 1 << 14 | 1 << 15  # execute, write, read, truncate, control a device
NEVER = 1 << 6 | 1 << 10 | 1 << 11  # character devices, FIFOs, block devices
BIND, CONNECT = 1, 2


_REAL = system_calls.call


class Kernel:
    """Of one version: `rules` has the rights by path, `ports` those by port."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.ruleset = -1
        self.created: bytes = b""
        self.rules: dict[str, int] = {}
        self.ports: dict[int, int] = {}
        self.order: list[str] = []

    def call(self, number: int, *arguments: Any) -> int:
        match number, arguments:
            case 444, (None, 0, 1):
                if self.version == 0:
                    raise OSError(errno.ENOSYS, "")
                return self.version
            case 444, (attributes, size, 0):
                assert size == len(attributes)
                self.created = attributes
                self.ruleset = os.open(os.devnull, os.O_RDONLY)
                return self.ruleset
            case 445, (self.ruleset, 1, rule, 0):
                rights, descriptor = struct.unpack("=Qi", rule)
                path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
                assert path not in self.rules
                self.rules[path] = rights
                return 0
            case 445, (self.ruleset, 2, rule, 0):
                rights, port = struct.unpack("QQ", rule)
                self.ports[port] = rights
                return 0
            case 446, (self.ruleset, 0):
                self.order.append("restrict")
                return 0
        assert number not in (444, 445, 446), arguments
        return _REAL(number, *arguments)

    def prctl(self, option: int, value: int = 0) -> None:
        assert (option, value) == (NO_NEW_PRIVILEGES, 1)
        self.order.append("no new privileges")


def open_files() -> int:
    return psutil.Process().num_fds()


def asked(monkeypatch: pytest.MonkeyPatch, version: int, **view: Any) -> Kernel:
    kernel = Kernel(version)
    monkeypatch.setattr(system_calls, "call", kernel.call)
    monkeypatch.setattr(system_calls, "prctl", kernel.prctl)
    before = open_files()
    landlock.restrict(View(**{"layers": (Layer.LANDLOCK,), **view}))
    assert open_files() == before
    assert kernel.order == ["no new privileges", "restrict"]
    return kernel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    return tmp_path


@pytest.mark.parametrize(
    ("version", "rights", "more"),
    [
        (1, 13, ()),
        (2, 14, ()),
        (3, 15, ()),
        (4, 15, (BIND | CONNECT,)),
        (5, 16, (BIND | CONNECT,)),
        (6, 16, (BIND | CONNECT, 3)),
        (9, 16, (BIND | CONNECT, 3)),
    ],
)
def test_the_rights_of_each_version(
    monkeypatch: pytest.MonkeyPatch, folder: Path, version: int, rights: int, more: tuple[int, ...]
) -> None:
    kernel = asked(
        monkeypatch,
        version,
        read=(folder / "folder", folder / "file"),
        listed=(folder,),
        write=(Path("/usr"), Path("/etc/passwd")),
        devices=(Path("/dev/null"),),
    )
    known = (1 << rights) - 1
    assert landlock.version() == version
    assert struct.unpack(f"{1 + len(more)}Q", kernel.created) == (known, *more)
    expected = {
        folder / "folder": READ,
        folder / "file": 0b101,
        folder: LIST,
        Path("/usr"): ~NEVER,
        Path("/etc/passwd"): FILE,
        Path("/dev/null"): FILE,
        Path("/proc"): READ,
        Path(f"/proc/{os.getpid()}"): FILE | LIST,
    }
    assert kernel.rules == {str(path): right & known for path, right in expected.items()}
    assert kernel.ports == {}


def test_no_version() -> None:
    kernel = Kernel(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_calls, "call", kernel.call)
        assert landlock.version() == 0


NAMESPACES = {"layers": tuple(Layer)}


@pytest.mark.parametrize(
    ("version", "view", "is_limited", "ports"),
    [
        (3, {"network": True, "ports": (443,)}, None, {}),
        (4, {"network": True, "ports": (443, 80, 443)}, True, {80: CONNECT, 443: CONNECT}),
        (6, {"network": True, "ports": (5,), **NAMESPACES}, True, {5: CONNECT}),
        (6, {"ports": (443,)}, True, {}),
        (6, {"ranks": True, **NAMESPACES}, False, {}),
        (4, {"ranks": True}, True, {0: BIND, **dict.fromkeys(range(7, 10), BIND | CONNECT)}),
    ],
)
def test_ports(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: int,
    view: dict[str, Any],
    is_limited: bool | None,
    ports: dict[int, int],
) -> None:
    (tmp_path / "range").write_text("7\t9\n")
    monkeypatch.setattr(landlock, "_EPHEMERAL", tmp_path / "range")
    kernel = asked(monkeypatch, version, **view)
    if is_limited is not None:
        network = struct.unpack_from("QQ", kernel.created)[1]
        assert network == (BIND | CONNECT if is_limited else 0)
    assert kernel.ports == ports


def test_links(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """One of the operator's is followed; one that a stage could have made gets no rule."""
    read = (folder / "link", folder / "file", folder / "missing")
    for guarded, followed in (((), ["folder", "file"]), ((folder,), ["file"])):
        rules = asked(monkeypatch, 7, read=read, guarded=guarded).rules
        assert [path for path in rules if path.startswith(str(folder))] == [
            str(folder / name) for name in followed
        ]


def test_an_error_that_is_not_about_a_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EMFILE, "too many")

    kernel = Kernel(7)
    monkeypatch.setattr(system_calls, "call", kernel.call)
    monkeypatch.setattr(system_calls, "open_below", fail)
    before = open_files()
    with pytest.raises(OSError, match="too many"):
        landlock.restrict(View((Layer.LANDLOCK,), read=(folder / "file",), guarded=(folder,)))
    assert (kernel.order, open_files()) == ([], before)
