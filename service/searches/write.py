"""Writes a plan: the search, its trials and their jobs, in one transaction."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.contract.routing import CPU_QUEUE, Message
from service.contract.search.states import TrialState
from service.contract.states import ENDED, JobState
from service.jobs import commands, submissions
from service.jobs.dispatch import Dispatcher
from service.searches import trial_specs
from service.searches.memory import Memory
from service.searches.plan import NewReport, NewTrial, Plan
from service.settings import Settings
from service.store.database import db_now
from service.store.jobs import messages as job_messages
from service.store.jobs import state, user_actions
from service.store.scope import EVERYTHING, Scope
from service.store.searches import state as searches
from service.store.searches import trials
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow


class StaleError(Exception):
    """Another reconciler, or the user, has changed the search meanwhile: nothing was written."""


def write(
    session: Session, row: SearchRow, plan: Plan, memory: Memory, settings: Settings
) -> list[Message]:
    """The messages to send after COMMIT. Raises StaleError, and what making a job raises."""
    search_id = row.id
    values = dict(plan.search)
    if not trials.claim_version(session, search_id, memory.version, values):
        raise StaleError
    memory.version += 1
    _write_trials(session, search_id, plan)
    _write_reports(session, search_id, plan.reports, memory.reported)
    messages = _make_jobs(session, row, plan)
    messages += _act_on_jobs(session, plan)
    if plan.publish is not None:
        hub = trial_specs.hub_of(memory.spec)
        scope = Scope(row.project_id)
        message = commands.begin_publish(session, settings, scope, plan.publish, hub)
        messages += [] if message is None else [message]
    if plan.to is not None:
        locked = searches.lock(session, EVERYTHING, search_id)
        searches.move(session, locked, plan.to)
        memory.version += 1
    return messages


def _write_trials(session: Session, search_id: str, plan: Plan) -> None:
    for made in plan.made:
        session.add(_row(search_id, made))
    session.flush()
    for number, columns in sorted(plan.trials.items()):
        trials.change_trial(session, search_id, number, columns)


def _row(search_id: str, made: NewTrial) -> SearchTrialRow:
    return SearchTrialRow(
        search_id=search_id,
        number=made.number,
        job_id=made.job_id,
        origin=made.origin,
        state=TrialState.RUNNING,
        values=made.values,
        attrs=made.attrs,
        created_at=db_now(),
    )


def _write_reports(
    session: Session, search_id: str, reports: Sequence[NewReport], last: int
) -> None:
    """`last`: number of the last one."""
    for seq, report in enumerate(reports, last - len(reports) + 1):
        session.add(
            SearchReportRow(
                search_id=search_id,
                number=report.number,
                resource=report.resource,
                seq=seq,
                step=report.step,
                value=None if report.value != report.value else report.value,
                decision=report.decision,
                at=report.at,
            )
        )
    session.flush()


def _make_jobs(session: Session, row: SearchRow, plan: Plan) -> list[Message]:
    new = [
        state.NewJob(made.job_id, row.project_id, made.spec, search_id=row.id, trial=made.number)
        for made in plan.made
        if made.job_id is not None and made.spec is not None
    ]
    if plan.refit is not None:
        refit = plan.refit
        new.append(state.NewJob(refit.job_id, row.project_id, refit.spec, search_id=row.id))
    if not new:
        return []
    made = submissions.insert(session, new, due_in=0.0)
    return [job_messages.message(each.job) for each in made if each.job is not None]


def _act_on_jobs(session: Session, plan: Plan) -> list[Message]:
    messages = []
    for job_id in sorted(plan.pause):
        row = state.lock(session, EVERYTHING, job_id)
        if row is not None:
            user_actions.pause(session, row)
    for job_id in sorted(plan.resume):
        row = state.lock(session, EVERYTHING, job_id)
        if row is not None and user_actions.resume(session, row) is JobState.QUEUED:
            messages.append(job_messages.message(row))
    for job_id, failure in sorted(plan.cancel, key=lambda each: each[0]):
        row = state.lock(session, EVERYTHING, job_id)
        if row is None or JobState(row.state) in ENDED:
            continue
        if user_actions.cancel(session, row, failure) is JobState.CANCELLED:
            # If the job has a run in MLflow already, a worker ends it too.
            messages.append(job_messages.message(row, CPU_QUEUE))
    return messages


def send(dispatcher: Dispatcher, messages: Sequence[Message]) -> None:
    """The reconciler sends what the broker does not take."""
    for message in messages:
        dispatcher.enqueue_soon(message)
