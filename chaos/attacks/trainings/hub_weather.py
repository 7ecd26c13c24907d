"""The Hub behind an unreliable network: downloads are correct, and each push is one commit."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from chaos.checks import checker
from chaos.faults.weather import Storm, WeatherProxy
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from tests.support.hub import HubDouble

HOLDS: Final = (
    "only prepare and publish are repeated; train runs once, on the right model and data; the "
    "result is one commit with the right files"
)
_TOKEN: Final = "hf_" + "weather" * 5


def run(seed: int, scale: Scale) -> Row:
    jobs = scale.pick(short=1, full=15)
    storm = Storm(seed, share=0.15)
    storm.is_over = True
    with (
        timed("the Hub unreachable, slow, 429, 5xx, truncated", HOLDS) as report,
        HubDouble({_TOKEN: {"org"}}) as hub,
        WeatherProxy(hub.endpoint, storm) as proxy,
        running(workers=scale.pick(short=1, full=2), variables=_variables(proxy)) as stack,
    ):
        hub.endpoint = proxy.url  # the address that clients upload to
        local = stack.material.body(steps=8)
        undisturbed = stack.undisturbed(local)
        storm.is_over = False
        ids = {stack.submit(_from_the_hub(hub, stack, local, n)): n for n in range(jobs)}
        stack.wait_for_ends(list(ids))
        storm.is_over = True
        attempts = Counter[str]()
        report.faults += checker.broken(stack, dict.fromkeys(ids, undisturbed))
        for job_id, number in ids.items():
            report.faults += _attempt_faults(stack, job_id, attempts)
            report.faults += _commit_faults(stack, job_id, hub, _target(number))
        report.faults += checker.left_over(stack)
    report.done = f"{jobs} jobs from and to the Hub; {storm.summary()}"
    stages = ", ".join(f"{count} of {stage}" for stage, count in attempts.items())
    report.outcome = f"attempts: {stages}; {jobs} commits, all weights equal"
    return report.row()


def _variables(proxy: WeatherProxy) -> dict[str, str]:
    return {
        "FINETUNE_HUB_ENDPOINT": proxy.url,
        "FINETUNE_HUB_TOKEN": _TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }


def _target(number: int) -> str:
    return f"org/out-{number}"


def _from_the_hub(
    hub: HubDouble, stack: FaultStack, local: dict[str, Any], number: int
) -> dict[str, Any]:
    """The same job, with model and data from repositories that were never downloaded."""
    folder = stack.material.folder
    names = ("train.jsonl", "validation.jsonl")
    hub.add_repo(f"org/model-{number}", folder / "tiny-gpt2")
    data = {name: (folder / name).read_bytes() for name in names}
    hub.add_repo(f"org/data-{number}", data, repo_type="dataset")
    return {
        **local,
        "model": {"name_or_path": f"org/model-{number}"},
        "dataset": {"source": "hub", "name": f"org/data-{number}"},
        "hub": {"model_id": _target(number)},
    }


def _attempt_faults(stack: FaultStack, job_id: str, attempts: Counter[str]) -> Iterator[str]:
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    started = Counter(e["data"]["stage"] for e in events if e["type"] == "stage_started")
    attempts.update(started)
    if started["train"] != 1:
        yield f"{job_id}: train was started {started['train']} times"


def _commit_faults(stack: FaultStack, job_id: str, hub: HubDouble, target: str) -> Iterator[str]:
    """After its creation the repository has one commit, which holds all files of the result."""
    repo = hub.find("model", target)
    if repo is None or len(repo.commits) != 2:
        yield f"{job_id}: {target} has {len(repo.commits) if repo else 'no'} commits"
        return
    page = stack.job(job_id)
    pushed = dict(repo.commits[-1].files)
    pushed.pop(".gitattributes", None)
    if repo.commits[-1].sha not in str(page):
        yield f"{job_id}: its page does not name commit {repo.commits[-1].sha}"
    path = f"/v1/jobs/{job_id}/artifacts"
    answer = stack.request("GET", path, params={"limit": 100}).raise_for_status().json()
    named = [item["name"] for item in answer["data"] if item["name"].startswith("model/")]
    files = {name: stack.request("GET", f"{path}/{name}").content for name in named}
    model = {name.removeprefix("model/"): content for name, content in files.items()}
    if pushed.keys() != model.keys():
        yield f"{job_id}: pushed {sorted(pushed)}, artifacts {sorted(model)}"
    for name in pushed.keys() & model.keys():
        if pushed[name] != model[name]:
            yield f"{job_id}: {name} on the Hub differs from the artifact"
