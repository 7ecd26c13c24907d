"""The client's jobs on a real server, on both databases."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import finetune_client
import pytest
from finetune_client import AsyncClient, Client, types
from sqlalchemy import update

from service.contract.failures import Failure, FailureCode
from service.contract.interactive.predictions import PredictionResult
from service.contract.states import JobState
from service.store.tables.jobs import CheckpointRow, JobRow, MetricRow
from tests.api.conftest import Server
from tests.api.factories import SPEC, START, add_job
from tests.api.jobs import checkpoint_folders
from tests.api.jobs.stage_results import artifact
from tests.client.lossy_proxy import proxy
from tests.support.store.job_rows import finished_job
from tests.support.store.predictions import answered_by_thread
from tests.support.store.previews import register_worker


def end(server: Server, job_id: str) -> None:
    with server.database.write() as session:
        job = session.get_one(JobRow, job_id)
        job.state = JobState.SUCCEEDED
        job.ended_at = job.created_at


class TestLife:
    def test_make_read_list_steer_and_delete(self, finetune: Client) -> None:
        jobs = finetune.jobs
        job = jobs.create(SPEC, name="one", metadata={"team": "search"})
        assert (job.name, job.state, job.spec.metadata) == ("one", "queued", {"team": "search"})
        assert isinstance(job.spec.task, types.QuestionAnsweringSpec)
        clone = jobs.clone(job.id, {"name": None, "priority": 3})
        assert (clone.name, clone.priority, clone.cloned_from) == (None, 3, job.id)
        assert [each.id for each in jobs.list()] == [clone.id, job.id]
        assert [each.id for each in jobs.list(metadata={"team": "search"}, name="one")] == [job.id]
        assert job.pause() is job
        assert job.state == "paused"
        assert job.resume().state == "queued"
        assert clone.cancel().wait(timeout=5).state == "cancelled"
        assert jobs.delete(clone.id).deleted is True
        with pytest.raises(finetune_client.NotFoundError) as missing:
            clone.refresh()
        assert missing.value.code == "job_not_found"
        assert missing.value.request_id

    def test_the_same_by_await(self, server: Server) -> None:
        async def life() -> None:
            async with AsyncClient(server.url, api_key="ft-none") as client:
                job = await client.jobs.create(SPEC, name="one")
                assert [each.id async for each in client.jobs.list()] == [job.id]
                assert (await job.pause()).state == "paused"
                assert (await client.jobs.retrieve(job.id)).state == "paused"
                assert (await job.cancel()).state == "cancelled"
                assert (await job.wait(timeout=5)) is job
                seen = [event.type async for event in job.stream()]
                assert seen == [event.type async for event in client.jobs.events(job.id)] != []
                assert (await client.jobs.delete(job.id)).id == job.id

        asyncio.run(life())


class TestSpecs:
    def test_a_wrong_one_names_its_faults(self, finetune: Client) -> None:
        training = types.TrainingSpec(learning_rate=-1.0)
        with pytest.raises(finetune_client.InvalidSpecError) as refused:
            finetune.jobs.create(SPEC, training=training)
        assert [fault["path"] for fault in refused.value.errors] == ["training.learning_rate"]
        assert "training.learning_rate" in refused.value.message
        found = finetune.jobs.validate(SPEC, training=training)
        assert (found.valid, [fault.path for fault in found.errors]) == (
            False,
            ["training.learning_rate"],
        )

    def test_models_send_only_what_was_set(self, finetune: Client) -> None:
        job = finetune.jobs.create(
            types.JobSpec(
                task="question-answering",
                model=types.ModelSpec(name_or_path="org/model"),
                dataset=types.HubDataset(source="hub", name="org/data"),
                training=types.TrainingSpec(max_steps=7),
            )
        )
        assert job.spec.training is not None
        assert (job.spec.training.max_steps, job.ignored) == (7, [])

    @pytest.mark.parametrize("value", [float("nan"), "\udcff"])
    def test_what_json_cannot_hold_is_refused(self, finetune: Client, value: Any) -> None:
        with pytest.raises(finetune_client.InvalidArgumentError):
            finetune.jobs.create(SPEC, name=value)


class TestPages:
    def test_all_of_many_in_order(self, finetune: Client, server: Server) -> None:
        made = [add_job(server.database) for _ in range(205)]
        assert [each.id for each in finetune.jobs.list()] == made[::-1]

    def test_the_table_is_escaped(self, finetune: Client, server: Server) -> None:
        finetune.jobs.create(SPEC, name="<script>alert(1)</script>")
        html = finetune.jobs.table()._repr_html_()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "<script" not in html
        assert "<script" not in finetune.jobs.retrieve(finetune.jobs.table()[0].id)._repr_html_()


class TestListedJobs:
    def test_can_be_steered(self, finetune: Client) -> None:
        made = finetune.jobs.create(SPEC, name="one")
        (listed,) = finetune.jobs.list()
        assert listed.pause().state == "paused"
        assert listed.state == "queued"
        assert listed.refresh().spec == made.refresh().spec
        clone = listed.clone(name="two", training={"max_steps": 3})
        assert (clone.name, clone.cloned_from) == ("two", made.id)
        assert clone.spec.training is not None
        assert clone.spec.training.max_steps == 3
        assert (
            [event.type for event in listed.events()]
            == [event.type for event in made.events()]
            != []
        )
        assert made.cancel().delete().deleted is True


class TestRefresh:
    def test_keeps_what_only_the_new_job_has(self, finetune: Client) -> None:
        job = finetune.jobs.create(SPEC, training={"logging_steps": 9, "max_steps": 2})
        codes = [warning.code for warning in job.warnings]
        assert codes == ["steps_not_reached"]
        assert [warning.code for warning in job.refresh().warnings] == codes

    def test_brings_fields_that_are_new(self, finetune: Client) -> None:
        job = finetune.jobs.create(SPEC)
        newer = finetune.jobs.retrieve(job.id)
        page = newer.model_dump(warnings=False) | {"colour": "red"}
        job._take(type(job).model_validate(page))
        assert getattr(job, "colour", None) == "red"


class TestFailure:
    def test_is_raised_with_code_and_action(self, finetune: Client, server: Server) -> None:
        failure = Failure.from_code(FailureCode.OUT_OF_MEMORY, "It needs 9 GB.")
        ended = {"state": "failed", "failure": failure.model_dump(mode="json")}
        job_id = add_job(server.database, **ended, ended_at=START)
        with pytest.raises(finetune_client.JobFailedError) as failed:
            finetune.jobs.retrieve(job_id).wait().raise_for_failure()
        assert (failed.value.id, failed.value.code) == (job_id, "out_of_memory")
        assert failed.value.action == failure.action
        assert failure.message in str(failed.value)

    def test_no_failure_is_the_job(self, finetune: Client) -> None:
        job = finetune.jobs.create(SPEC)
        assert job.raise_for_failure() is job
        with pytest.raises(finetune_client.JobFailedError):
            job.cancel().raise_for_failure()


class TestResults:
    def test_metrics_are_a_row_for_each_step(self, finetune: Client, server: Server) -> None:
        job_id = finished_job(server.database)
        points = (
            ("train", 10, {"loss": 2.0, "learning_rate": 1e-5}),
            ("system", 10, {"gpu": 1.0}),
            ("eval", 10, {"eval_f1": 71.123456789}),
            ("train", 20, {"loss": "nan"}),
        )
        with server.database.write() as session:
            session.add_all(
                MetricRow(job_id=job_id, seq=n, kind=kind, step=step, at=START, values=values)
                for n, (kind, step, values) in enumerate(points, 1)
            )
        job = finetune.jobs.retrieve(job_id)
        table = job.metrics_table()
        assert list(table.columns) == ["step", "epoch", "loss", "learning_rate", "eval_f1"]
        assert str(table).splitlines()[1:] == [
            "10           2     1e-05          71.1235",
            "20           nan",
        ]
        assert "<td>71.1235</td>" in table._repr_html_()
        assert [row["step"] for row in job.metrics_table(most=1)] == [20]

        async def rows() -> list[dict[str, Any]]:
            async with AsyncClient(server.url, api_key="ft-none") as client:
                assert [each.id for each in await client.jobs.table()] == [job_id]
                return await client.jobs.metrics_table(job_id)

        assert asyncio.run(rows()) == table

    def test_a_checkpoint(self, finetune: Client, server: Server, tmp_path: Path) -> None:
        url, folder = checkpoint_folders.add(server)
        job = finetune.jobs.retrieve(url.split("/")[3])
        (listed,) = finetune_client.Table(job.checkpoints())
        assert listed.step == 10
        assert job.checkpoint(10).archive_url == f"{url}/archive"
        for path in job.download(tmp_path / "to", step=10):
            name = path.relative_to(tmp_path / "to")
            assert path.read_bytes() == (folder / name).read_bytes()
        put_checkpoint = update(CheckpointRow).values(pruned_at=START)
        with server.database.write() as session:
            session.execute(put_checkpoint)
        with pytest.raises(finetune_client.GoneError):
            job.download(tmp_path / "again", step=10)

    def test_predictions(self, finetune: Client, server: Server) -> None:
        register_worker(server.database)
        job = finetune.jobs.retrieve(finished_job(server.database))
        rows = [{"question": "Who?", "context": "Ann."}]
        with answered_by_thread(server.database, PredictionResult(answers=[{"prediction": "Ann"}])):
            answers = job.predict(rows).answers
        assert answers == [{"prediction": "Ann"}]
        failure = Failure.from_code(FailureCode.MISSING_COLUMN, "no column")
        with (
            answered_by_thread(server.database, failure),
            pytest.raises(finetune_client.PredictionFailedError, match="no column") as failed,
        ):
            job.predict(rows)
        advice = "Correct the rows, and ask again."
        assert (failed.value.code, failed.value.action) == ("missing_column", advice)

    def test_a_prediction_without_a_worker(self, finetune: Client, server: Server) -> None:
        job = finetune.jobs.retrieve(finished_job(server.database))
        with pytest.raises(finetune_client.WaitTimeoutError, match="No live worker"):
            job.predict([{"question": "Who?", "context": "Ann."}], timeout=0.1)


class TestLostAnswers:
    def test_make_one_job(self, server: Server, fast_retries: None) -> None:
        with proxy(server.url, lose=2) as lossy, Client(lossy.url, "ft-none") as client:
            job = client.jobs.create(SPEC)
            assert lossy.connections == 3
        found = server.client.get("/v1/jobs").json()["data"]
        assert [each["id"] for each in found] == [job.id]

    def test_are_not_asked_for_again_where_that_may_harm(
        self, server: Server, fast_retries: None
    ) -> None:
        job_id = add_job(server.database, state=JobState.FAILED)
        with (
            proxy(server.url, lose=1) as lossy,
            Client(lossy.url, "ft-none") as client,
            pytest.raises(finetune_client.APIConnectionError),
        ):
            client.jobs.retry(job_id)
        assert lossy.connections == 1

    def test_are_given_up_after_max_retries(self, server: Server, fast_retries: None) -> None:
        with (
            proxy(server.url, lose=9) as lossy,
            Client(lossy.url, "ft-none", max_retries=1) as client,
            pytest.raises(finetune_client.APIConnectionError),
        ):
            client.jobs.create(SPEC)
        assert lossy.connections == 2


class TestWait:
    def test_ends_after_its_timeout(self, finetune: Client) -> None:
        job = finetune.jobs.create(SPEC)
        with pytest.raises(finetune_client.WaitTimeoutError, match="it is queued"):
            job.wait(timeout=0.05, poll=0.01)

    def test_shows_how_far_it_is(
        self, finetune: Client, server: Server, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job = finetune.jobs.create(SPEC, name="bar")
        end(server, job.id)
        assert job.wait(progress=True).state == "succeeded"
        assert "bar: succeeded" in capsys.readouterr().err


class TestDownload:
    CONTENT = bytes(range(256)) * 4096

    def test_is_checked_continued_and_kept(
        self, finetune: Client, server: Server, tmp_path: Path, fast_retries: None
    ) -> None:
        job_id = add_job(server.database, state=JobState.SUCCEEDED)
        artifact(server, job_id, "model/a.bin", "a.bin", self.CONTENT)
        artifact(server, job_id, "card.md", "card.md", b"text")
        folder = tmp_path / "to"
        with (
            proxy(server.url, lose=3, after_bytes=400_000) as lossy,
            Client(lossy.url, "ft-none", max_retries=3) as client,
        ):
            # The list of artifacts and the card, which come first, are shorter than that.
            paths = client.jobs.download(job_id, folder)
        assert {path.relative_to(folder).as_posix() for path in paths} == {"model/a.bin", "card.md"}
        assert (folder / "model/a.bin").read_bytes() == self.CONTENT
        before = (folder / "model/a.bin").stat().st_mtime_ns
        finetune.jobs.retrieve(job_id).download(folder)
        assert (folder / "model/a.bin").stat().st_mtime_ns == before
        found = {path.name for path in folder.rglob("*") if path.is_file()}
        assert found == {"a.bin", "card.md"}

    def test_a_large_one_outlasts_more_connections_than_retries(
        self, server: Server, tmp_path: Path, fast_retries: None
    ) -> None:
        job_id = add_job(server.database, state=JobState.SUCCEEDED)
        artifact(server, job_id, "a.bin", "a.bin", self.CONTENT)
        with (
            proxy(server.url, lose=9, after_bytes=120_000) as lossy,
            Client(lossy.url, "ft-none", max_retries=1) as client,
        ):
            client.jobs.download(job_id, tmp_path)
            assert lossy.connections > 5
        assert (tmp_path / "a.bin").read_bytes() == self.CONTENT

    def test_many_at_once_of_the_same_files(
        self, finetune: Client, server: Server, tmp_path: Path
    ) -> None:
        job_id = add_job(server.database, state=JobState.SUCCEEDED)
        for name in ("a.bin", "model/b.bin"):
            artifact(server, job_id, name, name, self.CONTENT)
        to = tmp_path / "to"
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: finetune.jobs.download(job_id, to), range(6)))
        assert all(paths == found[0] for paths in found)
        files = {path for path in to.rglob("*") if path.is_file()}
        assert files == {to / "a.bin", to / "model/b.bin"}
        assert all(path.read_bytes() == self.CONTENT for path in files)

    def test_by_await(self, server: Server, tmp_path: Path, fast_retries: None) -> None:
        job_id = add_job(server.database, state=JobState.SUCCEEDED)
        artifact(server, job_id, "a.bin", "a.bin", self.CONTENT)

        async def download(url: str) -> None:
            async with AsyncClient(url, api_key="ft-none") as client:
                job = await client.jobs.retrieve(job_id)
                await job.download(tmp_path)

        with proxy(server.url, lose=4, after_bytes=400_000) as lossy:
            asyncio.run(download(lossy.url))
        assert (tmp_path / "a.bin").read_bytes() == self.CONTENT

    def test_one_that_was_removed_leaves_nothing(
        self, finetune: Client, server: Server, tmp_path: Path
    ) -> None:
        job_id = add_job(server.database, state=JobState.SUCCEEDED)
        artifact(server, job_id, "a.bin", "a.bin", b"text").unlink()
        with pytest.raises(finetune_client.APIError):
            finetune.jobs.download(job_id, tmp_path / "to")
        assert list((tmp_path / "to").iterdir()) == []

    def test_another_content_than_announced_leaves_nothing(
        self, finetune: Client, server: Server, tmp_path: Path
    ) -> None:
        job_id = add_job(server.database, state=JobState.SUCCEEDED)
        artifact(server, job_id, "a.bin", "a.bin", b"right").write_bytes(b"wrong")
        with pytest.raises(finetune_client.DamagedDownloadError):
            finetune.jobs.download(job_id, tmp_path / "to")
        assert list((tmp_path / "to").iterdir()) == []


class TestFiles:
    @pytest.mark.usefixtures("processes")
    def test_one_that_expires_with_a_name_of_any_script(
        self, finetune: Client, tmp_path: Path
    ) -> None:
        source = tmp_path / "Sätze 1 文.jsonl"
        source.write_text('{"text": "good", "label": "a"}\n' * 3)
        made = finetune.files.create(source, expires_after=3600)
        assert made.filename == source.name
        assert (made.expires_at or 0) - made.created_at == 3600
        found = finetune.files.check(
            made.id, "text-classification", columns={"text": "text", "label": "label"}
        )
        assert (found.rows_read, found.rows_bad, found.complete) == (3, 0, True)
        with pytest.raises(finetune_client.InvalidRequestError):
            finetune.files.create(source, expires_after=1)

    def test_upload_list_read_and_delete(
        self, finetune: Client, server: Server, tmp_path: Path
    ) -> None:
        source = tmp_path / "rows.jsonl"
        source.write_bytes(b'{"text": "good"}\n' * 1000)
        counted: list[int] = []
        made = finetune.files.create(source, progress=counted.append)
        assert (made.filename, made.bytes, sum(counted)) == ("rows.jsonl", 17000, 17000)
        assert made.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
        assert [each.id for each in finetune.files.list()] == [made.id]
        copy = finetune.files.content(made.id, tmp_path / "copy")
        assert copy.read_bytes() == source.read_bytes()
        assert finetune.files.delete(made.id).deleted is True
        with pytest.raises(finetune_client.NotFoundError):
            finetune.files.retrieve(made.id)
