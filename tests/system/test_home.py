"""Only its owner reads a home."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.system.home import make_private

_OTHER_USER = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def modes(home: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in [home, *home.iterdir()]}


class TestMakePrivate:
    def test_a_new_home_and_what_is_made_in_it_later(self, place: Path) -> None:
        home = place / "new" / "home"
        make_private(home)
        (home / "finetune.db").touch()
        (home / "jobs").mkdir()
        assert modes(home) == {"home": "0o700", "finetune.db": "0o600", "jobs": "0o700"}

    def test_the_home_of_an_earlier_release_is_closed(self, place: Path) -> None:
        home = place / "home"
        (home / "logs").mkdir(parents=True)
        (home / "finetune.db").write_text("rows")
        outside = place / "outside"
        outside.touch()
        (home / "link").symlink_to(outside)
        assert modes(home)["finetune.db"] == "0o644"
        make_private(home)
        assert modes(home) | {"link": ""} == {
            "home": "0o700",
            "logs": "0o700",
            "finetune.db": "0o600",
            "link": "",
        }
        assert oct(outside.stat().st_mode & 0o777) == "0o644"

    def test_a_folder_of_all_users_stays_theirs(self, place: Path) -> None:
        place.chmod(0o1777)
        make_private(place)
        assert place.stat().st_mode & 0o7777 == 0o1777

    @pytest.mark.usefixtures("processes")
    @pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
    def test_another_user_reads_nothing(self, place: Path) -> None:
        home = place / "home"
        make_private(home)
        (home / "finetune.db").write_text("rows")
        for name in ("finetune.db", "../home/finetune.db"):
            done = subprocess.run(
                ["cat", str(home / name)],
                user=_OTHER_USER,
                group=_OTHER_USER,
                extra_groups=[],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.stdout, "Permission denied" in done.stderr) == ("", True)
