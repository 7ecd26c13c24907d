"""`make containers`: builds both images, sends a job through the services of docker-compose.yml,
and attacks them from within.

Not collected by pytest. Ends with 0 when the job has succeeded; leaves images, nothing else.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

# Run as a file, so `tests` must be found next to it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.containers.attacks import attack
from tests.containers.engines import SERVICE_IMAGE, WORKER_IMAGE, Docker, Engine, Podman
from tests.e2e.data import write_squad
from tests.support.models import save_tiny_bert
from tests.support.servers import services

JOB_SECONDS = 300
MEMORY_MIB = 1024
ML_STACK = ("torch", "transformers", "datasets", "accelerate", "mlflow", "pandas")


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = _models(folder)
        ports = {key: str(services.free_port()) for key in ("FINETUNE_PORT",)}
        variables = {
            **ports,
            "MODEL_DIR": str(models),
            "DATA_DIR": str(models),
            "FINETUNE_SERVICE_IMAGE": SERVICE_IMAGE,
            "FINETUNE_WORKER_IMAGE": WORKER_IMAGE,
            # No job of this run may reach the real Hub.
            "FINETUNE_HUB_TOKEN": "",
            "SERVICE_MEMORY": f"{MEMORY_MIB}m",
        }
        engine: Engine
        engine = Docker(variables) if Docker.is_at_hand() else Podman(variables, folder)
        engine.build()
        check_images(engine)
        print(f"images are built and checked after {time.monotonic() - started:.0f} s", flush=True)
        with _running(engine):
            print(f"services are up after {time.monotonic() - started:.0f} s", flush=True)
            run_job(engine, f"http://127.0.0.1:{ports['FINETUNE_PORT']}", folder)
            attack(engine, MEMORY_MIB)
    print(f"containers: all passed in {time.monotonic() - started:.0f} s")


def _models(folder: Path) -> Path:
    """A folder that the containers' user may read, with one tiny model in it."""
    folder.chmod(0o755)
    models = folder / "models"
    models.mkdir()
    # The folder and the weights are made for their owner only.
    model = save_tiny_bert(models / "tiny-bert")
    model.chmod(0o755)
    for file in model.iterdir():
        file.chmod(0o644)
    return models


@contextmanager
def _running(engine: Engine) -> Iterator[None]:
    try:
        engine.up()
        yield
    except BaseException:
        engine.logs()
        raise
    finally:
        engine.down()


PROBE = """
import importlib.util, json, os
found = [name for name in {names} if importlib.util.find_spec(name)]
print(json.dumps({{"user": os.getuid(), "found": found}}))
"""


def check_images(engine: Engine) -> None:
    """Neither runs as root nor carries tests; the service's has nothing of the ML stack."""
    ours = ["service", "worker", "migrations"]
    probe = PROBE.format(names=[*ours, "tests", *ML_STACK])
    for image, expected in ((SERVICE_IMAGE, ours), (WORKER_IMAGE, [*ours, *ML_STACK])):
        answer = json.loads(engine.python(image, probe))
        assert answer["user"] != 0, f"{image} runs as root"
        assert answer["found"] == expected, f"{image} carries {answer['found']}"
    find = "from worker.processes import allocator; print(allocator.find('auto', with_gpu=False))"
    assert engine.python(WORKER_IMAGE, find).strip() == "libtcmalloc_minimal.so.4"


def run_job(engine: Engine, url: str, folder: Path) -> None:
    """Over HTTP as a user: a key, two uploads, a job, its page, its files, its run in MLflow."""
    services.wait_until(lambda: _is_ready(url), 120, "the API")
    assert httpx.get(f"{url}/v1/jobs").status_code == 401, "the API is open to anyone"
    made = engine.exec("api", "finetune", "keys", "create", "container-test", "--json")
    headers = {"Authorization": f"Bearer {json.loads(made)['key']}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, verify=False) as http:
        job = _finish(http, _submit(http, folder))
        assert job["state"] == "succeeded", json.dumps(job, indent=1)
        assert job["result"]["steps"] == 4
        assert "eval_f1" in job["result"]["metrics"]
        assert "eval_f1" in job["result"]["baseline"]
        assert {entry["name"] for entry in job["result"]["artifacts"]} >= {
            "model/model.safetensors",
            "predictions.json",
        }
        predictions = http.get(f"/v1/jobs/{job['id']}/artifacts/predictions.json")
        assert len(predictions.json()) == 24, predictions.text
    _check_mlflow(job["mlflow_url"], headers)
    print(f"job {job['id']} succeeded: {job['result']['metrics']}\n{job['mlflow_url']}")


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).is_success
    except httpx.TransportError:
        return False


def _submit(http: httpx.Client, folder: Path) -> str:
    squad = {name: _upload(http, path) for name, path in write_squad(folder).items()}
    body = {
        "name": "containers",
        "task": {"type": "question-answering", "max_seq_length": 128, "doc_stride": 32},
        "model": {"name_or_path": "/srv/models/tiny-bert"},
        "dataset": {"source": "upload", **squad},
        "training": {"max_steps": 4, "logging_steps": 1, "eval_strategy": "epoch"},
    }
    body["task"]["version_2_with_negative"] = True  # type: ignore[index]
    answer = http.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _upload(http: httpx.Client, path: Path) -> str:
    with path.open("rb") as stream:
        form = {"purpose": "fine-tune"}
        answer = http.post("/v1/files", files={"file": (path.name, stream)}, data=form)
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["id"])


def _finish(http: httpx.Client, job_id: str) -> dict[str, Any]:
    """The job's page once it has ended."""
    page: dict[str, Any] = {}

    def ended() -> bool:
        nonlocal page
        page = http.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return page["state"] in ("succeeded", "failed", "cancelled")

    services.wait_until(ended, JOB_SECONDS, f"the end of {job_id}")
    return page


def _check_mlflow(run_url: str, headers: dict[str, str]) -> None:
    """The link in the job's answer leads to a run that ends as the job and has its numbers."""
    uri, _, route = run_url.partition("?")[0].partition("/#/")
    params = {"run_id": route.split("/")[3]}

    def run() -> dict[str, Any]:
        path = f"{uri}/api/2.0/mlflow/runs/get"
        assert httpx.get(path, params=params, timeout=30).status_code == 401
        answer = httpx.get(path, params=params, headers=headers, timeout=30)
        return dict(answer.raise_for_status().json()["run"])

    # The worker ships what is left just after the job has ended.
    services.wait_until(
        lambda: run()["info"]["status"] == "FINISHED", 60, "the end of the run in MLflow"
    )
    names = {metric["key"] for metric in run()["data"]["metrics"]}
    assert "loss" in names, names


if __name__ == "__main__":
    main()
