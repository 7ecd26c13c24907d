"""The model of a checkpoint as a folder that `from_pretrained` and vLLM load: the checkpoint's
weights with the finished model's settings."""

import json
import re
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError
from service.contract.spec.model_names import FineTuned

MODEL: Final = "model/"
ADAPTER: Final = "model/adapter_config.json"
_WEIGHTS: Final = "model.safetensors"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_OF_THE_FINISHED: Final = (".safetensors", ".safetensors.index.json", "README.md")
_ADAPTER_NAME: Final = re.compile(r"(\.lora_\w+)\.default(?=\.|$)")
"""peft's own name of a model's only adapter, which its files leave out."""
_HEAD: Final = struct.Struct("<Q")
_LARGEST_HEAD: Final = 100 * 1024**2
_PART: Final = 1024**2


def step_of(named: FineTuned, given: str | None) -> str | None:
    """Of the step in a model's name and the one that an option gives. UsageError if they differ."""
    if named.step is None:
        return given
    if given is not None and given != str(named.step):
        raise UsageError(
            f"the name is that of the checkpoint at step {named.step}, and the step given is "
            f"{given}: give one of them"
        )
    return str(named.step)


def chosen(client: Client, job_id: str, wanted: str) -> Json:
    """The page of a checkpoint: `best`, `last` or a step. UsageError if there is none."""
    rows = client.pages(f"/v1/jobs/{job_id}/checkpoints", cursor="step")
    kept = {row["step"]: row for row in rows if row["pruned_at"] is None}
    found = [step for step in kept if wanted in (str(step), "best" if kept[step]["best"] else "")]
    step = max(kept, default=None) if wanted == "last" else next(iter(found), None)
    if step is None:
        steps = ", ".join(map(str, sorted(kept))) or "none"
        raise UsageError(f"{job_id} has no checkpoint {wanted!r}: it has {steps}")
    return client.get(f"/v1/jobs/{job_id}/checkpoints/{step}")


def require_settings(job: Json, step: int, finished: Collection[str]) -> None:
    """UsageError where the finished model's settings do not fit the checkpoint's weights.

    `finished`: the names of the job's artifacts.
    """
    failure = job.get("failure") or {}
    if failure.get("details", {}).get("option") == "peft.merge":
        raise UsageError(f"{job['id']} has no finished model: {failure['message']}")
    promote = f"promote the checkpoint first (`finetune promote {job['id']} {step}`)"
    if not any(name.startswith(MODEL) for name in finished):
        raise UsageError(
            f"{job['id']} has no finished model, whose configuration a checkpoint needs: it is "
            f"{job['state']}. When it has ended, {promote}"
        )
    if job["spec"].get("peft") and ADAPTER not in finished:
        raise UsageError(
            f"the checkpoints of {job['id']} hold an adapter, which only its finished model has "
            f"merged into the base model: {promote}"
        )


def settings(artifacts: Sequence[Json]) -> list[Json]:
    """The artifacts that a checkpoint's model shares with the finished one."""
    return [
        each
        for each in artifacts
        if each["name"].startswith(MODEL) and not each["name"].endswith(_OF_THE_FINISHED)
    ]


def fetch_weights(
    client: Client, job_id: str, checkpoint: Json, folder: Path, *, is_adapter: bool
) -> Path:
    """Download the weights into the model's `folder`; where they are."""
    files = {file["name"]: file for file in checkpoint["files"]}
    names = (_ADAPTER_WEIGHTS, _WEIGHTS) if is_adapter else (_WEIGHTS,)
    name = next((each for each in names if each in files), None)
    if name is None:
        raise UsageError(f"the checkpoint {checkpoint['step']} of {job_id} has no {names[-1]}")
    folder.mkdir(parents=True, exist_ok=True)
    path = f"/v1/jobs/{job_id}/checkpoints/{checkpoint['step']}/files/{name}"
    client.download(path, folder / name, files[name]["sha256"])
    if is_adapter and name == _WEIGHTS:
        _rewrite_as_peft_loads_them(folder / _WEIGHTS, folder / _ADAPTER_WEIGHTS)
        (folder / _WEIGHTS).unlink()
    return folder / names[0]


def _rewrite_as_peft_loads_them(given: Path, target: Path) -> None:
    """LoRA's weights, which a checkpoint has under their names in the model. UsageError for more
    than LoRA.

    A safetensors file: the length of its head, its head in JSON, and the bytes of its tensors.
    """
    with given.open("rb") as source, target.open("wb") as written:
        (length,) = _HEAD.unpack(source.read(_HEAD.size))
        if length > _LARGEST_HEAD:
            raise UsageError("the checkpoint's weights are not a safetensors file")
        tensors: dict[str, Json] = json.loads(source.read(length))
        tensors.pop("__metadata__", None)
        lora = {name: each for name, each in tensors.items() if "lora_" in name}
        if not lora or any(".modules_to_save." in name for name in tensors):
            raise UsageError(
                "the checkpoint holds an adapter that is more than LoRA: promote it first"
            )
        head: dict[str, Json] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, each in lora.items():
            first, last = each["data_offsets"]
            offsets = [end, end := end + last - first]
            head[_ADAPTER_NAME.sub(r"\1", name)] = {**each, "data_offsets": offsets}
        content = json.dumps(head).encode()
        content += b" " * (-len(content) % _HEAD.size)  # the tensors are aligned
        written.write(_HEAD.pack(len(content)) + content)
        for each in lora.values():
            first, last = each["data_offsets"]
            source.seek(_HEAD.size + length + first)
            for begin in range(first, last, _PART):
                written.write(source.read(min(_PART, last - begin)))
