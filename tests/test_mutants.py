"""`make mutants`: which changes it makes, to which modules, and whether it sees a test fail."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scripts.mutants import equivalents
from scripts.mutants.__main__ import draw
from scripts.mutants.operators import mutants_of
from scripts.mutants.targets import TARGETS

ROOT = Path(__file__).parents[1]


def changes(source: str) -> set[str]:
    return {mutant.after for mutant in mutants_of("a.py", source)}


class TestOperators:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("x = a < b", {"x = (a <= b)", "x = (a >= b)"}),
            ("x = a == b", {"x = (a != b)"}),
            ("x = a is None", {"x = (a is not None)"}),
            ("x = a in b", {"x = (a not in b)"}),
            ("x = a and b", {"x = (a or b)"}),
            ("x = a - b * c", {"x = (a + b * c)", "x = a - (b / c)"}),
            ("x = not a", {"x = a"}),
            ("x = -a", {"x = a"}),
            ("x += a", {"x -= a"}),
            ("x = 3", {"x = 4"}),
            ("x = True", {"x = False"}),
            ("return False", {"return True"}),
            ("x = min(a, b)", {"x = max(a, b)"}),
            ("x = math.ceil(a)", {"x = math.floor(a)"}),
            ("x = a if b else c", {"x = a if (not b) else c"}),
            ("x = [a for a in b if c]", {"x = [a for a in b if (not c)]"}),
            ("path.unlink()", {"pass"}),
            ("é = 'ü' if a < b else c", {f"é = 'ü' if (a {op} b) else c" for op in ("<=", ">=")}),
        ],
    )
    def test_changes(self, line: str, expected: set[str]) -> None:
        assert changes(line) == expected

    def test_return_and_loops(self) -> None:
        source = """\
            def first(items):
                for item in items:
                    if item:
                        continue
                    break
                return item
            """
        found = mutants_of("a.py", textwrap.dedent(source))
        assert [(mutant.line, mutant.before, mutant.after) for mutant in found] == [
            (3, "if item:", "if (not item):"),
            (4, "continue", "break"),
            (5, "break", "continue"),
            (6, "return item", "return None"),
        ]
        assert found[3].source.endswith("        break\n    return None\n")

    @pytest.mark.parametrize(
        "line",
        [
            'x = "text"',
            'x = f"{a + b}"',
            "def f(a: Literal[1]) -> Literal[2]: pass",
            "@dataclass(frozen=True)\nclass A: pass",
            'log.info("done", ids=ids[:20])',
            "LIMIT = 500",
            "LIMIT: Final = 500",
            "return None",
        ],
    )
    def test_leaves_alone(self, line: str) -> None:
        assert changes(line) == set()

    def test_a_change_over_several_lines_is_shown_as_one(self) -> None:
        [mutant] = mutants_of("a.py", "x = (\n    a\n    and b\n)\n")
        assert (mutant.line, mutant.before, mutant.after) == (2, "a and b", "(a or b)")
        assert mutant.source == "x = (\n    (a or b)\n)\n"


class TestDraw:
    def test_the_same_of_the_same_seed(self) -> None:
        source = "\n".join(f"x = {number}" for number in range(100))
        drawn = [draw("a.py", source, 8, seed) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert len({mutant.line for mutant in drawn[0]}) == 8
        assert len(draw("a.py", source, 0, 1)) == 100


class TestTable:
    def test_every_module_and_test_is_there(self) -> None:
        tests = (test for row in TARGETS.values() for test in row if test.startswith("tests/"))
        named = [*TARGETS, *(test.partition("::")[0] for test in tests)]
        assert [path for path in named if not (ROOT / path).is_file()] == []

    def test_every_class_of_tests_is_there(self) -> None:
        tests = [test for row in TARGETS.values() for test in row if "::" in test]
        for path, *names in (test.split("::") for test in tests):
            source = (ROOT / path).read_text()
            assert [name for name in names if f" {name}" not in source] == [], path

    def test_every_equivalent_is_still_a_mutant(self) -> None:
        known = equivalents.load()
        found = {
            equivalents.key(mutant)
            for path in {path for path, _before, _after in known}
            for mutant in mutants_of(path, (ROOT / path).read_text())
        }
        assert known.keys() - found == set()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A module whose tests notice that 2 is not 3, but not where the limit is."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "numbers_.py").write_text("def f(n):\n    return n * 2 if n > 10 else n\n")
    (folder / "test_numbers.py").write_text(
        "from numbers_ import f\ndef test_f():\n    assert (f(20), f(1)) == (40, 1)\n"
    )
    (folder / ".gitignore").write_text("__pycache__\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def measured(repository: Path, scratch: Path) -> str:
    script = f"""
        from pathlib import Path
        from scripts.mutants.__main__ import measure
        from scripts.mutants.operators import mutants_of
        from scripts.mutants.runner import Tree

        scratch = Path({str(scratch)!r})
        scratch.mkdir()
        tree = Tree(Path({str(repository)!r}), scratch)
        mutants = mutants_of("numbers_.py", (tree.root / "numbers_.py").read_text())
        print(measure(tree, "numbers_.py", ["test_numbers.py"], mutants))
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout + done.stderr


class TestMeasure:
    def test_survivors_are_printed_and_counted(self, repository: Path, tmp_path: Path) -> None:
        """Survivors: a limit of `>= 10`, and one of 11."""
        output = measured(repository, tmp_path / "scratch")
        assert "- return n * 2 if n > 10 else n\n  + return n * 2 if (n >= 10) else n\n" in output
        assert "+ return n * 2 if n > 11 else n\n" in output
        assert output.splitlines()[-1] == "4 of 6 killed: 66.7 %"
        assert "n > 10" in (repository / "numbers_.py").read_text()

    def test_tests_that_fail_by_themselves_are_no_measure(
        self, repository: Path, tmp_path: Path
    ) -> None:
        (repository / "numbers_.py").write_text("def f(n):\n    return 0\n")
        output = measured(repository, tmp_path / "scratch")
        assert "numbers_.py: its tests fail without any change" in output
