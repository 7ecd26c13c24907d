"""Checks a spec before anything is uploaded: its local files here, the rest by the service."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from service.cli.spec import local_files
from service.cli.spec.local_files import Content, LocalFile, UnusableFileError
from service.cli.terminal import ids, output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import USAGE
from service.cli.terminal.transfer import file_size, transfer

_FILES_PER_PAGE: Final = 1000
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Accept a spec that every live worker would fail at, for lack of a GPU or a package.",
    ),
]
Validate = Callable[[Json, str | None], Json]
"""What the service says about a spec in which the id, if there is one, counts as uploaded."""


@dataclass(frozen=True)
class Checked:
    """A spec, its local files, and what was found wrong with either."""

    spec: Json
    folder: Path
    files: Mapping[str, Content]
    """The usable local files, by the name that the spec has for them."""
    errors: list[Json]
    warnings: list[Json]
    ignored: list[Json]
    filled: Json | None = None
    """The spec with its defaults, of a valid one."""

    @property
    def valid(self) -> bool:
        return not self.errors

    @property
    def answer(self) -> Json:
        """For --json."""
        return {
            "valid": self.valid,
            "errors": self.errors,
            "warnings": self.warnings,
            "ignored": self.ignored,
            "files": [
                {"name": name, "bytes": file.size, "sha256": file.sha256}
                for name, file in self.files.items()
            ],
        }


def check(
    client: Client, spec: Json, folder: Path, *, allow_outside: bool, force: bool = False
) -> Checked:
    """Every fault at once, without uploading anything: the service validates as if the files were
    there. Ids of jobs may be shortened."""
    spec = ids.in_spec(client.job_id, spec)
    validate = partial(client.validate, force=force)
    return check_by(validate, spec, folder, allow_outside=allow_outside)


def check_by(
    validate: Validate, spec: Json, folder: Path, *, allow_outside: bool, place: str = ""
) -> Checked:
    """As `check`, of a job's spec that is part of something else, at `place` of it: faults have
    paths such as `job.dataset.train`."""
    mentions = local_files.named_in(spec, folder)
    only_in = None if allow_outside else folder
    files, faults = _read_all(mentions, only_in, must_be_text=local_files.expects_text(spec))
    # A well-formed file id that no upload has.
    pending = f"file-{uuid4().hex}" if mentions else None
    ids = {mention.name: str(pending) for mention in mentions}
    answer = validate(local_files.replaced(spec, ids), pending)
    faults = [{**fault, "path": f"{place}{fault['path']}"} for fault in faults]
    faults += [_with_hint(fault, spec, folder, place) for fault in answer["errors"]]
    faults.sort(key=lambda fault: str(fault["path"]))
    found = {name: answer.get(name) or [] for name in ("warnings", "ignored")}
    return Checked(spec, folder, files, faults, **found, filled=answer.get("spec"))


def _read_all(
    mentions: Iterable[LocalFile], only_in: Path | None, *, must_be_text: bool
) -> tuple[dict[str, Content], list[Json]]:
    contents: dict[str, Content] = {}
    problems: dict[str, str] = {}
    faults = []
    for mention in mentions:
        name = mention.name
        if name not in contents and name not in problems:
            try:
                contents[name] = _read(mention.path, only_in, must_be_text=must_be_text)
            except UnusableFileError as error:
                problems[name] = str(error)
        if name in problems:
            fault = {"path": mention.field, "code": "unusable_file", "message": problems[name]}
            faults.append({**fault, "given": name, "allowed": None, "suggestion": None})
    return contents, faults


def _read(path: Path, only_in: Path | None, *, must_be_text: bool) -> Content:
    if only_in is not None:
        local_files.require_inside(path, only_in)
    size = path.stat().st_size if local_files.is_file(path) else 0
    with transfer(f"checking {path.name}", size) as progress:
        return local_files.read(path, must_be_text=must_be_text, progress=progress)


def _with_hint(fault: Json, spec: Json, folder: Path, place: str) -> Json:
    """The fault; with a hint if a file next to the spec was named without `./`."""
    path = str(fault["path"])
    if not path.startswith(f"{place}dataset.") or fault.get("suggestion"):
        return fault
    path = path.removeprefix(place)
    value = _at(spec, path)
    if value is None and path.endswith(".0"):
        value = _at(spec, path.removesuffix(".0"))
    is_name = isinstance(value, str) and value and "\x00" not in value
    if not is_name or Path(value).is_absolute() or not local_files.is_file(folder / value):
        return fault
    return {**fault, "suggestion": f"./{value}"}


def _at(given: Any, path: str) -> Any:
    """The value at a path such as `dataset.train.1`; None if there is none."""
    for part in path.split(".") if path else ():
        if isinstance(given, dict):
            given = given.get(part)
        elif isinstance(given, list) and part.isdigit() and int(part) < len(given):
            given = given[int(part)]
        else:
            return None
    return given


def uploaded_before(client: Client, checked: Checked) -> dict[str, str]:
    """Local name → id of an upload with the same content and file name, where there is one."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, content in checked.files.items():
        names.setdefault((content.sha256, (checked.folder / name).name), []).append(name)
    found: dict[str, str] = {}
    if not names:
        return found
    for file in client.pages("/v1/files", params={"limit": _FILES_PER_PAGE}):
        for name in names.pop((file["sha256"], file["filename"]), ()):
            found[name] = str(file["id"])
        if not names:
            break
    return found


# ---- for people -------------------------------------------------------------------------------


def refuse(errors: list[Json]) -> None:
    """Show the errors, if there are any, and end the command with the status of a wrong spec."""
    if not errors:
        return
    title = f"Invalid spec: {len(errors)} error{'s' if len(errors) > 1 else ''}"
    output.show_problem(
        {"title": title, "message": title, "code": "invalid_spec", "errors": errors}
    )
    raise typer.Exit(USAGE)


def show(spec: Path, checked: Checked, uploads: str) -> None:
    """What was found. `uploads` is the command that uploads the files. Ends the command as `refuse`
    does."""
    show_warnings(checked.answer)
    refuse(checked.errors)
    output.print_line(f"{spec} is valid")
    for name, file in checked.files.items():
        output.print_line(f"  {name}: {file_size(file.size)}, uploaded by `{uploads}`")


def show_warnings(answer: Mapping[str, Any]) -> None:
    """The warnings and the ignored options of a validation, or of a new job."""
    for warning in answer.get("warnings") or ():
        place = f"{warning['path']}: " if warning.get("path") else ""
        output.stderr().print(
            f"[yellow]warning[/]: {output.inline(place + str(warning['message']))}"
        )
    if ignored := [option["path"] for option in answer.get("ignored") or ()]:
        output.note(f"at their defaults, and ignored: {', '.join(ignored)}")
