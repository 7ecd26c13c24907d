"""Every object that the files API answers with is exactly what each client expects."""

import pytest

from tests.openai_clients.releases import ALL, NEWEST, OLDER, Release
from tests.support.databases import on_sqlite


def test_newest(url: str) -> None:
    NEWEST.run("files", url)


@on_sqlite
def test_oldest(url: str) -> None:
    OLDER[0].run("files", url)


@pytest.mark.heavy
@pytest.mark.parametrize("release", ALL, ids=lambda release: release.name)
def test_each(release: Release, url: str) -> None:
    release.run("files", url)
