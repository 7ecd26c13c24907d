"""Which paths a view has, and which parts of the machine every stage sees."""

import json
import sys
from pathlib import Path

import pytest

from service.system import own_packages
from worker.sandbox import machine
from worker.sandbox.view import Layer, View

KINDS = ("read", "write", "listed", "devices")


def test_paths_that_are_there_and_in_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/inside/deep", "a", "bb"):
        (tmp_path / name).mkdir(parents=True)
    given = tuple(map(Path, ("b/inside/deep", "bb", "b", "b", "a", "missing")))
    expected = tuple(tmp_path / name for name in ("a", "b", "bb"))
    for kind in KINDS:
        found = View((), **{kind: given}).existing()  # type: ignore[arg-type]
        assert {name: getattr(found, name) for name in KINDS} == {
            **dict.fromkeys(KINDS, ()),
            kind: expected,
        }
    assert View((), guarded=(Path("b"), Path("missing"))).existing().guarded == (
        tmp_path / "b",
        tmp_path / "missing",
    )


@pytest.mark.parametrize(
    ("guarded", "path", "trusted"),
    [
        ((), "/a/b/c", "/a/b/c"),
        (("/a",), "/a/b/c", "/a"),
        (("/a", "/a/b", "/x/y/z/long"), "/a/b/c", "/a/b"),
        (("/a/b", "/a"), "/a/b/c", "/a/b"),
        (("/a/b",), "/a/b", "/a/b"),
        (("/a/b",), "/a/bc", "/a/bc"),
    ],
)
def test_the_part_whose_links_are_followed(
    guarded: tuple[str, ...], path: str, trusted: str
) -> None:
    view = View((), guarded=tuple(map(Path, guarded)))
    assert view.trusted(Path(path)) == Path(trusted)


def test_as_json() -> None:
    view = View(
        tuple(Layer),
        (Path("/r"),),
        (Path("/w"),),
        (Path("/l"),),
        (Path("/d"),),
        network=True,
        ports=(443, 80),
        ranks=True,
        shared_memory_bytes=3,
        guarded=(Path("/g"),),
    )
    assert View.from_json(view.to_json()) == view
    assert View.from_json(View(()).to_json().encode()) == View(())
    assert json.loads(view.to_json())["layers"] == ["landlock", "namespaces"]


def test_what_every_stage_reads() -> None:
    found = list(machine.readable({}))
    names = ("/usr", "/lib64", "/sys", "/etc/passwd", "/etc/ssl/certs", "/etc/resolv.conf")
    needed = {*map(Path, (*names, sys.prefix, sys.base_prefix))}
    needed |= {own_packages.FOLDER / "service", own_packages.FOLDER / "worker"}
    assert needed - set(found) == set()
    private = ("/", "/etc", "/etc/shadow", "/etc/ssl", "/etc/ssl/private", "/root", "/home", "/tmp")
    shown = [Path(path) for path in private if Path(path) in found]
    assert shown == []
    assert own_packages.FOLDER not in found
    assert machine.import_folders() == (own_packages.FOLDER,)


def test_what_a_variable_names_is_readable() -> None:
    variables = {
        "LD_PRELOAD": "/a.so /b.so:name.so",
        "SSL_CERT_FILE": "/c.pem",
        "LD_LIBRARY_PATH": "/d:relative::/e",
        "CUDA_HOME": "/f",
        "HOME": "/g",
    }
    more = [path for path in machine.readable(variables) if path not in machine.readable({})]
    assert more == [Path(path) for path in ("/a.so", "/b.so", "/c.pem", "/d", "/e", "/f")]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["null", "zero", "full", "random", "urandom", "tty"]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / pattern.replace("*", "0")])
    for with_gpus, gpus in ((False, []), (True, ["nvidia0", "dxg", "kfd", "dri"])):
        expected = tuple(Path("/dev") / name for name in (*names, *gpus))
        assert machine.devices(with_gpus=with_gpus) == expected
