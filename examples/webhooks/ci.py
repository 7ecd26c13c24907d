"""Start a workflow of GitHub Actions when a job has succeeded.

    WEBHOOK_SECRET=whsec_… GITHUB_TOKEN=… GITHUB_REPOSITORY=owner/name WORKFLOW=deploy.yml \
        python -m examples.webhooks.ci

Make the webhook for `job.succeeded`. The token may write the actions of that repository; the
workflow has `on: workflow_dispatch` with the inputs `job` and `name`.
"""

import os

import httpx

from examples.webhooks.receiver import Event, serve


def dispatch(event: Event) -> None:
    if event["type"] != "job.succeeded":
        return
    job = event["data"]
    api = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    path = f"repos/{os.environ['GITHUB_REPOSITORY']}/actions/workflows/{os.environ['WORKFLOW']}"
    httpx.post(
        f"{api}/{path}/dispatches",
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
        },
        json={"ref": "main", "inputs": {"job": job["id"], "name": job["name"] or ""}},
        timeout=5,
    ).raise_for_status()


if __name__ == "__main__":
    serve(dispatch)
