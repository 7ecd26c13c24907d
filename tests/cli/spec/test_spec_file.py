from pathlib import Path

import pytest

from service.cli.spec.spec_file import read_spec
from service.cli.terminal.exit_codes import UsageError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
"""300 bytes that stand for ten thousand million values."""


class TestReadSpec:
    def test_yaml_and_json_mean_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("task: question-answering\npriority: 3\n")
        (tmp_path / "a.json").write_text('{"task": "question-answering", "priority": 3}')
        assert read_spec(tmp_path / "a.yaml") == read_spec(tmp_path / "a.json")

    def test_a_number_in_yaml_is_a_number(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("training: {learning_rate: 2e-5}\n")
        assert read_spec(tmp_path / "a.yaml") == {"training": {"learning_rate": 2e-5}}

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.json", '{"a": ', "line 1, column 7: not valid JSON"),
            ("a.yaml", "a: [1\nb: 2", "line 2"),
            ("a.yaml", "- 1", "must hold one mapping"),
            ("a.yaml", "\x00", "cannot be read"),
            ("a.yaml", BOMB, "more than 100,000 values"),
            ("a.yaml", "a: &a\n  b: *a\n", "an alias contains itself"),
            ("a.yaml", "a: &a [*a]\n", "an alias contains itself"),
            ("a.yaml", "a: " + "[" * 5000, "nested"),
            ("a.yaml", "a: " + "[" * 60 + "]" * 60, "nested more than 50 levels"),
            ("a.json", '{"a": ' + "[" * 100_000, "nested"),
            ("a.json", '{"a": ' + "[" * 60 + "]" * 60 + "}", "nested more than 50 levels"),
            ("a.json", '{"a": ' + "1" * 5000 + "}", "cannot be read"),
            ("a.yaml", "a: " + "x" * 1024**2, "larger than 1 MiB"),
            ("a.json", '"' + "x" * 1024**2 + '"', "larger than 1 MiB"),
        ],
    )
    def test_names_the_fault_of_a_file(
        self, tmp_path: Path, name: str, text: str, message: str
    ) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=message):
            read_spec(tmp_path / name)

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
    def test_reads_no_endless_file(self) -> None:
        with pytest.raises(UsageError, match="larger than 1 MiB"):
            read_spec(Path("/dev/zero"))
