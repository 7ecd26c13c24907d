"""A stage that a fork server forks for the doctor: one product on the device, checked.

Its result is `product.json` in the request's workspace.
"""

import json

from pydantic import BaseModel

from service.contract.stages import StageRequest
from worker.stages.base import Channel

ROOM: int = 256


def main(request: StageRequest, _: Channel) -> BaseModel | None:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ones = torch.ones(ROOM, ROOM, device=device)
    total = float((ones @ ones).sum())
    text = json.dumps({"device": device, "total": total})
    (request.workspace / "product.json").write_text(text, encoding="utf-8")
    return None
