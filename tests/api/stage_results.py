"""Results of stages whose folders exist."""

from typing import Any

from tests.api.conftest import Server


def prepared(server: Server, job_id: str) -> dict[str, Any]:
    """A result of `prepare` whose folders exist; the base model was made from scratch."""
    entry = server.settings.cache_dir / "prepared" / ("a" * 64)
    model = server.settings.workspace(job_id) / "attempts" / "1" / "base_model"
    for folder in (entry, model):
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "prepared_dir": str(entry),
        "model_dir": str(model),
        "tokenizer_dir": "/srv/models/where-only-workers-look",
        "model_revision": None,
        "dataset_revision": None,
        "data_fingerprint": "a" * 64,
        "splits": {},
    }


def trained(server: Server, job_id: str) -> dict[str, Any]:
    output = "attempts/2/output"
    (server.settings.workspace(job_id) / output).mkdir(parents=True, exist_ok=True)
    return {"output_dir": output, "metrics": {}, "baseline": {}, "steps": 1, "epochs": 1.0}
