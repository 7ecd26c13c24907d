"""A stage that asks the Hub whose token it has, and whose downloads it finds."""

import os
import sys
from pathlib import Path

import httpx
from pydantic import BaseModel

from service.contract.stage.stages import StageRequest
from tests.support.stages.stage import result
from worker.stages.base import Channel, run_stage


def main(request: StageRequest, _channel: Channel) -> BaseModel:
    (request.attempt_dir / "cache").write_text(str(request.project_cache))
    token = os.environ.get("HF_TOKEN")
    if token is not None:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{os.environ['HF_ENDPOINT']}/api/whoami-v2", headers=headers)
        (request.attempt_dir / "account").write_text(answer.json()["name"])
    return result(request)


def command(_request: StageRequest, request_file: Path) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__)), str(request_file)]


if __name__ == "__main__":
    run_stage(main)
