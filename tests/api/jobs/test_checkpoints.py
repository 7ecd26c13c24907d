"""One checkpoint over HTTP: its page, its files, and the archive."""

import errno
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from service.api.jobs import archive, checkpoint_files
from service.api.jobs.archive import Archive, Member
from service.errors import CheckpointGoneError
from service.store.database import db_now
from service.store.tables.jobs import JobRow, MetricRow
from tests.api.conftest import Server
from tests.api.factories import START, add_job
from tests.api.jobs.checkpoint_folders import FILES, add, write
from tests.api.jobs.stage_results import prepared, trained
from worker.storage import atomic_dir


class TestDetail:
    def test_numbers_and_files(self, server: Server) -> None:
        url, folder = add(server, best=True)
        job_id = url.split("/")[3]
        with server.database.write() as session:
            values = {"eval_loss": 0.5, "eval_f1": 71.0}
            session.add(
                MetricRow(job_id=job_id, seq=1, kind="eval", step=10, at=START, values=values)
            )
        page = server.client.get(url).json()
        assert (page["step"], page["best"], page["last"]) == (10, True, True)
        assert page["metrics"] == {"eval_loss": 0.5, "eval_f1": 71.0}
        assert sum(file["bytes"] for file in page["files"]) == page["bytes"]
        for file in page["files"]:
            content = (folder / file["name"]).read_bytes()
            assert (file["bytes"], file["sha256"]) == (
                len(content),
                hashlib.sha256(content).hexdigest(),
            )
            answer = server.client.get(file["url"])
            assert (answer.status_code, answer.content) == (200, content)
        assert {file["name"] for file in page["files"]} == {*FILES, "manifest.json"}
        add(server, step=20, job_id=job_id)
        assert server.client.get(url).json()["last"] is False

    def test_unknown_ones(self, server: Server) -> None:
        url, _ = add(server)
        base = url.rpartition("/")[0]
        for path in (f"{base}/11", f"{base}/11/archive", "/v1/jobs/job-1/checkpoints/10"):
            assert server.client.get(path).status_code == 404, path
        answer = server.client.get(f"{url}/files/../../../job.log")
        assert answer.status_code == 404
        assert server.client.get(f"{base}/-1").status_code == 422

    def test_what_was_pruned_is_410(self, server: Server) -> None:
        url, _ = add(server, pruned_at=db_now())
        page = server.client.get(url).json()
        assert (page["files"], page["archive_url"]) == ([], None)
        assert page["pruned_at"] is not None
        for path in ("files/model.safetensors", "archive"):
            answer = server.client.get(f"{url}/{path}")
            assert (answer.status_code, answer.json()["code"]) == (410, "checkpoint_gone")
            assert "save_total_limit" in answer.json()["detail"]

    def test_what_is_not_as_it_was_registered_is_not_shown(self, server: Server) -> None:
        url, folder = add(server)
        (folder / "manifest.json").write_text('{"files": {"/etc/passwd": {}}}')
        assert server.client.get(url).json()["files"] == []
        assert server.client.get(f"{url}/files/manifest.json").status_code == 410


class TestArchive:
    def test_holds_every_file_and_tells_its_length(self, server: Server) -> None:
        url, _ = add(server)
        answer = server.client.get(f"{url}/archive")
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert answer.headers["content-type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            held = {}
            for member in tar.getmembers():
                file = tar.extractfile(member)
                assert file is not None
                held[member.name] = file.read()
        manifest = held.pop("checkpoint-10/manifest.json")
        assert answer.headers["etag"] == f'"{hashlib.sha256(manifest).hexdigest()}"'
        assert held == {f"checkpoint-10/{name}": content for name, content in FILES.items()}

    def test_in_small_parts_and_whole_although_it_is_removed_meanwhile(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "10"
        write(folder)
        files = checkpoint_files.entries(folder, atomic_dir.manifest_sha256(folder))
        whole = checkpoint_files.archive(folder, files)
        atomic_dir.remove(folder)
        parts = list(whole.content())
        assert max(map(len, parts)) <= 1024**2
        assert sum(map(len, parts)) == whole.size

    @pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
    def test_follows_no_link(self, tmp_path: Path, name: str) -> None:
        folder, secret = tmp_path / "10", tmp_path / "secret"
        write(folder)
        digest = atomic_dir.manifest_sha256(folder)
        (folder / name).rename(secret)
        (folder / name).symlink_to(secret)
        with pytest.raises(CheckpointGoneError):
            checkpoint_files.archive(folder, checkpoint_files.entries(folder, digest))

    def test_takes_no_name_that_leads_elsewhere(self, tmp_path: Path) -> None:
        folder = tmp_path / "10"
        write(folder)
        (tmp_path / "secret").write_text("s")
        entry = checkpoint_files.Entry("../secret", 1, "")
        with pytest.raises(CheckpointGoneError):
            checkpoint_files.archive(folder, [entry])

    def test_a_server_with_too_many_open_files_does_not_say_that_they_were_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def open_inside(*_: Any) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        folder = tmp_path / "10"
        write(folder)
        digest = atomic_dir.manifest_sha256(folder)
        files = checkpoint_files.entries(folder, digest)
        for module in (archive, checkpoint_files):
            monkeypatch.setattr(module, "open_inside", open_inside)
        with pytest.raises(OSError, match="Too many"):
            checkpoint_files.archive(folder, files)
        with pytest.raises(OSError, match="Too many"):
            checkpoint_files.entries(folder, digest)

    def test_a_header_for_more_than_eight_gibibytes(self, tmp_path: Path) -> None:
        member = Member("model.safetensors", "model.safetensors", 9 * 1024**3)
        empty = Archive(tmp_path, "model", [], 0)
        header = tarfile.TarInfo.frombuf(empty._header(member), "utf-8", "strict")
        assert header.size == member.bytes


class TestFollowUps:
    """POST …/promote and …/publish; what becomes of the job is in tests/jobs/test_follow_ups.py."""

    def ended(self, server: Server, **columns: Any) -> str:
        job_id = add_job(
            server.database, state="succeeded", stage="publish", ended_at=START, epoch=1, **columns
        )
        results = {"prepare": prepared(server, job_id), "train": trained(server, job_id)}
        with server.database.write() as session:
            session.get_one(JobRow, job_id).results = results
        return job_id

    def test_promote(self, server: Server) -> None:
        url, _ = add(server, job_id=self.ended(server))
        job_url = url.partition("/checkpoints")[0]
        page = server.client.get(job_url).json()
        assert page["actions"] == ["clone", "promote", "publish", "delete"]
        answer = server.client.post(f"{url}/promote")
        assert answer.status_code == 200
        page = answer.json()
        asked = {"action": "promote", "step": 10}
        assert (page["state"], page["stage"], page["follow_up"]) == ("queued", "train", asked)
        assert server.client.post(f"{url}/promote").json() == page
        answer = server.client.post(f"{job_url}/publish", json={"model_id": "org/m"})
        assert (answer.status_code, answer.json()["code"]) == (409, "wrong_state")
        assert server.client.post(f"{url.rpartition('/')[0]}/11/promote").status_code == 404

    def test_publish(self, server: Server) -> None:
        job_url = f"/v1/jobs/{self.ended(server)}"
        page = server.client.post(f"{job_url}/publish", json={"model_id": "org/m"}).json()
        assert (page["state"], page["stage"]) == ("queued", "publish")
        assert page["follow_up"]["hub"]["model_id"] == "org/m"
        assert page["spec"]["hub"] is None

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"model_id": "org/m", "modelid": 1}, "hub.modelid"),
            ({"private": True}, "hub.model_id"),
            ([], "hub"),
        ],
    )
    def test_publish_with_faults(self, server: Server, body: Any, path: str) -> None:
        answer = server.client.post(f"/v1/jobs/{self.ended(server)}/publish", json=body)
        assert answer.status_code == 422
        assert [fault["path"] for fault in answer.json()["errors"]] == [path]
