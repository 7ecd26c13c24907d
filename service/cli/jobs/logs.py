"""`finetune logs|events`: what happened in a job, a line for each thing."""

import time
from collections.abc import Iterable
from datetime import date, datetime
from functools import partial
from typing import Annotated, Final

import typer
from finetune_client.errors import RateLimitError
from finetune_client.http import calls

from service.cli.jobs import history
from service.cli.jobs.streams import log_parts
from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.contract.states import Phase
from service.event_sentences import Narrator, of_metric
from service.system import units

FOLLOW_SECONDS = 1.0
_SHOWN_BY_RESULT: Final = (Phase.TRAINING, Phase.EVALUATING, Phase.SAVING)
"""Phases that alternate all the time; steps, evaluations and checkpoints tell the same."""


class Lines:
    """Each item of a history as a line with its local time; a line with the date at a new day."""

    def __init__(self) -> None:
        self._narrator = Narrator()
        self._day: date | None = None

    def render(self, item: Json) -> list[str]:
        """None for a sample of the machine's resources."""
        if item.get("kind") == "system":
            return []
        sentence = of_metric(item) if "kind" in item else self._narrator.say(item)
        at = units.moment(item["at"]).astimezone()
        return [*self._date(at), f"{at:%H:%M:%S} {' '.join(sentence.splitlines())}"]

    def _date(self, at: datetime) -> list[str]:
        before, self._day = self._day, at.date()
        # The first line of a job of today needs none.
        if self._day == (before or datetime.now().astimezone().date()):
            return []
        return [f"{at:%Y-%m-%d}"]


def show_logs(
    job_id: str,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the job has ended.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The text that the stages printed, as it is.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Steps, evaluations, checkpoints, notices and attempts of a job, in order.

    With --json: the events and metrics as the API has them, one line each; with --raw --json the
    parts of the text as they were read.
    """
    with Client.from_environment() as client:
        job_id = client.job_id(job_id)
        if raw:
            _show_text(client, job_id, follow=follow, json=json)
            return
        lines = Lines()
        if not follow:
            _show(lines, _shown(history.History(client, job_id).rest(), json=json), json=json)
            return
        for _job, items in history.follow(client, job_id):
            _show(lines, _shown(items, json=json), json=json)


def _show(lines: Lines, items: Iterable[Json], *, json: bool) -> None:
    for item in items:
        if json:
            output.print_json(item)
        else:
            for line in lines.render(item):
                output.print_line(line)


def _shown(items: Iterable[Json], *, json: bool) -> Iterable[Json]:
    """What `logs` shows of a history: for a program all of it."""
    return [
        item
        for item in items
        if json or item.get("type") != "phase" or item["data"]["phase"] not in _SHOWN_BY_RESULT
    ]


def _show_text(client: Client, job_id: str, *, follow: bool, json: bool) -> None:
    offset, has_stream = 0, True
    while True:
        call = calls.log_part(job_id, offset)
        part = history.patiently(partial(client.send, call))
        offset = _show_part(part, json=json)
        if offset < part["size"]:
            continue
        if part["eof"] or not follow:
            return
        if not has_stream:
            time.sleep(FOLLOW_SECONDS)
            continue
        try:
            for live in log_parts(client, job_id, offset, history.Outage()):
                offset = _show_part(live, json=json)
        except RateLimitError:
            has_stream = False


def _show_part(part: Json, *, json: bool) -> int:
    """The byte behind it."""
    if part["content"] and json:
        output.print_json(part)
    elif part["content"]:
        output.print_text(part["content"])
    return int(part["next_offset"])


def show_events(job_id: str, *, json: output.AsJson = False) -> None:
    """The job's history. With --json: the events as the API has them, one line each."""
    with Client.from_environment() as client:
        job_id = client.job_id(job_id)
        _show(Lines(), client.pages(f"/v1/jobs/{job_id}/events", cursor="seq"), json=json)
