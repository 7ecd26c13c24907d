"""The README's first screen: two commands with the time that they take, and a picture."""

import re

import pytest

from tests.docs.pages import ROOT

SCREEN = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:45])


class TestFirstScreen:
    @pytest.mark.parametrize("command", ["make demo", "make test"])
    def test_says_how_long_a_command_takes_on_a_slow_machine_too(self, command: str) -> None:
        times = r"about \d+ minutes; up to \d+ minutes on a slow machine"
        assert re.search(rf"^{command} +# .*: {times}$", SCREEN, re.M)

    def test_shows_a_small_picture_and_says_what_is_on_it(self) -> None:
        [(alternative, path)] = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", SCREEN)
        assert len(alternative.split()) > 5
        assert (ROOT / path).stat().st_size < 200_000
