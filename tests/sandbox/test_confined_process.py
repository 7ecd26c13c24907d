"""What a command finds in its own process and around it once it is confined, with each layer."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.contract.stage.stages import EVENT_FD_VARIABLE
from tests.support.servers.services import wait_until
from worker.sandbox import layers, machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View

needs_namespaces = pytest.mark.skipif(not layers._has_namespaces(), reason="no user namespaces")

_FACTS = """
import json, os, signal, socket, sys
def status():
    lines = open("/proc/self/status").read().splitlines()
    return dict(line.split(":", 1) for line in lines)
def mounts():
    words = [line.split() for line in open("/proc/self/mountinfo")]
    return {line[4]: sorted(set(line[5].split(",")) & {"ro", "rw", "nosuid", "nodev", "noexec"})
            for line in words}
def tried(path, flags):
    try:
        os.close(os.open(path, flags, 0o600))
        return True
    except OSError:
        return False
found = status()
folder, other = sys.argv[1:]
print(json.dumps({
    "capabilities": [int(found[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")],
    "bounded": int(found["CapBnd"], 16),
    "privileges": int(found["NoNewPrivs"]),
    "blocked": int(found["SigBlk"], 16),
    "words": sys.orig_argv[:4],
    "ids": [os.getuid(), os.getgid()],
    "pid": os.getpid(),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "folder": os.getcwd(),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "networks": sorted(name for _, name in socket.if_nameindex()),
    "links": [os.readlink(f"/dev/{n}") for n in ("fd", "stdin", "stdout", "stderr")],
    "mounts": mounts(),
    "reads": [tried(f"{place}/file", os.O_RDONLY) for place in (folder, other)],
    "writes": [tried(f"{place}/file", os.O_WRONLY) for place in (folder, other)],
    "makes": [tried(f"{place}/new", os.O_WRONLY | os.O_CREAT)
              for place in (folder, other, "/", "/tmp")],
    "names": sorted(os.listdir(folder)),
    "null": tried("/dev/null", os.O_RDWR),
}))
"""


def view(*used: Layer, **more: Any) -> View:
    more = {"read": (), "write": (), **more}
    more["read"] = (*machine.readable({}), *more["read"])
    return View(used, devices=machine.devices(with_gpus=False), **more)


def run(
    view: View, *words: str, cwd: Path | str = "/", **options: Any
) -> subprocess.CompletedProcess[str]:
    with confined([sys.executable, "-I", "-S", *words], view) as (command, descriptors):
        options["pass_fds"] = (*descriptors, *options.get("pass_fds", ()))
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, **options)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One that may be written, and one that may only be read."""
    made = (tmp_path / "own", tmp_path / "other")
    for folder in made:
        folder.mkdir()
        (folder / "file").write_text("x")
    return made


def facts(view: View, *folders: Path) -> dict[str, Any]:
    done = run(view, "-c", _FACTS, *map(str, folders), cwd=folders[0])
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_powers_and_files(layer: Layer, folders: tuple[Path, Path]) -> None:
    own, other = folders
    found = facts(view(layer, write=(own,), read=(other,)), own, other)
    assert found["capabilities"] == [0, 0, 0, 0]
    if layer is Layer.NAMESPACES or os.geteuid() == 0:
        assert found["bounded"] == 0
    assert (found["privileges"], found["blocked"]) == (1, 0)
    assert found["ids"] == [os.getuid(), os.getgid()]
    assert found["words"] == [sys.executable, "-I", "-S", "-c"]
    assert found["folder"] == str(own)
    assert found["descriptors"] == [0, 1, 2]
    assert found["null"]
    assert (found["reads"], found["writes"]) == ([True, True], [True, False])
    assert found["makes"] == [True, False, False, False]
    assert found["names"] == ["file", "new"]


@needs_namespaces
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.usefixtures("processes")
def test_what_namespaces_show(folders: tuple[Path, Path], network: bool) -> None:
    own, other = folders
    found = facts(view(Layer.NAMESPACES, write=(own,), read=(other,), network=network), *folders)
    assert (found["pid"], found["processes"]) == (2, [1, 2])
    host = sorted(name for _, name in socket.if_nameindex())
    assert found["networks"] == (host if network else ["lo"])
    assert found["links"] == ["/proc/self/fd", *(f"/proc/self/fd/{number}" for number in range(3))]
    mounts = found["mounts"]
    assert "/.old" not in mounts
    expected = {
        "/": ["nodev", "nosuid", "ro"],
        str(own): ["nosuid", "rw"],
        str(other): ["nosuid", "ro"],
        "/usr": ["nosuid", "ro"],
        "/dev/null": ["nosuid", "rw"],
        "/dev/shm": ["nodev", "nosuid", "rw"],
        "/proc": ["nodev", "noexec", "nosuid", "rw"],
    }
    settings = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
    there_too = [path for path in settings if Path(path).exists()]
    expected |= {path: ["nodev", "noexec", "nosuid", "ro"] for path in there_too}
    there = {path: mounts.get(path) for path in expected}
    # What the machine's own mounts have besides stays.
    for path in (str(own), str(other), "/usr", "/dev/null"):
        there[path] = [word for word in there[path] or () if word in expected[path]]
    assert there == expected


def test_it_ends_as_the_command_ends(layer: Layer) -> None:
    for program, code in (
        ("import sys; sys.exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        # An orphan does not end it, nor does the orphan's end.
        ("import os\nif os.fork() == 0 and os.fork(): os._exit(3)", 0),
    ):
        assert run(view(layer), "-c", program).returncode == code


def test_a_signal_reaches_the_command(layer: Layer) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print(1, flush=True)\n"
        "time.sleep(60)"
    )
    with (
        confined([sys.executable, "-I", "-S", "-c", program], view(layer)) as (command, passed),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, pass_fds=passed, start_new_session=True, cwd="/"
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        if layer is Layer.NAMESPACES:
            stage = psutil.Process(process.pid).children(recursive=True)[-1]
            for monitor in stage.parents()[:2]:
                wait_until(partial(_holds_nothing_else, monitor), 30, "a monitor with one pipe")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 5


def _holds_nothing_else(monitor: psutil.Process) -> bool:
    """Streams to nowhere and the pipe with the stage's end."""
    found = []
    for each in Path(f"/proc/{monitor.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(each.readlink())[:5])
    return sorted(found) == ["/dev/"] * 3 + ["pipe:"]


_COUNT_SIGNALS = """
import os, signal, time
from worker.sandbox import machine, namespaces
from worker.sandbox.view import Layer, View
devices = machine.devices(with_gpus=False)
view = View((Layer.NAMESPACES,), read=machine.readable({}), write=(), devices=devices)
def times_received(delay):
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        received = []
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: received.append(1))
        os.write(writer, b".")
        namespaces.enter(view)
        while not received:
            time.sleep(0.01)
        time.sleep(0.2)
        os._exit(len(received))
    os.read(reader, 1)
    time.sleep(delay)
    os.killpg(process, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
print([times_received(delay / 1000) for delay in (0, 5, 10, 20, 30, 40, 50, 60, 80, 120)])
"""


@needs_namespaces
@pytest.mark.usefixtures("processes")
def test_a_signal_reaches_the_stage_once_whenever_it_comes() -> None:
    words = [sys.executable, "-c", _COUNT_SIGNALS]
    counted = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(counted.stdout) == [1] * 10


_KILL_OUTSIDE = """
import os, signal, time
from worker.sandbox import confinement, machine, mounts, namespaces
from worker.sandbox.view import Layer, View
devices = machine.devices(with_gpus=False)
view = View((Layer.NAMESPACES,), read=machine.readable({}), write=(), devices=devices)
namespaces._pass_on_early_signals = lambda status: os.kill(os.getpid(), signal.SIGKILL)
namespaces.die_with_parent = lambda parent: None  # the signal follows the pipe's end, later
enter = mounts.enter
mounts.enter = lambda view: (time.sleep(0.5), enter(view))
try:
    confinement.enter(view)
except OSError as error:
    confinement.report(error)
"""


@needs_namespaces
@pytest.mark.usefixtures("processes")
def test_a_kill_while_it_is_confined_is_a_kill() -> None:
    """Not a machine that cannot confine stages: no other attempt follows that failure."""
    reader, writer = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", _KILL_OUTSIDE],
        env={**os.environ, EVENT_FD_VARIABLE: str(writer)},
        pass_fds=(writer,),
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == ""
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")


def test_a_command_that_cannot_start_says_so(layer: Layer) -> None:
    reader, writer = os.pipe()
    with confined(["/missing/program"], view(layer)) as (command, passed):
        done = subprocess.run(
            command,
            env={**os.environ, EVENT_FD_VARIABLE: str(writer)},
            pass_fds=(*passed, writer),
            capture_output=True,
            text=True,
            cwd="/",
        )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        (line,) = pipe.read().splitlines()
    event = json.loads(line)
    assert done.returncode == 1
    assert (event["type"], event["failure"]["code"]) == ("failed", "sandbox_incomplete")
    assert event["failure"]["message"] == done.stderr.strip()
    assert "/missing/program" in done.stderr
