"""Every object that the files API answers with is exactly what each client expects."""

import pytest

from tests.openai_clients.releases import EACH, Release


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("release", EACH)
def test_each_release(release: Release, url: str) -> None:
    release.run("files", url)
