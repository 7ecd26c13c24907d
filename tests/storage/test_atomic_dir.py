"""worker.storage.atomic_dir: a directory exists complete or not at all."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker.storage import atomic_dir


def write(folder: Path, **files: bytes) -> Path:
    with atomic_dir.writing(folder) as partial:
        for name, content in files.items():
            (partial / name).write_bytes(content)
    return folder


class TestWriting:
    def test_the_manifest_lists_size_and_hash_of_every_file(self, tmp_path: Path) -> None:
        with atomic_dir.writing(tmp_path / "10") as partial:
            assert partial == tmp_path / "10.tmp"
            (partial / "rng").mkdir()
            (partial / "rng" / "0.json").write_bytes(b"abc")
        manifest = json.loads((tmp_path / "10" / atomic_dir.MANIFEST).read_text())
        assert manifest["files"] == {
            "rng/0.json": {
                "size": 3,
                "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            }
        }
        assert [path.name for path in tmp_path.iterdir()] == ["10"]

    def test_a_leftover_and_an_unregistered_target_are_replaced(self, tmp_path: Path) -> None:
        write(tmp_path / "10", old=b"old")
        (tmp_path / "10.tmp").mkdir()
        (tmp_path / "10.tmp" / "half").write_bytes(b"half")
        write(tmp_path / "10", new=b"new")
        assert {path.name for path in (tmp_path / "10").iterdir()} == {"new", "manifest.json"}
        assert atomic_dir.verify(tmp_path / "10")

    def test_an_error_leaves_nothing_and_keeps_the_existing_target(self, tmp_path: Path) -> None:
        write(tmp_path / "10", old=b"old")

        def fill_the_disk() -> None:
            with atomic_dir.writing(tmp_path / "10") as partial:
                (partial / "half").write_bytes(b"half")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(OSError, match="No space left"):
            fill_the_disk()
        assert [path.name for path in tmp_path.iterdir()] == ["10"]
        assert atomic_dir.verify(tmp_path / "10")

    def test_every_file_is_synced_before_the_rename_and_the_parent_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        fsync, rename = os.fsync, Path.rename

        def record_fsync(descriptor: int) -> None:
            order.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            fsync(descriptor)

        def record_rename(path: Path, target: Path) -> Path:
            order.append("rename")
            return rename(path, target)

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(Path, "rename", record_rename)
        write(tmp_path / "10", a=b"a")
        before, after = order[: order.index("rename")], order[order.index("rename") + 1 :]
        assert before[0] == "a"
        assert {"a", "manifest.json", "10.tmp"} == set(before)
        assert after == [tmp_path.name]

    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        write(tmp_path / "10", a=b"a", b=b"b")
        # Not equal: something of another test may be collected and closed meanwhile.
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    @pytest.mark.usefixtures("processes")
    def test_a_writer_killed_at_any_moment_leaves_no_invalid_directory(
        self, tmp_path: Path
    ) -> None:
        """SIGKILL a process that writes checkpoint after checkpoint, at random moments."""
        write(tmp_path / "0", state=b"first")
        script = (
            "import sys, pathlib, itertools\n"
            "from worker.storage import atomic_dir\n"
            "root, first = pathlib.Path(sys.argv[1]), int(sys.argv[2])\n"
            "print('ready', flush=True)\n"
            "for step in itertools.count(first):\n"
            "    with atomic_dir.writing(root / str(step)) as partial:\n"
            "        for name in 'abcd':\n"
            "            (partial / name).write_bytes(name.encode() * 300_000)\n"
        )
        moments = random.Random(7)
        for first in range(1000, 13000, 1000):
            writer = subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path), str(first)], stdout=subprocess.PIPE
            )
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
            finished = [path for path in tmp_path.iterdir() if path.suffix != ".tmp"]
            assert all(atomic_dir.verify(path) for path in finished)
            assert atomic_dir.verify(tmp_path / "0")


class TestVerify:
    @pytest.mark.parametrize("content", [b"weighty", b"weight", None])
    def test_a_flipped_bit_a_truncated_and_a_missing_file(
        self, tmp_path: Path, content: bytes | None
    ) -> None:
        folder = write(tmp_path / "10", model=b"weights")
        assert atomic_dir.verify(folder)
        (folder / "model").unlink()
        if content is not None:
            (folder / "model").write_bytes(content)
        assert not atomic_dir.verify(folder)

    @pytest.mark.parametrize(
        "manifest",
        [b"", b"{", b"[]", b'{"files": {}}', b'{"version": 1, "files": {"model": 3}}'],
    )
    def test_a_broken_manifest(self, tmp_path: Path, manifest: bytes) -> None:
        folder = write(tmp_path / "10", model=b"weights")
        (folder / atomic_dir.MANIFEST).write_bytes(manifest)
        assert not atomic_dir.verify(folder)
        assert atomic_dir.why_unusable(folder) == "its manifest does not match its files"

    def test_a_manifest_of_another_version(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "10", model=b"weights")
        manifest = json.loads((folder / atomic_dir.MANIFEST).read_text())
        assert manifest["version"] == 1
        (folder / atomic_dir.MANIFEST).write_text(json.dumps(manifest | {"version": 2}))
        assert not atomic_dir.verify(folder)
        assert atomic_dir.why_unusable(folder) == (
            "its manifest has version 2, and this release reads only version 1: use the release "
            "that wrote it, or a newer one"
        )

    def test_only_one_file(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "10", model=b"weights", progress=b"3")
        (folder / "model").write_bytes(b"weighty")
        assert not atomic_dir.verify(folder)
        assert not atomic_dir.verify(folder, only="model")
        assert atomic_dir.verify(folder, only="progress")

    def test_no_directory(self, tmp_path: Path) -> None:
        assert not atomic_dir.verify(tmp_path / "10")


class TestRemove:
    def test_it_is_removed_and_a_second_removal_is_not_an_error(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "10", model=b"weights")
        atomic_dir.remove(folder)
        atomic_dir.remove(folder)
        assert not folder.exists()

    def test_what_an_interrupted_removal_leaves_does_not_verify(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The manifest is durably removed before the first of its files."""
        folder = write(tmp_path / "10", model=b"weights")
        synced: list[list[str]] = []
        fsync = os.fsync

        def record_fsync(descriptor: int) -> None:
            synced.append([path.name for path in folder.iterdir()])
            fsync(descriptor)

        def interrupted(_folder: Path) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            atomic_dir.remove(folder)
        assert synced == [["model"]]
        assert not atomic_dir.verify(folder)


class TestSizes:
    def test_all_files_with_the_manifest(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "10", model=b"weights")
        size = (folder / atomic_dir.MANIFEST).stat().st_size
        assert atomic_dir.total_bytes(folder) == 7 + size

    def test_the_manifest_hash_names_the_content(self, tmp_path: Path) -> None:
        one, two = write(tmp_path / "1", model=b"same"), write(tmp_path / "2", model=b"same")
        other = write(tmp_path / "3", model=b"other")
        assert atomic_dir.manifest_sha256(one) == atomic_dir.manifest_sha256(two)
        assert atomic_dir.manifest_sha256(one) != atomic_dir.manifest_sha256(other)


@pytest.mark.usefixtures("processes")
def test_it_imports_no_torch() -> None:
    code = "import sys, worker.storage.atomic_dir; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
