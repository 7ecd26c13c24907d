"""A request of the stub stage, whose `metadata` directs it."""

from pathlib import Path

from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from tests.support.factories import make_spec


def write(folder: Path, behaviour: str = "finish") -> Path:
    """`prepare` of a job, attempt 1, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    request = StageRequest(
        job_id="job-1",
        stage=Stage.PREPARE,
        epoch=1,
        attempt=1,
        spec=make_spec(metadata={"stub.prepare": behaviour}),
        workspace=folder,
        attempt_dir=folder,
        cache_dir=folder,
    )
    path = folder / "request.json"
    path.write_text(request.model_dump_json())
    return path
