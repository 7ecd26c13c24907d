"""`finetune validate --data`: reads a spec's rows here, with the code of the job's `prepare`."""

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from service import escaping, inherited_secrets, own_packages
from service.cli import local_files, output, whole_folder
from service.cli.client import Client, Json
from service.cli.exit_codes import UsageError
from service.cli.hub_environment import hub_environment
from service.cli.spec_check import Checked
from service.cli.transfer import transfer
from service.contract import splits
from service.contract.failures import RULES, FailureCode
from service.settings import Settings

ROWS: Final = 10_000
_NEEDED: Final = ("torch", "transformers", "datasets", "tokenizers")
_MANY_UNKNOWN: Final = 0.02
_SHOWN_TOKENS: Final = 48
_SHOWN_LABELS: Final = 20
_SHOWN_CHARACTERS: Final = 400


def preview(client: Client, checked: Checked, rows: int) -> Json:
    """What a job would make of the first `rows` of each split. Raises UsageError."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"--data needs the tokenizer's libraries, and here {', '.join(missing)} cannot be "
            "imported: install finetune-service[worker], or leave out --data"
        )
    if (checked.spec.get("model") or {}).get("job"):
        raise UsageError(
            "--data cannot read the tokenizer of another job's model. Check the data with its base "
            "model: --set model.job=null --set model.name_or_path=…"
        )
    with tempfile.TemporaryDirectory(prefix="finetune-preview-") as folder:
        spec = _readable_here(client, checked, Path(folder))
        return _run(spec, rows, Path(folder))


def _readable_here(client: Client, checked: Checked, folder: Path) -> Json:
    """The spec with paths in place of local names and of ids of uploads."""
    spec = checked.spec
    dataset = spec["dataset"]
    if dataset.get("source") != "upload":
        return spec

    def path_of(value: str) -> str:
        if local_files.is_local(value):
            return str((checked.folder / value).resolve())
        return str(_download(client, value, folder))

    replaced = {split: _mapped(dataset[split], path_of) for split in splits.ALL if split in dataset}
    return {**spec, "dataset": {**dataset, **replaced, "source": "path"}}


def _mapped(value: Any, path_of: Any) -> Any:
    if isinstance(value, list):
        return [_mapped(item, path_of) for item in value]
    if isinstance(value, dict):
        return {name: _mapped(item, path_of) for name, item in value.items()}
    return path_of(value) if isinstance(value, str) else value


def _download(client: Client, file_id: str, folder: Path) -> Path:
    """An upload, under the name that it had: messages name it, and its suffix is its format."""
    described = client.get(f"/v1/files/{file_id}")
    name = Path(described["filename"]).name.replace("\x00", "")
    target = whole_folder.paths([name], folder / "uploads" / file_id)[name]
    if not target.is_file():
        with transfer(f"downloading {target.name}", described["bytes"]):
            client.download(f"/v1/files/{file_id}/content", target)
    return target


def _run(spec: Json, rows: int, folder: Path) -> Json:
    request = {"spec": spec, "rows": rows, "cache_dir": str(_cache(folder))}
    (folder / "preview.json").write_text(json.dumps(request), encoding="utf-8")
    # It ends with this process.
    module = ["worker.processes.parent_death", str(os.getpid()), "worker.stages.local_preview"]
    environment, secrets = hub_environment()
    with inherited_secrets.pipe(secrets) as (variables, descriptors):
        done = subprocess.run(
            own_packages.python(*module, str(folder)),
            env={**environment, **variables, "CUDA_VISIBLE_DEVICES": ""},
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    result = folder / "result.json"
    if not result.is_file():
        said = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"the data could not be read: exit status {done.returncode}: {said}")
    answer: Json = json.loads(result.read_text(encoding="utf-8"))
    return answer


def _cache(folder: Path) -> Path:
    """Where downloads are found again, if this user may write there."""
    cache = Settings().cache_dir
    return cache if cache.is_dir() and os.access(cache, os.W_OK) else folder / "cache"


# ---- for people -------------------------------------------------------------------------------


def lines(found: Json) -> Iterator[str]:
    """The preview as text."""
    yield from summary(found)
    yield from notices(found)
    for number, example in enumerate(found["examples"], start=1):
        yield ""
        yield heading(number, example)
        yield from _example(example)


def summary(found: Json) -> Iterator[str]:
    """What is said of all rows."""
    for name, split in found["splits"].items():
        yield from _split(name, split, found)
    yield from _epoch(found)
    unknown = found["unknown_tokens"] or 0
    if unknown >= _MANY_UNKNOWN:
        yield (
            f"{unknown:.0%} of the tokens are unknown to the tokenizer: a model of this language "
            "or of this kind of text will learn more"
        )


def notices(found: Json) -> Iterator[str]:
    return (f"notice: {escaping.line(notice)}" for notice in found["notices"])


def heading(number: int, example: Json) -> str:
    return f"Example {number} of the {example['split']} split, {example['length']:,} tokens"


def _epoch(found: Json) -> Iterator[str]:
    epoch = found["epoch"]
    if epoch is None:
        return
    trained = epoch["trained_tokens"]
    of_tokens = "" if trained is None else f"{trained:,} trained tokens, "
    yield (
        f"an epoch: {'' if epoch['is_exact'] else 'about '}{epoch['rows']:,} rows, {of_tokens}"
        f"{epoch['features']:,} features in {epoch['batches']:,} batches, "
        f"{epoch['optimizer_steps']:,} optimizer steps; {epoch['total_steps']:,} steps in all"
    )


def _split(name: str, split: Json, found: Json) -> Iterator[str]:
    more = " (the limit; --rows reads more)" if split["rows_read"] >= found["rows_limit"] else ""
    yield (
        f"{name}: {split['rows_read']:,} rows read{more}, {split['rows_usable']:,} usable, "
        f"{split['rows_bad']:,} bad"
    )
    if split.get("realigned"):
        yield f"  {split['realigned']:,} answers realigned"
    for row in split["bad_rows"]:
        yield f"  {row['place']}: {row['problem']} ({row['reason']})"
    if split["rows_bad"] > len(split["bad_rows"]):
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in split["bad_by_reason"].items())
        yield f"  … of all bad rows: {reasons}"
    limit = f"{found['max_length']}" + (
        f" (`task.{found['length_option']}`)" if found["length_option"] else ""
    )
    yield from _lengths("tokens", split.get("tokens"), split.get("truncated"), limit)
    yield from _lengths("target tokens", split.get("target_tokens"), split.get("targets_truncated"))
    if split.get("labels"):
        yield f"  labels: {_counted(split['labels'])}"
    if split.get("features") is not None:
        windows = split.get("windows_per_example")
        several = sum(rows for number, rows in (windows or {}).items() if int(number) > 1)
        trained = split.get("trained_tokens")
        yield (
            f"  {split['features']:,} features"
            + (f", {trained:,} trained tokens" if trained is not None else "")
            + (f"; {several:,} rows make more than one window" if several else "")
        )


def _counted(labels: dict[str, int]) -> str:
    shown = [f"{escaping.line(name)} {n:,}" for name, n in list(labels.items())[:_SHOWN_LABELS]]
    more = f", … {len(labels) - _SHOWN_LABELS} more" if len(labels) > _SHOWN_LABELS else ""
    return ", ".join(shown) + more


def _lengths(
    what: str, lengths: Json | None, truncated: int | None, limit: str | None = None
) -> Iterator[str]:
    if lengths is None:
        return
    cut = f"; {truncated or 0:,} truncated" + (f" at {limit}" if limit else "")
    yield (
        f"  {what} per row: p50 {lengths['p50']:,}, p95 {lengths['p95']:,}, "
        f"max {lengths['max']:,}{cut}"
    )


def _example(example: Json) -> Iterator[str]:
    target = example["target"]
    if isinstance(target, list):  # a label for each token
        yield labels(example)
        return
    yield f"  text: {shortened(example['text'])}"
    yield f"  tokens: {_joined(example['tokens'])}"
    yield f"  target: {shortened(target)}"


def labels(example: Json) -> str:
    pairs = zip(example["tokens"], example["target"], strict=True)
    shown = [token if label is None else f"{token}/{label}" for token, label in pairs]
    return f"  tokens/labels: {_joined(shown)}"


def _joined(tokens: list[str]) -> str:
    more = f" … {len(tokens) - _SHOWN_TOKENS:,} more" if len(tokens) > _SHOWN_TOKENS else ""
    return " | ".join(escaping.line(token) for token in tokens[:_SHOWN_TOKENS]) + more


def shortened(text: str) -> str:
    return escaping.line(text[:_SHOWN_CHARACTERS]) + ("…" if len(text) > _SHOWN_CHARACTERS else "")


def show_failure(failure: Json) -> None:
    """What the job's page would say; what may pass says nothing about the rows."""
    reason = f"({failure['code']}): {failure['message']}"
    if RULES[FailureCode(failure["code"])].retryable:
        output.complain(f"the data could not be checked here {reason}")
        output.note("Try again. A job would be retried by itself.")
    else:
        output.complain(f"a job would fail with this data {reason}")
        output.note(f"What to do: {failure['action']}")
