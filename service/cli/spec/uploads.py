"""Files that a spec names are uploaded before it is sent."""

from collections.abc import Iterable
from pathlib import Path

from finetune_client.http import calls

from service.cli.terminal import output
from service.cli.terminal.client import ApiError, Client, UnreachableError
from service.cli.terminal.exit_codes import UsageError
from service.cli.terminal.transfer import transfer


def upload(client: Client, path: Path, size: int) -> str:
    """The id of the new file."""
    try:
        with transfer(f"uploading {path.name}", size) as progress:
            uploaded = client.upload(path, "fine-tune", progress)
    except OSError as error:
        raise UsageError(f"{path} cannot be read any more: {error.strerror}") from error
    output.note(f"uploaded {path} as {uploaded['id']}")
    return str(uploaded["id"])


def remove(client: Client, file_ids: Iterable[str]) -> None:
    """Delete what this call uploaded; the service keeps a file that a job needs."""
    for file_id in file_ids:
        try:
            client.change("DELETE", calls.file(file_id))
        except (ApiError, UnreachableError) as error:
            output.note(f"{file_id} was uploaded and not removed: {error}")
        else:
            output.note(f"removed {file_id} again")
