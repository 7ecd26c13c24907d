"""`finetune download`: what a job made, in a folder of its own."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from finetune_client.http import calls, downloads

from service.cli.models import checkpoint_model, whole_folder
from service.cli.models.checkpoint_model import ADAPTER, MODEL
from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError
from service.cli.terminal.transfer import file_size
from service.contract.states import ENDED
from service.system import escaping

_CARD: Final = "model/README.md"
_MOST_BYTES: Final = 100
"""Characters of a folder's name."""
_AUTO_MODELS: Final = {
    "question-answering": "AutoModelForQuestionAnswering",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "summarization": "AutoModelForSeq2SeqLM",
    "translation": "AutoModelForSeq2SeqLM",
    "chat": "AutoModelForCausalLM",
    "preference": "AutoModelForCausalLM",
    "reward": "AutoModelForSequenceClassification",
}


def download(
    job_id: str,
    names: Annotated[
        list[str] | None, typer.Argument(help="Artifacts, into the current folder; none: all.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder; made if it is missing. Default: one with the job's name."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="Its model alone: a step, `best` or `last`."),
    ] = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what an earlier download wrote there.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Download what a job made: the model, predictions, the model card.

    The folder appears when everything has arrived and its sha256 is right.
    """
    with Client.from_environment() as client:
        named = client.model(job_id)
        checkpoint = checkpoint_model.step_of(named, checkpoint)
        job = client.get(f"/v1/jobs/{named.job_id}")
        found = artifacts(client, job["id"])
        if checkpoint is not None:
            if names:
                raise UsageError("give either names of artifacts or --checkpoint")
            _model_of(client, job, found, checkpoint, to, force=force, json=json)
        elif names:
            _some(client, job["id"], _named(job["id"], found, names), to, force=force, json=json)
        else:
            _all(client, job, found, to, force=force, json=json)


def artifacts(client: Client, job_id: str) -> list[Json]:
    return list(client.pages(f"/v1/jobs/{job_id}/artifacts", cursor="name"))


def fetch(client: Client, job_id: str, wanted: Sequence[Json], to: Path) -> list[Json]:
    """Download artifacts to their names under `to`; which, where and how large."""
    targets = whole_folder.paths([artifact["name"] for artifact in wanted], to)
    for artifact in wanted:
        path = calls.artifact(job_id, artifact["name"])
        client.download(path, targets[artifact["name"]], artifact["sha256"])
    return [
        {"name": each["name"], "path": str(targets[each["name"]]), "bytes": each["bytes"]}
        for each in wanted
    ]


def _named(job_id: str, found: list[Json], names: Sequence[str]) -> list[Json]:
    known = {artifact["name"]: artifact for artifact in found}
    if unknown := [name for name in names if name not in known]:
        listed = ", ".join(sorted(known)) or "none yet"
        raise UsageError(f"{job_id} has no artifact {unknown[0]!r}; it has: {listed}")
    return [known[name] for name in names]


def _all(
    client: Client, job: Json, found: list[Json], to: Path | None, *, force: bool, json: bool
) -> None:
    target = to if to is not None else Path(folder_name(job["name"], job["id"]))
    if not found:
        if json:
            output.print_json({"path": None, "data": []})
        else:
            output.note("the job has made no artifacts yet")
        return
    with whole_folder.writing(target, job["id"], force=force) as folder:
        fetch(client, job["id"], found, folder)
    _report(job, found, target, json=json)
    if job["state"] not in ENDED and not json:
        output.note(f"The job is still {job['state']}: what it makes from now on is not here.")


def _model_of(
    client: Client,
    job: Json,
    found: list[Json],
    wanted: str,
    to: Path | None,
    *,
    force: bool,
    json: bool,
) -> None:
    """Download the model of a checkpoint as if it were the job's finished model."""
    page = checkpoint_model.chosen(client, job["id"], wanted)
    names = {each["name"] for each in found}
    checkpoint_model.require_settings(job, page["step"], names)
    usual = f"{folder_name(job['name'], job['id'])}-checkpoint-{page['step']}"
    target = to if to is not None else Path(usual)
    settings = checkpoint_model.settings(found)
    with whole_folder.writing(target, job["id"], force=force) as folder:
        fetch(client, job["id"], settings, folder)
        weights = checkpoint_model.fetch_weights(
            client, job["id"], page, folder / MODEL, is_adapter=ADAPTER in names
        )
        size = weights.stat().st_size
    _report(job, [*settings, {"name": f"{MODEL}{weights.name}", "bytes": size}], target, json=json)


def _report(job: Json, found: Sequence[Json], target: Path, *, json: bool) -> None:
    if json:
        written = [
            {"name": each["name"], "path": str(target / each["name"]), "bytes": each["bytes"]}
            for each in found
        ]
        output.print_json({"path": str(target), "data": written})
        return
    number = f"{len(found)} file{'s' if len(found) > 1 else ''}"
    size = file_size(sum(each["bytes"] for each in found))
    output.print_line(f"{target}: {number}, {size}, every sha256 checked")
    if line := how_to_load(job, {each["name"] for each in found}, target):
        output.print_line(line)


def folder_name(name: str | None, otherwise: str) -> str:
    """`name` as the name of one visible folder, on any file system; `otherwise` if nothing is left
    of it.

    Letters, marks and digits of all scripts stay, and so do dots and underscores inside the name.
    """
    text = unicodedata.normalize("NFC", name or "")
    kept = "".join(
        each if each in "-._" or unicodedata.category(each)[0] in "LMN" else " " for each in text
    )
    cut = "-".join(kept.split()).encode()[:_MOST_BYTES].decode(errors="ignore").strip("-.")
    return otherwise if not cut or cut.partition(".")[0].lower() in downloads.RESERVED else cut


def how_to_load(job: Json, names: set[str], folder: Path) -> str | None:
    """One line of Python, or where the code is; None for a job without a model."""
    if not any(name.startswith(MODEL) for name in names):
        return None
    task: Any = job["spec"]["task"]
    auto_model = _AUTO_MODELS.get(task["type"])
    is_plain = ADAPTER not in names and task.get("head") in (None, "span")
    if auto_model is not None and is_plain:
        literal = escaping.python_literal(str(folder / "model"))
        return f"Load it: transformers.{auto_model}.from_pretrained({literal})"
    return f"Load it: the code is in {folder / _CARD}" if _CARD in names else None


def _some(
    client: Client, job_id: str, wanted: list[Json], to: Path | None, *, force: bool, json: bool
) -> None:
    """Download into a folder that may hold other files, but not those of another job."""
    folder = to if to is not None else Path()
    with whole_folder.writable(folder):
        _require_no_other(job_id, wanted, folder, force=force)
        written = fetch(client, job_id, wanted, folder)
    if json:
        output.print_json({"data": written})
    else:
        output.print_lines(str(item["path"]) for item in written)


def _require_no_other(job_id: str, wanted: list[Json], folder: Path, *, force: bool) -> None:
    targets = whole_folder.paths([artifact["name"] for artifact in wanted], folder)
    owner = whole_folder.read_manifest(folder).get("job", job_id)
    if owner != job_id:
        raise UsageError(f"{folder} holds a download of {owner}: give another folder with --to")
    for artifact in wanted:
        target = targets[artifact["name"]]
        if target.exists() and not force and not downloads.is_same(target, artifact["sha256"]):
            raise UsageError(
                f"{target} exists with other content: give another folder with --to, or replace "
                "it with --force"
            )
