"""`finetune serve-command`: how vLLM serves the finished model of a job, or a checkpoint."""

import json as json_module
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import typer

from service.cli import checkpoint_model, download, output
from service.cli.client import Client, Json
from service.cli.exit_codes import UsageError
from service.cli.folder_names import folder_name
from service.contract import model_names

_TASKS: Final = ("chat", "preference", "causal-lm")
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM allows for --max-lora-rank."""
_UNSUPPORTED: Final = ("use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern")
"""Of LoRA: vLLM refuses or ignores them, which would be another model."""
_TEMPLATE: Final = "model/chat_template.jinja"


def serve_command(
    job_id: str,
    to: Annotated[
        Path | None,
        typer.Option(help="Where the model is downloaded. Default: as `finetune download` does."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="STEP", help="Its model, not the finished one: a step, `best` or `last`."
        ),
    ] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Print the commands that download a job's model and serve it with vLLM.

    vLLM must be installed where they run; the service itself only gives a look at a model.
    """
    with Client.from_environment() as client:
        named = client.model(job_id)
        checkpoint = checkpoint_model.step_of(named, checkpoint)
        job = client.get(f"/v1/jobs/{named.job_id}")
        names = {artifact["name"] for artifact in download.artifacts(client, job["id"])}
        require_served(job, names)
        step = None if checkpoint is None else _step(client, job, names, checkpoint)
        model = _name(client, job["id"], step)
    folder, chosen = Path(folder_name(job["name"], job["id"])), []
    if step is not None:
        folder, chosen = download.checkpoint_folder(job, step), ["--checkpoint", str(step)]
    folder = to if to is not None else folder
    fetch = ["finetune", "download", job["id"], *chosen, "--to", str(folder)]
    serve = arguments(job, model, names, folder / "model")
    if json:
        output.print_json({"model": model, "download": fetch, "serve": serve})
    else:
        output.print_lines([shlex.join(fetch), shlex.join(serve)])


def require_served(job: Json, names: Collection[str]) -> None:
    """UsageError where vLLM cannot serve the model, or there is none."""
    task = job["spec"]["task"]["type"]
    if task not in _TASKS:
        raise UsageError(
            f"vLLM generates text, and the model of {job['id']} is for {task}: `finetune try "
            f"{job['id']}` or POST /v1/jobs/{job['id']}/predict asks it, and a job of `mode: "
            "predict` answers many rows"
        )
    if not any(name.startswith(checkpoint_model.MODEL) for name in names):
        raise UsageError(
            f"{job['id']} has no finished model: it is {job['state']}. When it has ended, "
            f"`finetune promote {job['id']} STEP` makes one of a checkpoint"
        )


def _step(client: Client, job: Json, names: Collection[str], checkpoint: str) -> int:
    """Of a checkpoint that can be downloaded as a model. UsageError."""
    step = int(checkpoint_model.chosen(client, job["id"], checkpoint)["step"])
    checkpoint_model.require_settings(job, step, names)
    return step


def _name(client: Client, job_id: str, step: int | None) -> str:
    """What OpenAI's API calls the model: it knows what the job began with."""
    some_name = model_names.fine_tuned("model", "", None, job_id, step)
    return str(client.get(f"/v1/models/{some_name}")["id"])


def arguments(job: Json, model: str, names: Collection[str], folder: Path) -> list[str]:
    """vLLM's command line. UsageError for an adapter that vLLM does not load."""
    template = ["--chat-template", str(folder / Path(_TEMPLATE).name)]
    common = ["--dtype", _dtype(job["spec"]), *(template if _TEMPLATE in names else [])]
    if checkpoint_model.ADAPTER not in names:
        return ["vllm", "serve", str(folder), "--served-model-name", model, *common]
    return [*_adapter(job, model, folder), *common]


def _dtype(spec: Json) -> str:
    """As it was trained: on a GPU vLLM's own choice for float32 weights has half the precision."""
    stored = spec["model"].get("dtype")
    for name, option in (("bfloat16", "bf16"), ("float16", "fp16")):
        if stored == name or spec["training"].get(option):
            return name
    return "auto" if stored == "auto" else "float32"


def _adapter(job: Json, model: str, folder: Path) -> list[str]:
    """UsageError for an adapter that vLLM does not load."""
    peft, base = job["spec"]["peft"] or {}, job["spec"]["model"]
    origin = base.get("name_or_path")
    refused = [f"peft.{option}" for option in _UNSUPPORTED if peft.get(option)]
    if peft.get("method", "lora") != "lora":
        refused.append(f"peft.method: {peft['method']}")
    if peft.get("bias", "none") != "none":
        refused.append("peft.bias")
    if origin is None:
        refused.append("model.job")
    rank = next((each for each in _RANKS if each >= peft.get("r", 8)), None)
    if refused or rank is None:
        what = ", ".join(f"`{option}`" for option in refused) or f"`peft.r` above {_RANKS[-1]}"
        raise UsageError(
            f"vLLM does not load the adapter of {job['id']} onto its base model ({what}): "
            "train with `peft.merge: true`, which makes a whole model, where the method allows it"
        )
    revision = (job["result"] or {}).get("model_revision")
    module = {"name": model, "path": str(folder), "base_model_name": origin}
    return [
        *("vllm", "serve", str(origin)),
        *(("--revision", revision) if revision else ()),
        *("--tokenizer", str(folder)),
        *("--enable-lora", "--max-lora-rank", str(rank)),
        *("--lora-modules", json_module.dumps(module, ensure_ascii=False)),
    ]
