"""A project with one of everything, and those who ask for it."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.contract.roles import Permission, Role
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.files import files, uploads
from service.store.interactive import predictions, previews
from service.store.jobs import idempotency
from service.store.projects import keys, projects, secrets
from service.store.projects.keys import Grant
from service.store.scope import Scope
from service.store.tables.base import Base
from service.store.tables.interactive import PredictionRow, PreviewRow
from service.store.tables.jobs import ArtifactRow, CheckpointRow, EventRow, MetricRow
from service.store.tables.projects import ApiKeyRow
from service.store.tables.searches import SearchRow
from service.store.tables.webhooks import DeliveryRow, WebhookRow
from service.store.webhooks import outbox
from tests.api.factories import START, add_job, spec
from tests.support.store.job_rows import put
from tests.support.store.searches import add_search, add_trial
from worker.storage import atomic_dir

SECRET: Final = "ownersecret"
"""Part of every name and text that the owner's project has."""
Names = dict[str, str]


@dataclass
class World:
    database: Database
    settings: Settings
    callers: dict[str, str | None] = field(default_factory=dict)
    """Who asks → the key that they send."""
    owner: Names = field(default_factory=dict)
    """What the rows of the matrix call by `$name`."""
    _made: int = 0
    _previews: Names = field(default_factory=dict)
    _predictions: Names = field(default_factory=dict)
    _uploads: Names = field(default_factory=dict)

    def build(self) -> "World":
        with self.database.write() as session:
            owner = projects.create(session, f"{SECRET}-project", {}).id
            stranger = projects.create(session, "stranger", {}).id
        self.owner = self.objects(owner)
        self.objects(stranger, secret="strangers")
        grants = {
            "admin": Grant(owner, Role.ADMIN),
            "member": Grant(owner, Role.MEMBER),
            "viewer": Grant(owner, Role.VIEWER),
            "files only": Grant(owner, Role.MEMBER, scopes=[Permission.FILES_READ]),
            "stranger": Grant(stranger, Role.ADMIN),
            "operator": Grant(),
            "revoked": Grant(owner, Role.ADMIN),
            "expired": Grant(owner, Role.ADMIN),
        }
        for who, grant in grants.items():
            self.callers[who] = self._key(f"{who} caller", grant)[1]
        self.callers["no key"] = None
        with self.database.write() as session:
            for name, column in (("revoked", "revoked_at"), ("expired", "expires_at")):
                statement = update(ApiKeyRow).where(ApiKeyRow.name == f"{name} caller")
                session.execute(statement.values({column: db_now(-1)}))
        return self

    def objects(self, project: str, secret: str = SECRET) -> Names:
        """One of everything in the project; called again for routes that use things up."""
        self._made += 1
        mark = f"{secret}{self._made}"
        with self.database.write() as session:
            name = projects.get(session, Scope(project), project).name
            member = projects.add_member(session, project, f"{mark}-person", Role.MEMBER).id
        key = self._key(f"{mark}-key", Grant(project, Role.VIEWER))[0]
        file = self._file(project, f"{mark}-rows.jsonl")
        done = self._done(project, mark, file)
        jobs = {
            state: add_job(
                self.database,
                project_id=project,
                name=f"{mark}-{state}",
                state=state,
                spec=_spec(mark, file),
            )
            for state in ("queued", "paused", "failed", "cancelled")
        }
        search = self._search(project, mark, file)
        running = self._running_search(project, mark)
        put(self.database, jobs["failed"], ended_at=START)
        put(self.database, jobs["cancelled"], ended_at=START)
        with self.database.write() as session:
            idempotency.remember(session, project, f"{mark}-once", "0" * 64, done)
            secrets.put(session, project, f"{mark}-secret", lambda: "sealed")
            webhook, delivery = _webhook(project, mark)
            of_spec = _of_spec(project, mark, done)
            session.add_all([webhook, delivery, of_spec])
            # One for all calls: of a project only the newest are kept.
            if project not in self._previews:
                row = _preview(project, mark)
                session.add(row)
                self._previews[project] = row.id
                answered = _prediction(project, mark)
                session.add(answered)
                self._predictions[project] = answered.id
                self._uploads[project] = _upload(session, project, mark)
        return {
            "done": done,
            **jobs,
            "file": file,
            "free_file": self._file(project, f"{mark}-free.jsonl"),
            "filename": f"{mark}-rows.jsonl",
            "job_name": f"{mark}-done",
            "label": f"{mark}-label",
            "once": f"{mark}-once",
            "key": key,
            "member": member,
            "member_name": f"{mark}-person",
            "prediction": self._predictions[project],
            "preview": self._previews[project],
            "project": project,
            "upload": self._uploads[project],
            "search": search,
            "running_search": running,
            "search_name": f"{mark}-search",
            "secret_name": f"{mark}-secret",
            "webhook": webhook.id,
            "delivery": delivery.id,
            "of_spec": of_spec.id,
            "project_name": name,
        }

    def missing(self) -> Names:
        """Names of nothing, as near to the owner's as can be: they sort and look alike."""
        return {name: _twin(text) for name, text in self.owner.items()}

    def rows(self) -> dict[str, list[Any]]:
        """Every row of the database, but for when keys were used, and who was refused."""
        found: dict[str, list[Any]] = {}
        with self.database.read() as session:
            for table in Base.metadata.sorted_tables:
                if table.name == "audit_log":
                    continue
                columns = [column for column in table.columns if column.name != "last_used_at"]
                found[table.name] = sorted(map(repr, session.execute(select(*columns))))
        return found

    # ---- parts ----------------------------------------------------------------------------------

    def _key(self, name: str, grant: Grant) -> tuple[str, str]:
        with self.database.write() as session:
            row, key = keys.create(session, name, grant)
            return row.id, key

    def _file(self, project: str, name: str) -> str:
        content, file_id = f"{name}\n".encode(), files.new_id()
        self.settings.files_dir.mkdir(parents=True, exist_ok=True)
        (self.settings.files_dir / file_id).write_bytes(content)
        with self.database.write() as session:
            files.add(
                session,
                project,
                file_id=file_id,
                filename=name,
                purpose="fine-tune",
                size=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
            )
        return file_id

    def _done(self, project: str, mark: str, file: str) -> str:
        """A job that succeeded, with a checkpoint, a model, a log and a history."""
        job_id = add_job(
            self.database,
            project_id=project,
            name=f"{mark}-done",
            state="succeeded",
            stage="publish",
            epoch=1,
            ended_at=START,
            spec=_spec(mark, file),
            metadata_={"team": f"{mark}-label"},
            event_seq=1,
            metric_seq=1,
        )
        workspace = self.settings.workspace(job_id)
        folder = workspace / "attempts/1/checkpoints/10"
        with atomic_dir.writing(folder) as partial:
            (partial / "weights").write_text(mark)
        (workspace / "job.log").write_text(f"{mark} log\n")
        output = "attempts/1/output"
        (workspace / output).mkdir()
        (workspace / output / "model.bin").write_text(f"{mark} model")
        put(self.database, job_id, results=self._results(mark, output))
        with self.database.write() as session:
            session.add_all(_history(job_id, mark, folder, f"{output}/model.bin"))
        return job_id

    def _search(self, project: str, mark: str, file: str) -> str:
        """One that has succeeded, with the job of its only trial."""
        search_id = add_search(
            self.database,
            project_id=project,
            name=f"{mark}-search",
            state="succeeded",
            template=_spec(mark, file),
            idempotency_key=f"{mark}-once",
            request_sha256="0" * 64,
            made=1,
            counts={"complete": 1},
            best=[0],
            best_scores=[[0.5]],
            ended_at=START,
        )
        job_id = add_job(
            self.database,
            project_id=project,
            name=f"{mark}-trial",
            state="succeeded",
            ended_at=START,
            spec=_spec(mark, file),
            search_id=search_id,
            trial=0,
        )
        add_trial(self.database, search_id, 0, job_id=job_id, scores=[0.5], reports=[(10, 0.5)])
        return search_id

    def _running_search(self, project: str, mark: str) -> str:
        """A project may have a hundred: those of earlier calls have ended, but for the owner's."""
        earlier = update(SearchRow).where(
            SearchRow.project_id == project,
            SearchRow.ended_at.is_(None),
            SearchRow.id != self.owner.get("running_search", ""),
        )
        with self.database.write() as session:
            session.execute(earlier.values(state="cancelled", ended_at=START))
        return add_search(
            self.database, project_id=project, name=f"{mark}-running-search", state="running"
        )

    def _results(self, mark: str, output: str) -> dict[str, Any]:
        prepared = self.settings.cache_dir / "prepared" / hashlib.sha256(mark.encode()).hexdigest()
        prepared.mkdir(parents=True)
        place = str(prepared.relative_to(self.settings.home))
        return {
            "prepare": {
                "prepared_dir": place,
                "model_dir": place,
                "tokenizer_dir": place,
                "model_revision": None,
                "dataset_revision": None,
                "data_fingerprint": prepared.name,
                "splits": {},
            },
            "train": {
                "output_dir": output,
                "metrics": {},
                "baseline": {},
                "steps": 10,
                "epochs": 1.0,
                "samples": [{"text": mark}],
            },
            "publish": {},
        }


def _spec(mark: str, file: str) -> dict[str, Any]:
    return spec(
        name=f"{mark}-done",
        dataset={"source": "upload", "train": file},
        tracking={"experiment_name": f"{mark}-experiment"},
    )


def _answered(project: str) -> dict[str, Any]:
    """What previews and predictions have in common."""
    return {
        "project_id": project,
        "state": "succeeded",
        "expires_at": db_now(3600),
        **dict.fromkeys(("created_at", "deadline_at", "ended_at", "next_publish_at"), START),
    }


def _preview(project: str, mark: str) -> PreviewRow:
    return PreviewRow(
        id=previews.REQUESTS.new_id(),
        spec={},
        options={},
        result={"rows_limit": 1, "notices": [mark]},
        **_answered(project),
    )


def _prediction(project: str, mark: str) -> PredictionRow:
    return PredictionRow(
        id=predictions.REQUESTS.new_id(),
        request={
            "model": {"name_or_path": "org/model"},
            "input": {"kind": "completion", "prompt": mark},
        },
        model_key=mark,
        result={"notices": [mark]},
        **_answered(project),
    )


def _upload(session: Session, project: str, mark: str) -> str:
    new = uploads.NewUpload(f"{mark}-large.jsonl", "fine-tune", 1, None)
    row = uploads.create(session, project, new)
    return uploads.cancel(session, Scope(project), row.id).id


def _history(job_id: str, mark: str, folder: Path, model: str) -> list[Base]:
    return [
        EventRow(
            job_id=job_id,
            seq=1,
            at=START,
            type="notice",
            epoch=0,
            data={"message": f"{mark} notice", "data": {}},
        ),
        MetricRow(
            job_id=job_id, seq=1, kind="eval", step=10, at=START, values={f"eval_{mark}": 1.0}
        ),
        CheckpointRow(
            job_id=job_id,
            step=10,
            epoch=1,
            created_at=START,
            path="attempts/1/checkpoints/10",
            manifest_sha256=atomic_dir.manifest_sha256(folder),
            bytes=atomic_dir.total_bytes(folder),
            best=True,
            metric=0.5,
        ),
        ArtifactRow(
            job_id=job_id,
            name="model/model.bin",
            path=model,
            bytes=len(f"{mark} model"),
            sha256="a" * 64,
            created_at=START,
        ),
    ]


def _twin(text: str) -> str:
    """Another text that is as long and comes next in order; of an id another id."""
    return text[:-1] + ("1" if text[-1] == "0" else "0")


def _webhook(project: str, mark: str) -> tuple[WebhookRow, DeliveryRow]:
    """An endpoint, with an event that it has received."""
    webhook_id = f"webhook-{hashlib.sha256(mark.encode()).hexdigest()[:32]}"
    webhook = WebhookRow(
        id=webhook_id,
        project_id=project,
        url=f"https://{mark}.example.com/",
        events=["*"],
        sealed="sealed",
        created_at=START,
        updated_at=START,
    )
    delivery = DeliveryRow(
        **outbox.pending(
            project=project,
            webhook_id=webhook_id,
            lane=webhook_id,
            event_id=f"evt_{mark}",
            event_type="webhook.test",
            payload={"data": {"mark": mark}},
            at=START,
        )
        | {"state": "delivered", "ended_at": START}
    )
    return webhook, delivery


def _of_spec(project: str, mark: str, job_id: str) -> DeliveryRow:
    """An event of a job, for a receiver that its spec names."""
    return DeliveryRow(
        **outbox.pending(
            project=project,
            lane=f"specs-{mark}",
            job_id=job_id,
            url=f"https://{mark}.example.com/",
            secret_name=f"{mark}-secret",
            event_id=f"evt_{mark}_2",
            event_type="job.succeeded",
            payload={"data": {"mark": mark}},
            at=START,
        )
        | {"state": "failed", "ended_at": START}
    )
