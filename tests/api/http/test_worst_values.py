"""The worst values in every field of a spec: refused or accepted in bounded time, never a 500."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.faults.collect import collect
from service.api.http.body import parse_json
from service.api.jobs.ignored_options import ignored
from service.api.jobs.warnings import _steps_not_reached
from service.api.problems.errors import InvalidJsonError, InvalidSpecError, render
from service.contract.spec.spec import JobSpec
from service.settings import Settings
from tests.api.conftest import running
from tests.api.factories import SPEC
from tests.api.http.hostile_bodies import hostile_bodies
from tests.api.http.worst_values import WORST, bodies, places

_MOST_SECONDS = 1.0


def _places_by_section() -> dict[str, list[tuple[str, str]]]:
    grouped: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path, template in places():
        grouped[path.partition(".")[0]].append((path, template))
    return grouped


def _slow(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields and values that took too long; none may raise."""
    slow = []
    for path, template in fields:
        for name, raw in bodies(template):
            started = time.thread_time()
            _handled(raw)
            if time.thread_time() - started > _MOST_SECONDS:
                slow.append((path, name))
    return slow


def _handled(raw: bytes) -> str:
    """What the API does with a body, without the database."""
    try:
        body = parse_json(raw)
    except InvalidJsonError:
        return "no JSON"
    findings = collect(body)
    ignored(body)
    if findings.spec is None or findings.faults:
        scope = {"path": "/v1/jobs", "state": {"request_id": "id"}}
        assert render(scope, InvalidSpecError(findings.faults)).status_code == 422
        return "refused"
    stored = findings.spec.model_dump(mode="json")
    text = json.dumps(stored, ensure_ascii=False, allow_nan=False).encode()  # as Postgres has it
    assert JobSpec.accepted(json.loads(text)) == findings.spec
    list(_steps_not_reached(findings.spec))
    return "accepted"


class TestWorstValues:
    @pytest.mark.parametrize(
        "fields", _places_by_section().values(), ids=list(_places_by_section())
    )
    def test_each_field(self, fields: list[tuple[str, str]]) -> None:
        assert _slow(fields) == []

    @pytest.mark.heavy
    def test_each_field_of_each_kind(self) -> None:
        assert _slow(places(of_each_kind=True)) == []

    @pytest.mark.parametrize("body", hostile_bodies().values(), ids=hostile_bodies())
    def test_each_hostile_body(self, body: Any) -> None:
        raw = json.dumps(body).encode()
        started = time.thread_time()
        assert _handled(raw) == "refused"
        assert time.thread_time() - started < _MOST_SECONDS

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("training.logging_steps", "infinite text"),
            ("training.num_train_epochs", "infinite text"),
            ("training.lr_scheduler_kwargs", "half a name in text"),
            ("training.lr_scheduler_kwargs", "deep text"),
            ("peft.target_modules", "deep expression"),
        ],
    )
    def test_what_was_a_500_is_refused(self, path: str, value: str) -> None:
        templates = [template for place, template in places() if place == path]
        assert templates
        for template in templates:
            assert _handled(dict(bodies(template))[value]) == "refused"
        assert value in WORST


class TestHealth:
    def test_is_answered_while_hostile_bodies_are_validated(
        self, sqlite_url: str, tmp_path: Path
    ) -> None:
        settings = Settings(
            home=tmp_path,
            auth="off",
            database_url=sqlite_url,
            redis_url="redis://127.0.0.1:1/0",
        )
        raw = [json.dumps(body).encode() for body in hostile_bodies().values()]
        raw.append(json.dumps(SPEC | {"training": {f"u{n}": 1 for n in range(70_000)}}).encode())
        with running(settings) as url:
            statuses, slowest = asyncio.run(_attack(url, raw))
        assert set(statuses) <= {200, 400, 413, 422}
        assert slowest < 2


async def _attack(url: str, raw: list[bytes]) -> tuple[list[int], float]:
    """The statuses of the answers, and the slowest answer of `/health/live` meanwhile."""
    headers = {"Content-Type": "application/json"}
    slowest = 0.0
    async with httpx.AsyncClient(base_url=url, timeout=120, verify=False) as client:
        attacks = [
            asyncio.create_task(client.post("/v1/jobs/validate", content=body, headers=headers))
            for body in raw
        ]
        while not all(attack.done() for attack in attacks):
            started = time.monotonic()
            assert (await client.get("/health/live")).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.sleep(0.02)
        return [(await attack).status_code for attack in attacks], slowest
