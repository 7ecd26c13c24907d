"""`finetune search`: many trainings of one template, to find the best values of some fields."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from finetune_client.http import calls

from service.cli.search import page, trial_table
from service.cli.search.submit import submit, validate
from service.cli.search.watch import watch
from service.cli.terminal import ids, output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError
from service.contract.search.spec import MOST_TRIALS
from service.contract.search.states import SearchAction, TrialState
from service.contract.states import JobState
from service.system import units

app = typer.Typer(
    no_args_is_help=True,
    help="Hyper-parameter searches: trials of one job spec with other values.",
)

SearchId = Annotated[
    str, typer.Argument(metavar="SEARCH", help="Its id (search-…) or the beginning of it.")
]
_COLUMNS = ("id", "name", "state", "task", "trials", "best", "age")

app.command()(submit)
app.command()(validate)


@app.command("list")
def list_searches(
    state: Annotated[
        list[JobState] | None, typer.Option(help="May be given several times.")
    ] = None,
    task: str | None = None,
    name: str | None = None,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    after: Annotated[str | None, typer.Option(help="Start after this search's id.")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Searches, the newest first."""
    wanted = {"state": [each.value for each in state or []], "task": task, "name": name}
    given: Json = {key: value for key, value in wanted.items() if value}
    with Client.from_environment() as client:
        if after:
            given["after"] = client.search_id(after)
        found = client.get(ids.SEARCH.path, {"limit": limit, **given})
    output.print_rows(found, _COLUMNS, map(_row, found["data"]), as_json=json)
    if not json:
        output.note_more(found)


def _row(search: Json) -> Json:
    age = (datetime.now(UTC) - units.moment(search["created_at"])).total_seconds()
    best = [f"{units.number(score, 4)}" for each in search["best"][:1] for score in each["scores"]]
    done = sum(search["trials"].values()) - search["trials"].get(TrialState.RUNNING, 0)
    return {
        **search,
        "trials": f"{done:,} of {search['max_trials']:,}",
        "best": "  ".join(best),
        "age": units.brief(age),
    }


@app.command()
def show(search: SearchId, *, json: output.AsJson = False) -> None:
    """Everything about one search but its trials."""
    with Client.from_environment() as client:
        search_id = client.search_id(search)
        found = client.get(calls.search(search_id))
        if json:
            output.print_json(found)
            return
        best = client.get(calls.search(search_id, "best"))["data"] if found["best"] else []
    page.show(output.stdout(), found, best)


@app.command()
def trials(
    search: SearchId,
    state: Annotated[
        list[TrialState] | None, typer.Option(help="May be given several times.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 100,
    after: Annotated[int | None, typer.Option(min=0, help="Start after this number.")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """The trials by number: their values, scores, and why some were pruned or failed.

    At a terminal the table is as wide as the terminal; elsewhere the columns are separated by
    tabs, and nothing is cut.
    """
    given: Json = {"limit": limit, "state": [each.value for each in state or []]}
    if after is not None:
        given["after"] = after
    with Client.from_environment() as client:
        search_id = client.search_id(search)
        found = client.get(calls.search(search_id, "trials"), given)
        if json:
            output.print_json(found)
            return
        of = client.get(calls.search(search_id))
    _show_trials(of, found["data"])
    output.note_more(found, "trial")


def _show_trials(search: Json, found: list[Json]) -> None:
    console = output.stdout()
    if not console.is_terminal:
        output.print_lines(trial_table.for_scripts(found))
        return
    best = [each["trial"] for each in search["best"]]
    console.print(trial_table.for_terminal(found, search["objectives"], console.width, best))


@app.command()
def best(search: SearchId, *, json: output.AsJson = False) -> None:
    """The best trial; with several objectives, those that no other trial beats in all of them."""
    with Client.from_environment() as client:
        found = client.get(calls.search(client.search_id(search), "best"))
    if json:
        output.print_json(found)
    elif found["data"]:
        page.show_best(output.stdout(), found["objectives"], found["data"])
    else:
        output.note("No trial is complete yet.")


@app.command("watch")
def watch_command(search: SearchId, *, json: output.AsJson = False) -> None:
    """Follow a search to its end. With --json: its page, one line each time it changes."""
    with Client.from_environment() as client:
        raise typer.Exit(watch(client, client.search_id(search), json=json))


@app.command()
def pause(search: SearchId, *, json: output.AsJson = False) -> None:
    """Pause it: running trials stop at their next checkpoints, and no more begin."""
    _act(search, SearchAction.PAUSE, json=json)


@app.command()
def resume(search: SearchId, *, json: output.AsJson = False) -> None:
    """Resume a paused search."""
    _act(search, SearchAction.RESUME, json=json)


@app.command()
def cancel(search: SearchId, *, json: output.AsJson = False) -> None:
    """End a search, and cancel its trials that have not ended."""
    _act(search, SearchAction.CANCEL, json=json)


@app.command()
def extend(
    search: SearchId,
    max_trials: Annotated[
        int, typer.Option(min=1, max=MOST_TRIALS, help="Trials in all, the earlier included.")
    ],
    *,
    json: output.AsJson = False,
) -> None:
    """Raise the number of trials; a search that has ended continues."""
    with Client.from_environment() as client:
        call = calls.extend_search(client.search_id(search), max_trials)
        output.print_state(client.send(call), as_json=json)


def _act(search: str, action: SearchAction, *, json: bool) -> None:
    with Client.from_environment() as client:
        call = calls.act_on_search(client.search_id(search), action)
        output.print_state(client.send(call), as_json=json)


@app.command()
def delete(search: SearchId, *, json: output.AsJson = False) -> None:
    """Delete an ended search and its trials' jobs; what is in MLflow and on the Hub stays."""
    with Client.from_environment() as client:
        deleted = client.change("DELETE", calls.search(client.search_id(search)))
    output.print_deleted(deleted, as_json=json)


@app.command()
def plot(
    search: SearchId,
    name: Annotated[
        str,
        typer.Argument(
            help="history, importances, slices, parallel-coordinates, rungs or pareto-front."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: NAME.html. JSON, if it ends with .json."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Of several objectives the one to show.")
    ] = None,
) -> None:
    """Save a figure as an HTML page, or as JSON for Plotly."""
    target = to or Path(f"{name}.html")
    kind: Literal["json", "html"] = "json" if target.suffix == ".json" else "html"
    with Client.from_environment() as client:
        path = calls.search_plot(client.search_id(search), name, kind, metric)
        try:
            client.download(path, target)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    output.print_line(str(target))
