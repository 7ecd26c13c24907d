"""Post to Slack when a job has ended.

    WEBHOOK_SECRET=whsec_… SLACK_URL=https://hooks.slack.com/services/… \
        python -m examples.webhooks.slack

Make the webhook for `job.succeeded` and `job.failed`. SLACK_URL is an incoming webhook of Slack.
"""

import os

import httpx

from examples.webhooks.receiver import Event, serve


def sentence(event: Event) -> str | None:
    """The text to post; None for an event that needs no message."""
    job = event["data"]
    name = job.get("name") or job["id"]
    if event["type"] == "job.succeeded":
        return f"{name} has succeeded: {job['urls']['job']}"
    if event["type"] == "job.failed":
        failure = job["failure"]
        return f"{name} has failed ({failure['code']}). {failure['action'] or ''}".strip()
    return None


def post(event: Event) -> None:
    text = sentence(event)
    if text is None:
        return
    # Slack takes these three characters for markup.
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    httpx.post(os.environ["SLACK_URL"], json={"text": text}, timeout=5).raise_for_status()


if __name__ == "__main__":
    serve(post)
