"""What a user types behind `--set`, and the spec that comes of it."""

from typing import Any

import pytest

from service.cli.spec.overrides import changed, merge_patch
from service.cli.terminal.exit_codes import UsageError


class TestMergePatch:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("2e-5", 2e-5),
            (".5", 0.5),
            ("+1", 1),
            ("true", True),
            ("null", None),
            ("", ""),
            ("1_000", "1_000"),
            ("2024-01-01", "2024-01-01"),
            ('"123"', "123"),
            ('["a", "b"]', ["a", "b"]),
            ("[./a.jsonl, ./b.jsonl]", ["./a.jsonl", "./b.jsonl"]),
            ("{text: body, label: stars}", {"text": "body", "label": "stars"}),
            ("[1e-4, no]", [1e-4, "no"]),
            ("summarize: ", "summarize: "),
            ("a=b", "a=b"),
            ("[draft] v2", "[draft] v2"),
            ("Größe 中文", "Größe 中文"),
        ],
    )
    def test_the_value_is_json_a_flow_of_yaml_or_text(self, text: str, value: Any) -> None:
        assert merge_patch([f"a.b={text}"]) == {"a": {"b": value}}

    def test_a_name_with_a_dot_is_quoted(self) -> None:
        assert merge_patch(['metadata."team.eu"=x', "metadata.b=y"]) == {
            "metadata": {"team.eu": "x", "b": "y"}
        }

    @pytest.mark.parametrize("change", ["a", "=1", ".a=1", "a.=1", "a..b=1", 'a."=1'])
    def test_refuses_what_is_not_a_field_with_a_value(self, change: str) -> None:
        with pytest.raises(UsageError, match="is not FIELD=VALUE"):
            merge_patch([change])

    def test_refuses_a_list_that_cannot_be_read(self) -> None:
        with pytest.raises(UsageError, match=r"the value cannot be read: line 1, column \d+: "):
            merge_patch(["a=[x: ]]"])

    def test_refuses_a_field_in_a_value(self) -> None:
        with pytest.raises(UsageError, match="was set before"):
            merge_patch(["a=1", "a.b=2"])


class TestChanged:
    def test_a_section_that_is_given_as_its_type_keeps_it(self) -> None:
        spec = {"task": "question-answering", "resources": {"strategy": "fsdp"}}
        patch = merge_patch(["task.max_seq_length=128", "resources.strategy.cpu_offload=true"])
        assert changed(spec, patch) == {
            "task": {"type": "question-answering", "max_seq_length": 128},
            "resources": {"strategy": {"type": "fsdp", "cpu_offload": True}},
        }

    def test_the_same_in_a_search(self) -> None:
        spec = {"job": {"task": "chat"}, "sampler": "random", "best": "refit", "space": {}}
        patch = merge_patch(
            [
                "job.task.packing=true",
                "sampler.seed=3",
                "best.set.name=x",
                'space."training.learning_rate".low=1e-5',
            ]
        )
        assert changed(spec, patch) == {
            "job": {"task": {"type": "chat", "packing": True}},
            "sampler": {"name": "random", "seed": 3},
            "best": {"action": "refit", "set": {"name": "x"}},
            "space": {"training.learning_rate": {"low": 1e-5}},
        }

    def test_null_takes_a_field_out_and_the_rest_stays(self) -> None:
        spec = {"training": {"seed": 1, "max_steps": 2}, "name": "x"}
        assert changed(spec, merge_patch(["training.seed=null", "hub=null"])) == {
            "training": {"max_steps": 2},
            "name": "x",
        }
        assert spec == {"training": {"seed": 1, "max_steps": 2}, "name": "x"}
