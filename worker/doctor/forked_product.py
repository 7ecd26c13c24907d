"""A stage for the check of the fork server: multiplies two matrices on the device.

Writes its result to `product.json` in the workspace of the request.
"""

import json

from pydantic import BaseModel

from service.contract.stages import StageRequest
from worker.stages.base import Channel

SIZE: int = 256


def main(request: StageRequest, _: Channel) -> BaseModel | None:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ones = torch.ones(SIZE, SIZE, device=device)
    total = float((ones @ ones).sum())
    text = json.dumps({"device": device, "total": total})
    (request.workspace / "product.json").write_text(text, encoding="utf-8")
    return None
