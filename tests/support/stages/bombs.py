"""What a hostile stage does to its machine; each stops by itself before it is a danger."""

import mmap
import os
import signal
import time
from pathlib import Path

_MIB = 1024**2
_MOST_MIB = 6144
_MOST_PROCESSES = 600


def memory() -> None:
    """As fast as the machine can."""
    blocks = [b"x" * (32 * _MIB) for _ in range(_MOST_MIB // 32)]
    time.sleep(600 + len(blocks))


def memory_of_children() -> None:
    """No process has much."""
    for _ in range(12):
        if os.fork() == 0:
            block = b"x" * (60 * _MIB)
            time.sleep(600 + len(block))
    time.sleep(600)


def shared_memory() -> None:
    """Half of the limit, in each of many processes: it is there only once."""
    pages = mmap.mmap(-1, 150 * _MIB)
    pages.write(b"x" * (150 * _MIB))
    for _ in range(6):
        if os.fork() == 0:
            _touch(pages)
            os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(6):
        os.wait()


def _touch(pages: mmap.mmap) -> None:
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        sum(pages[place] for place in range(0, len(pages), 4096))


def memory_files() -> None:
    """In files that no process maps, so that it is in no process's memory."""
    file = os.memfd_create("bomb")
    for _ in range(_MOST_MIB // 32):
        os.write(file, b"x" * (32 * _MIB))
    time.sleep(600)


def cached_files() -> None:
    """Twice the limit, but only as cached pages of a file, which the kernel can drop: written, read
    and mapped as a dataset is."""
    data = Path("data")
    with data.open("wb") as file:
        for _ in range(80):
            file.write(b"x" * (10 * _MIB))
        file.flush()
        os.fsync(file.fileno())
    with data.open("rb") as file:
        while file.read(_MIB):
            continue
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            _touch(pages)
    data.unlink()


def processes() -> None:
    _multiply(own_sessions=False)


def processes_of_own_sessions() -> None:
    """A signal to the stage's group does not reach them."""
    _multiply(own_sessions=True)


def _multiply(*, own_sessions: bool) -> None:
    tokens, writer = os.pipe()
    os.write(writer, b"x" * _MOST_PROCESSES)
    os.set_blocking(tokens, False)
    while True:
        try:
            os.read(tokens, 1)
        except BlockingIOError:
            time.sleep(600)
            os._exit(0)
        if os.fork() == 0 and own_sessions:
            os.setsid()


def disk() -> None:
    """In many files."""
    for number in range(_MOST_MIB // 16):
        Path(f"bomb-{number}").write_bytes(b"x" * (16 * _MIB))
    time.sleep(600)


def temporary_files() -> None:
    for number in range(_MOST_MIB // 16):
        Path(os.environ["TMPDIR"], f"bomb-{number}").write_bytes(b"x" * (16 * _MIB))
    time.sleep(600)


def file() -> None:
    with Path("bomb").open("wb") as bomb:
        for _ in range(_MOST_MIB // 16):
            bomb.write(b"x" * (16 * _MIB))
