"""A preview for the command line: `python -m worker.stages.local_preview FOLDER`.

Reads `FOLDER/preview.json` and writes `FOLDER/result.json`. FOLDER is temporary.
"""

import json
import sys
from pathlib import Path
from typing import Final

from service import inherited_secrets
from service.contract.previews import PreviewOptions
from service.contract.spec import JobSpec
from service.contract.stages import StageRequest
from service.contract.states import Stage
from worker.stages.preview import preview_of

REQUEST: Final = "preview.json"
RESULT: Final = "result.json"
_EXAMPLES: Final = 2


def main(folder: Path) -> None:
    inherited_secrets.adopt()
    given = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    spec = JobSpec.model_validate({**given["spec"], "hub": None})
    options = PreviewOptions(rows=given["rows"], shown=_EXAMPLES)
    result = preview_of(_request(spec, folder, Path(given["cache_dir"])), options)
    partial = folder / f"{RESULT}.part"
    partial.write_text(result.model_dump_json(by_alias=True), encoding="utf-8")
    partial.replace(folder / RESULT)


def _request(spec: JobSpec, folder: Path, cache_dir: Path) -> StageRequest:
    return StageRequest(
        job_id="preview",
        stage=Stage.PREPARE,
        epoch=1,
        attempt=1,
        spec=spec,
        workspace=folder,
        attempt_dir=folder,
        cache_dir=cache_dir,
        # The service has checked its own roots; here the user reads with his own rights.
        data_roots=[Path("/")],
        model_roots=[Path("/")],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
