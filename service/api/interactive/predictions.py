"""What a job's model answers to a few rows: a worker computes it, and the request waits a while."""

from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from service.api.faults.names import nearest
from service.api.http.dependencies import JobId, ParsedBody, Services, ServicesDep, path_id
from service.api.http.principal import JobsRead, JobsWrite
from service.api.http.request_faults import faults_of
from service.api.interactive import prediction_watch, waiting_request
from service.api.interactive.prediction_watch import Asked
from service.api.interactive.waiting_request import BriefAnswers
from service.api.openapi.document import PREDICT_BODY, problems
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.predictions import Prediction, PredictRequest
from service.api.schemas.problems import Fault
from service.contract.interactive import predicted_rows
from service.contract.interactive.predicted_rows import Lack
from service.contract.interactive.predictions import PredictedModel, PredictionRequest, RowsInput
from service.contract.spec.spec import JobSpec
from service.errors import PredictionNotFoundError
from service.store.interactive import predictions
from service.store.jobs import queries
from service.store.scope import Scope

router = APIRouter(tags=["predictions"])

_MOST_FAULTS: Final = 20
_SHOWN: Final = 50
PredictionId = Annotated[
    str, Depends(path_id("prediction", r"pred-[0-9a-f]{1,35}", PredictionNotFoundError))
]


@router.post(
    "/v1/jobs/{job_id}/predict",
    response_model=Prediction,
    summary="Ask a job's model about a few rows",
    openapi_extra=PREDICT_BODY,
    responses={
        **waiting_request.responses(Prediction),
        **problems(400, 401, 404, 409, 410, 413, 415, 422, 429, 503),
    },
)
async def predict_rows(
    principal: JobsWrite,
    job_id: JobId,
    body: ParsedBody,
    request: Request,
    services: ServicesDep,
    wait: Annotated[
        float,
        Query(
            ge=0, le=waiting_request.LONGEST_WAIT, description="Seconds to wait for the answers."
        ),
    ] = 30.0,
) -> Response:
    """A worker loads the finished model, or that of a checkpoint, and answers the rows as
    `mode: predict` would. A project has at most 16 unfinished predictions, and each is kept for an
    hour."""
    rows = _valid(body)
    asked = await to_thread.run_sync(_begin, services, principal.scope, job_id, rows)
    waiters = request.app.state.prediction_waiters
    return await _ANSWERS.wait(services, asked.scope, asked.ids[0], request, waiters, wait)


@router.get(
    "/v1/predictions/{prediction_id}",
    response_model=Prediction,
    summary="One prediction",
    responses=problems(401, 404, 422, 503),
)
def get_prediction(
    principal: JobsRead,
    prediction_id: PredictionId,
    services: ServicesDep,
) -> Prediction:
    """Its answers, once it has ended."""
    return _ANSWERS.read(services, principal.scope, prediction_id)


def _valid(body: Any) -> PredictRequest:
    """Raises InvalidRequestError."""
    try:
        return PredictRequest.model_validate(body)
    except ValidationError as error:
        raise InvalidRequestError(faults_of(PredictRequest, error)) from None


def _begin(services: Services, scope: Scope, job_id: str, wanted: PredictRequest) -> Asked:
    with services.database.read() as session:
        job = queries.get_job(session, scope, job_id)
        project, spec = job.project_id, JobSpec.accepted(job.spec)
    _require_columns(wanted.rows, spec)
    model = PredictedModel(job=job_id, step=wanted.step)
    request = PredictionRequest(model=model, input=RowsInput(rows=wanted.rows))
    return prediction_watch.begin(services, project, [request], needs_worker=False)


def _require_columns(rows: list[dict[str, Any]], spec: JobSpec) -> None:
    """Before a model is loaded for them. Raises InvalidRequestError."""
    faults = [
        _fault(number, row, lack)
        for number, row in enumerate(rows)
        for lack in predicted_rows.lacks(spec.task.type, row, spec.columns)
    ]
    if faults:
        raise InvalidRequestError(faults[:_MOST_FAULTS])


def _fault(number: int, row: dict[str, Any], lack: Lack) -> Fault:
    """A row without any of several columns is at fault as a whole."""
    place, (name, *others) = f"rows[{number}]", lack.columns
    if lack.is_given:
        path = f"{place}.{name}"
        return Fault(path=path, code="invalid_type", message=lack.message, allowed="text")
    near = next(filter(None, (nearest(each, row) for each in lack.columns)), None)
    hint = f"; rename `{near[:_SHOWN]}` if that is it" if near else ""
    path = place if others else f"{place}.{name}"
    return Fault(path=path, code="missing_field", message=lack.message + hint)


_ANSWERS: Final = BriefAnswers(
    predictions.REQUESTS, Prediction.from_row, prediction_watch.why_waiting
)
