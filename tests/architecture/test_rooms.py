"""Folders stay small, and each room of the house has a page that says what lives in it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
WINGS: Final = (
    *("service", "worker", "client", "migrations"),
    *("tests", "chaos", "benchmarks", "scripts", "examples"),
)
MOST_FILES: Final = 20
FLOORS: Final = ("service/contract", "service/store", "service/api", "service/cli")
LINES_OF_A_README: Final = range(10, 21)
_FEWEST_MODULES: Final = 4
_NAMED: Final = re.compile(r"`([\w./]+(?:\.py|/))`")


def python_files() -> list[str]:
    """Those of the repository, by their paths from its root."""
    files = (file for wing in WINGS for file in (ROOT / wing).rglob("*.py"))
    return [file.relative_to(ROOT).as_posix() for file in files]


def crowded(files: Iterable[str]) -> dict[str, int]:
    """Folders with more than MOST_FILES files directly in them, and how many these are."""
    counted = Counter(str(PurePosixPath(file).parent) for file in files)
    return {folder: count for folder, count in counted.items() if count > MOST_FILES}


def rooms(files: Iterable[str]) -> list[str]:
    """The floors of the control plane, and those rooms of the worker that need a guide."""
    places = (PurePosixPath(file) for file in files)
    modules = Counter(
        place.parts[1]
        for place in places
        if place.parts[0] == "worker" and len(place.parts) == 3 and place.name != "__init__.py"
    )
    guided = (f"worker/{room}" for room, count in modules.items() if count >= _FEWEST_MODULES)
    return [*FLOORS, *sorted(guided)]


def faults(room: str, page: str, root: Path = ROOT) -> Mapping[str, object]:
    """What is wrong with the README of a room: its length, and the names that lead nowhere."""
    named = _NAMED.findall(page)
    missing = [
        name for name in named if not any((base / name).exists() for base in (root / room, root))
    ]
    lines = len(page.splitlines())
    found = {"lines": lines not in LINES_OF_A_README and lines, "missing": missing}
    if not named:
        found["names"] = "it does not name any file"
    return {fault: value for fault, value in found.items() if value}


class TestFolders:
    def test_none_is_crowded(self) -> None:
        found = crowded(python_files())
        assert found == {}, f"more than {MOST_FILES} files, so rooms are missing: {found}"

    def test_a_crowded_one_is_named(self) -> None:
        full = [f"service/store/{number}.py" for number in range(MOST_FILES)]
        inner = [f"service/store/jobs/{number}.py" for number in range(MOST_FILES)]
        assert crowded([*full, *inner]) == {}
        assert crowded([*full, *inner, "service/store/more.py"]) == {
            "service/store": MOST_FILES + 1
        }


class TestReadmes:
    def test_each_room_has_a_page_whose_names_exist(self) -> None:
        pages = {room: ROOT / room / "README.md" for room in rooms(python_files())}
        assert [room for room, page in pages.items() if not page.exists()] == []
        found = {room: faults(room, page.read_text()) for room, page in pages.items()}
        assert {room: each for room, each in found.items() if each} == {}

    def test_which_rooms_need_one(self) -> None:
        small = [f"worker/storage/{name}.py" for name in ("__init__", "one", "two", "three")]
        assert rooms(small) == [*FLOORS]
        large = [f"worker/stages/{name}.py" for name in "abcd"]
        assert rooms([*small, *large, "worker/app.py"]) == [*FLOORS, "worker/stages"]

    def test_faults_are_found(self, tmp_path: Path) -> None:
        room = tmp_path / "worker" / "room"
        room.mkdir(parents=True)
        (room / "here.py").touch()
        page = "\n".join(["See `here.py`, `worker/room/` and `gone.py`."] * 10)
        assert faults("worker/room", page, tmp_path) == {"missing": ["gone.py"] * 10}
        assert faults("worker/room", "`here.py`\n", tmp_path) == {"lines": 1}
        assert "names" in faults("worker/room", "\n" * 10, tmp_path)
