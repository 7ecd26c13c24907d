"""Values of YAML 1.2, and documents that are no spec."""

from typing import Any

import pytest

from service.contract.spec_yaml import SpecYamlError, parse


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("2e-5", 2e-5),
            ("1E5", 1e5),
            ("-.5", -0.5),
            ("1.", 1.0),
            (".inf", float("inf")),
            ("-3", -3),
            ("010", 10),
            ("true", True),
            ("null", None),
            ("", None),
            ("no", "no"),
            ("on", "on"),
            ("2024-01-01", "2024-01-01"),
            ("12:30:00", "12:30:00"),
            ("1_000", "1_000"),
            ("'2e-5'", "2e-5"),
            ("große Übung 中文", "große Übung 中文"),
        ],
    )
    def test_are_those_of_json(self, text: str, value: Any) -> None:
        found = parse(f"field: {text}")["field"]
        assert (found, type(found)) == (value, type(value))

    def test_keys_are_text(self) -> None:
        assert parse("on: 1\n2: x\ntrue: y") == {"on": 1, "2": "x", "true": "y"}

    def test_an_anchor_is_repeated_and_merged(self) -> None:
        text = "a: &a {p: 1, q: 2}\nb: {<<: *a, q: 3}\nc: *a"
        assert parse(text) == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}, "c": {"p": 1, "q": 2}}

    def test_a_key_of_a_merge_may_be_given_again_at_any_depth(self) -> None:
        text = "a: &a {p: 1}\nb: {c: &c {<<: *a, p: 2}}\nd: {<<: *c}"
        assert parse(text) == {"a": {"p": 1}, "b": {"c": {"p": 2}}, "d": {"p": 2}}

    def test_an_empty_document_is_null(self) -> None:
        assert parse("# nothing yet\n") is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [1\nb: 2", "line 2, column 2"),
            ("a: b: c", "mapping values are not allowed here at line 1, column 5"),
            ("a: 1\nb: 2\na: 3", "the key 'a' is given twice at line 3, column 1"),
            ("? [1]\n: 2", "a key must be text"),
            ("--- 1\n--- 2", "a single document.*line 2"),
            ("a: \x00", r"the character U\+0000 is not allowed"),
            ("a: &x [*x]", "an alias contains itself"),
            ("[" * 5000, "nested too deeply"),
            ("a: !!python/object:os.system x", "tag.*line 1, column 4"),
            ("a: !!int x", "does not have the type"),
            ("a: !!bool maybe", "does not have the type"),
            ("a: !!int [1]", "expected a scalar node, but found sequence at line 1, column 4"),
            ("a: !!float {b: 1}", "expected a scalar node, but found mapping"),
            ("a: !!map [b, c]", "expected a mapping node, but found sequence"),
            ("a: !!timestamp 2024-01-01", "tag"),
        ],
    )
    def test_say_where_and_why(self, text: str, message: str) -> None:
        with pytest.raises(SpecYamlError, match=message):
            parse(text)

    def test_aliases_do_not_make_a_small_document_large(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
        with pytest.raises(SpecYamlError, match="more than 100,000 values"):
            parse("\n".join(lines))
