"""Stages run with the allocator of the settings; the worker itself never does."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings, get_settings
from tests.processes.support import STUB, begin, environment, is_forked
from tests.support.servers.services import wait_until
from worker import run
from worker.processes import allocator, spawn
from worker.processes.allocator import AllocatorError
from worker.processes.fork_client import ForkClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, processes: None) -> str:
    """A library that can be preloaded, called like an allocator; it leaves malloc as it is."""
    path = tmp_path_factory.mktemp("library") / "libtestmalloc.so.7"
    source = b"int finetune_test_allocator = 7;\n"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, check=True)
    return str(path)


def has(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


class TestFind:
    def test_the_first_that_the_loader_knows(
        self, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("LD_PRELOAD", raising=False)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(library).parent))
        monkeypatch.setattr(allocator, "KNOWN", ("libnosuchmalloc.so.1", Path(library).name))
        assert allocator.find("auto", with_gpu=False) == "libtestmalloc.so.7"
        assert allocator.find("auto", with_gpu=True) == "system"
        monkeypatch.setattr(allocator, "KNOWN", ("libnosuchmalloc.so.1",))
        assert allocator.find("auto", with_gpu=False) == "glibc"
        assert allocator.find("auto", with_gpu=True) == "system"

    def test_an_allocator_of_the_operators_own_stays(
        self, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(allocator, "KNOWN", (library,))
        monkeypatch.setenv("LD_PRELOAD", library)
        assert allocator.find("auto", with_gpu=False) == "system"

    def test_the_named_library_is_used(self, library: str) -> None:
        assert allocator.find(library, with_gpu=True) == library
        assert allocator.find("system", with_gpu=False) == "system"

    @pytest.mark.usefixtures("processes")
    def test_a_library_that_cannot_be_had_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(AllocatorError, match=r"/no/such\.so.*cannot open shared object"):
            allocator.find("/no/such.so", with_gpu=False)
        text = tmp_path / "libmalloc.so"
        text.write_text("no library")
        with pytest.raises(AllocatorError, match="to `auto`, or to `system`"):
            allocator.find(str(text), with_gpu=False)

    def test_a_library_whose_processes_do_not_end_is_refused(
        self, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(allocator, "_PROBE", ["sleep", "60"])
        monkeypatch.setattr(allocator, "_PROBE_SECONDS", 0.2)
        with pytest.raises(AllocatorError, match=r"does not end within 0\.2 s"):
            allocator.find(library, with_gpu=False)

    @pytest.mark.parametrize("wanted", ["tcmalloc", "/a b.so", "/a.so:/b.so", "/a.so\n", ""])
    def test_nothing_else_is_a_setting(self, wanted: str) -> None:
        with pytest.raises(ValidationError, match="malloc"):
            Settings(malloc=wanted)

    @pytest.mark.usefixtures("processes")
    def test_a_worker_does_not_start_without_it(self, tmp_path: Path) -> None:
        given = {"FINETUNE_HOME": str(tmp_path), "FINETUNE_REDIS_URL": "redis://127.0.0.1:1"}
        done = subprocess.run(
            [sys.executable, "-m", "worker"],
            env={**os.environ, **given, "FINETUNE_MALLOC": "/no/such.so"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("FINETUNE_MALLOC is /no/such.so, which cannot be preloaded")


class TestPreloading:
    def test_comes_before_the_operators_preloads(self) -> None:
        chosen = {"TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "5", "MALLOC_CONF": "narenas:1"}
        given = {"LD_PRELOAD": "/other.so", **chosen}
        assert allocator.preloading("/own.so", given) == {
            "LD_PRELOAD": "/own.so:/other.so",
            **chosen,
        }
        ours = allocator.preloading("/own.so", {})
        assert ours["LD_PRELOAD"] == "/own.so"
        # jemalloc that never returns memory grows without limit.
        assert "decay" not in ours["MALLOC_CONF"]
        assert allocator.preloading("system", given) == given

    @pytest.mark.usefixtures("processes")
    @pytest.mark.skipif(
        tuple(map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0")[6:].split(".")))
        < (2, 36),
        reason="glibc 2.36 or newer",
    )
    def test_the_c_library_keeps_freed_memory_unless_the_operator_tunes_it(self) -> None:
        keeping = allocator.preloading("glibc", {})
        assert "mmap_threshold=268435456" in keeping["GLIBC_TUNABLES"]
        own = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        assert allocator.preloading("glibc", own) == own
        program = (
            "import ctypes\n"
            "libc = ctypes.CDLL(None)\n"
            "libc.malloc.restype = ctypes.c_void_p\n"
            "libc.free.argtypes = [ctypes.c_void_p]\n"
            "size = 100 << 20\n"
            "block = libc.malloc(size)\n"
            "heap = next(l for l in open('/proc/self/maps') if '[heap]' in l).split()[0]\n"
            "low, high = (int(end, 16) for end in heap.split('-'))\n"
            "print(low <= block < high)\n"
            "libc.free(block)\n"
            "heap = next(l for l in open('/proc/self/maps') if '[heap]' in l).split()[0]\n"
            "low, high = (int(end, 16) for end in heap.split('-'))\n"
            "print(high - low > size)\n"
        )
        results = [
            subprocess.run(
                [sys.executable, "-c", program],
                env=allocator.preloading(malloc, environment()),
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            for malloc in ("glibc", "system")
        ]
        assert results == [["True", "True"], ["False", "False"]]

    def test_stages_have_it_forked_or_not(self, library: str, tmp_path: Path) -> None:
        preloaded = allocator.preloading(library, environment())
        more = {name: preloaded[name] for name in preloaded.keys() - environment().keys()}
        with closing(ForkClient(preloaded, modules=(STUB,), imports=(STUB,))) as forks:
            for start in (spawn.new_interpreter, forks.start):
                folder = tmp_path / start.__name__
                with begin(folder, "hang", start, **more) as child:
                    wait_until((folder / "environment").exists, 10, "the stage")
                    assert has(child.pid, library)
                    assert is_forked(child, forks) == (start == forks.start)
        plain = begin(tmp_path / "plain", "hang", spawn.new_interpreter)
        with plain:
            wait_until((tmp_path / "plain" / "environment").exists, 10, "the stage")
            assert not has(plain.pid, library)

    def test_a_worker_gives_it_to_its_stages_and_not_to_itself(
        self, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_HOME", str(tmp_path))
        monkeypatch.setenv("FINETUNE_MALLOC", library)
        get_settings.cache_clear()
        try:
            made = run.job_runner.__wrapped__()
        finally:
            get_settings.cache_clear()
        assert made.settings.malloc == library
        assert not has(os.getpid(), library)
        assert made.fork_client is not None
        assert made.fork_client._environment["LD_PRELOAD"].split(":")[0] == library


class TestLoaded:
    @pytest.mark.parametrize("preloaded", [True, False])
    def test_reports_what_is_mapped(self, library: str, preloaded: bool) -> None:
        program = "from worker.processes import allocator; print(allocator.loaded())"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=allocator.preloading(library if preloaded else "system", environment()),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == ("libtestmalloc.so.7" if preloaded else "None")
