from pathlib import Path

import pytest

from service.cli.exit_codes import UsageError
from service.cli.spec_file import read_spec


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
            ("a.json", '{"a": ', "line 1 column"),
            ("a.yaml", "a: [1\nb: 2", "line 2"),
            ("a.yaml", "- 1", "must hold one mapping"),
            ("a.yaml", "\x00", "cannot be read"),
        ],
    )
    def test_names_the_fault_of_a_file(
        self, tmp_path: Path, name: str, text: str, message: str
    ) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=message):
            read_spec(tmp_path / name)
