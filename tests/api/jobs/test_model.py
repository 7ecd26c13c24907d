"""GET /v1/jobs/{id}/model.tar."""

import io
import socket
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.jobs import removal
from service.store.tables.jobs import JobRow
from tests.api.conftest import Server, code
from tests.api.factories import START, add_job, spec
from tests.api.jobs.stage_results import artifact
from tests.support.servers.services import wait_until

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 2_500_000,
    "onnx/" + "deep/" * 30 + "empty": b"",
}
OUTPUT = "attempts/2/output"


def add(server: Server, **columns: Any) -> str:
    """An ended job with a model, its card and a file that is not part of it."""
    results = {"train": {"output_dir": OUTPUT}}
    known = {"state": "succeeded", "stage": "publish", "ended_at": START, "results": results}
    job_id = add_job(server.database, **known | columns)
    for name, content in FILES.items():
        artifact(server, job_id, f"model/{name}", f"{OUTPUT}/{name}", content)
    artifact(server, job_id, "model/README.md", "attempts/3/README.md", b"card")
    artifact(server, job_id, "predictions.json", "attempts/2/predictions.json", b"{}")
    return job_id


def url(job_id: str) -> str:
    return f"/v1/jobs/{job_id}/model.tar"


def open_files(server: Server, job_id: str) -> list[str]:
    """Of the job's workspace; the server runs in this process."""
    workspace = str(server.settings.workspace(job_id).resolve())
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return [path for path in found if path.startswith(workspace)]


class TestModel:
    def test_holds_the_model_and_nothing_else(self, server: Server) -> None:
        job_id = add(server)
        answer = server.client.get(url(job_id))
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert answer.headers["content-type"] == "application/x-tar"
        assert f'filename="{job_id}.tar"' in answer.headers["content-disposition"]
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            members = tar.getmembers()
            held = {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]
        expected = {"README.md": b"card", **FILES}
        assert held == {f"{job_id}/{name}": content for name, content in expected.items()}
        assert list(held) == sorted(held)
        assert {member.mtime for member in members} == {int(START.timestamp())}

    def test_the_same_model_is_the_same_bytes(self, server: Server) -> None:
        job_id = add(server)
        first, again = server.client.get(url(job_id)), server.client.get(url(job_id))
        assert first.content == again.content
        assert first.headers["etag"] == again.headers["etag"]
        known = {"If-None-Match": first.headers["etag"]}
        assert server.client.get(url(job_id), headers=known).status_code == 304
        artifact(server, job_id, "model/config.json", f"{OUTPUT}/config.json", b"[]")
        changed = server.client.get(url(job_id), headers=known)
        assert (changed.status_code, changed.headers["etag"] != known["If-None-Match"]) == (
            200,
            True,
        )

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({"state": "running", "results": {}}, "it is running; `finetune watch"),
            ({"state": "failed", "results": {}, "ended_at": START}, "it failed before"),
            ({"state": "cancelled", "results": {}, "ended_at": START}, "it was cancelled before"),
            (
                {
                    "spec": spec(
                        mode="predict", dataset={"source": "hub", "name": "o/d", "test": "t"}
                    )
                }
                | {"results": {"train": {"output_dir": None}}},
                "it does not train",
            ),
        ],
    )
    def test_none_yet(self, server: Server, columns: dict[str, Any], words: str) -> None:
        answer = server.client.get(url(add_job(server.database, **columns)))
        assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")
        assert words in answer.json()["detail"]

    def test_an_unknown_job(self, server: Server) -> None:
        assert code(server.client.get(url("job-1"))) == (404, "job_not_found")

    def test_removed_to_make_room(self, server: Server) -> None:
        answer = server.client.get(url(add(server, workspace_pruned_at=START)))
        assert (answer.status_code, answer.json()["code"]) == (410, "artifact_gone")

    def test_never_a_mix_with_a_promoted_checkpoint(self, server: Server) -> None:
        follow_up = {"action": "promote", "step": 10}
        job_id = add(server, state="running", stage="train", follow_up=follow_up, ended_at=None)
        assert server.client.get(url(job_id)).status_code == 200  # the earlier model
        artifact(server, job_id, "model/config.json", "attempts/4/output/config.json", b"[]")
        assert code(server.client.get(url(job_id))) == (409, "wrong_state")
        with server.database.write() as session:
            row = session.get_one(JobRow, job_id)
            row.follow_up, row.results = None, {"train": {"output_dir": "attempts/4/output"}}
        answer = server.client.get(url(job_id))
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            assert tar.getnames() == [f"{job_id}/README.md", f"{job_id}/config.json"]

    @pytest.mark.parametrize("harm", ["link", "folder link", "other size", "missing"])
    def test_follows_no_link_and_sends_no_other_file(self, server: Server, harm: str) -> None:
        job_id = add(server)
        folder = server.settings.workspace(job_id) / OUTPUT
        file = folder / "config.json"
        secret = server.settings.home / "secret"
        secret.write_bytes(b"{}")
        if harm == "folder link":
            folder.rename(folder.with_name("elsewhere"))
            folder.symlink_to(folder.with_name("elsewhere"))
        else:
            file.unlink()
        if harm == "link":
            file.symlink_to(secret)
        elif harm == "other size":
            file.write_bytes(b"{     }")
        assert code(server.client.get(url(job_id))) == (410, "artifact_gone")
        assert open_files(server, job_id) == []


class TestStream:
    def test_whole_although_the_files_are_removed_meanwhile(self, server: Server) -> None:
        job_id = add(server)
        whole = server.client.get(url(job_id)).content
        with server.client.stream("GET", url(job_id)) as answer:
            pieces = answer.iter_bytes(4096)
            got = next(pieces)
            removal.remove_tree(server.settings.workspace(job_id))
            got += b"".join(pieces)
        assert got == whole
        assert server.client.get(url(job_id)).status_code == 410

    def test_a_client_that_disconnects_leaves_nothing_open(self, server: Server) -> None:
        job_id = add(server)
        large = b"w" * 30_000_000
        artifact(server, job_id, "model/model.safetensors", f"{OUTPUT}/model.safetensors", large)
        address = urlsplit(server.url)
        assert address.hostname is not None
        for read in (0, 1000):
            with socket.create_connection((address.hostname, address.port or 80)) as connection:
                connection.sendall(
                    f"GET {url(job_id)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                )
                connection.recv(read + 1)
                assert open_files(server, job_id)
            wait_until(lambda: not open_files(server, job_id), 10, "the files to be closed")
        assert server.client.get(url(job_id)).status_code == 200
