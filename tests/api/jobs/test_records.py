"""What a job has written: events, metrics, checkpoints, logs and artifacts."""

import os

import pytest

from service.store.tables.jobs import EventRow, MetricRow
from tests.api.conftest import Server
from tests.api.factories import START, add_job
from tests.api.jobs.stage_results import artifact, log_of
from tests.support.store.databases import on_both
from tests.support.store.job_rows import add_checkpoint


@on_both
class TestHistory:
    def test_events_in_pages(self, server: Server) -> None:
        job_id = add_job(server.database)
        with server.database.write() as session:
            session.add_all(
                EventRow(job_id=job_id, seq=n, at=START, type="notice", epoch=1, data={"n": n})
                for n in range(1, 6)
            )
        url = f"/v1/jobs/{job_id}/events"
        page = server.client.get(url, params={"limit": 3}).json()
        assert ([event["seq"] for event in page["data"]], page["has_more"]) == ([1, 2, 3], True)
        page = server.client.get(url, params={"after": 3}).json()
        assert ([event["seq"] for event in page["data"]], page["has_more"]) == ([4, 5], False)
        assert page["data"][0]["data"] == {"n": 4}
        assert page["data"][0]["at"] == "2026-01-01T00:00:00Z"

    def test_metrics_by_kind_with_numbers_that_json_lacks(self, server: Server) -> None:
        job_id = add_job(server.database)
        with server.database.write() as session:
            for seq, kind, step in [(1, "eval", 0), (2, "train", 1), (3, "eval", 1)]:
                session.add(
                    MetricRow(
                        job_id=job_id,
                        seq=seq,
                        kind=kind,
                        step=step,
                        progress_epoch=0.5,
                        at=START,
                        values={"loss": "nan", "f1": 1.5},
                    )
                )
        url = f"/v1/jobs/{job_id}/metrics"
        points = server.client.get(url, params={"kind": "eval"}).json()["data"]
        assert [point["seq"] for point in points] == [1, 3]
        assert points[0]["values"] == {"loss": "nan", "f1": 1.5}

    def test_checkpoints(self, server: Server) -> None:
        job_id = add_job(server.database)
        add_checkpoint(server.database, job_id, 10, bytes=7 * 10**9, best=True, metric=0.5)
        (point,) = server.client.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
        assert (point["step"], point["bytes"], point["best"]) == (10, 7 * 10**9, True)
        assert "path" not in point


class TestLogs:
    def test_by_offset_without_cutting_a_character(self, server: Server) -> None:
        job_id = add_job(server.database, state="running")
        url = f"/v1/jobs/{job_id}/logs"
        empty = server.client.get(url).json()
        assert empty == {"content": "", "offset": 0, "next_offset": 0, "size": 0, "eof": False}
        path = log_of(server, job_id)
        text = "a" * 15 + "é" + "😀" * 20
        path.write_bytes(text.encode() + "😀".encode()[:2])
        offset, got = 0, ""
        while True:
            part = server.client.get(url, params={"offset": offset, "limit": 16}).json()
            if not part["content"]:
                break
            got += part["content"]
            offset = part["next_offset"]
        assert (got, offset, part["eof"]) == (text, len(text.encode()), False)
        assert server.client.get(url, params={"offset": 10**15}).json()["content"] == ""

    def test_eof_when_the_job_has_ended(self, server: Server) -> None:
        job_id = add_job(server.database, state="failed", ended_at=START)
        path = log_of(server, job_id)
        path.write_bytes(b"end\xf0\x9f")
        part = server.client.get(f"/v1/jobs/{job_id}/logs").json()
        assert (part["content"], part["next_offset"], part["eof"]) == ("end\ufffd", 5, True)

    def test_a_link_is_not_followed(self, server: Server) -> None:
        job_id = add_job(server.database, state="failed", ended_at=START)
        path = log_of(server, job_id)
        path.symlink_to("/etc/passwd")
        part = server.client.get(f"/v1/jobs/{job_id}/logs").json()
        assert (part["content"], part["size"]) == ("", 0)

    def test_a_pipe_does_not_block(self, server: Server) -> None:
        job_id = add_job(server.database, state="failed", ended_at=START)
        path = log_of(server, job_id)
        os.mkfifo(path)
        assert server.client.get(f"/v1/jobs/{job_id}/logs").json()["content"] == ""


class TestArtifacts:
    def test_listed_and_streamed(self, server: Server) -> None:
        job_id = add_job(server.database)
        content = b"w" * 5_000_000
        artifact(server, job_id, "model/weights ü.bin", "attempts/1/output/w.bin", content)
        (listed,) = server.client.get(f"/v1/jobs/{job_id}/artifacts").json()["data"]
        assert server.client.get(f"/v1/jobs/{job_id}").json()["result"] is None
        answer = server.client.get(listed["url"])
        assert answer.content == content
        assert answer.headers["etag"] == f'"{listed["sha256"]}"'
        assert answer.headers["content-length"] == str(len(content))
        part = server.client.get(listed["url"], headers={"Range": "bytes=-5"})
        assert (part.status_code, part.content) == (206, b"wwwww")

    @pytest.mark.parametrize(
        "path", ["../job.log", "%2e%2e/job.log", "..%2fjob.log", "/etc/passwd", "job.log", ""]
    )
    def test_only_what_has_a_row(self, server: Server, path: str) -> None:
        job_id = add_job(server.database)
        log_of(server, job_id).write_text("secret")
        answer = server.client.get(f"/v1/jobs/{job_id}/artifacts/{path}")
        assert answer.status_code == 404

    def test_a_link_out_of_the_workspace_is_not_followed(self, server: Server) -> None:
        job_id = add_job(server.database)
        link = server.settings.workspace(job_id) / "link"
        link.parent.mkdir(parents=True)
        link.symlink_to("/etc/passwd")
        artifact(server, job_id, "link", "link", b"x")
        assert server.client.get(f"/v1/jobs/{job_id}/artifacts/link").status_code == 404

    def test_a_file_that_was_removed(self, server: Server) -> None:
        job_id = add_job(server.database)
        artifact(server, job_id, "a", "a", b"x")
        (server.settings.workspace(job_id) / "a").unlink()
        answer = server.client.get(f"/v1/jobs/{job_id}/artifacts/a")
        assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")
