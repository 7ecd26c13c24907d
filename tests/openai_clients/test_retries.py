"""A call that each client repeats by itself has the effect of one."""

import httpx
import pytest

from tests.openai_clients.releases import EACH, Release
from tests.support.servers.proxy import LOST, PASSED, Proxy

CREATE = "POST /v1/fine_tuning/jobs"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("release", EACH)
def test_each_has_the_effect_of_one(release: Release, url: str) -> None:
    file = httpx.post(
        f"{url}/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "fine-tune"}
    ).json()["id"]
    with Proxy(url) as proxy:
        fates = [LOST, PASSED], [503, 429, PASSED], [500, LOST, PASSED]
        proxy.fates[CREATE] = [fate for job in fates for fate in job]
        proxy.before["GET /v1/fine_tuning/jobs"] = lambda: _lose_cancels(proxy, url)
        release.run("retries", proxy.url, file)
    assert proxy.requests.count(CREATE) == 8
    cancels = [request for request in proxy.requests if request.endswith("/cancel")]
    assert len(cancels) == 3  # the last one, a conflict, was not repeated


def _lose_cancels(proxy: Proxy, url: str) -> None:
    """The first answer to the cancellation of each job that there is."""
    for job in httpx.get(f"{url}/v1/fine_tuning/jobs").json()["data"]:
        proxy.fates[f"{CREATE}/{job['id']}/cancel"] = [LOST]
