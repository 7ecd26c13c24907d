"""Values of YAML 1.2, and documents that are not a spec."""

from typing import Any

import pytest

from service.contract.spec.spec_yaml import SpecYamlError, parse


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
            (
                "a: b: c",
                r"^line 1, column 5: a `:` that is not expected: put text that holds `: ` in",
            ),
            (
                "a: 1\nb: 2\na: 3",
                "^line 3, column 1: the key 'a' is given twice: keep one of them$",
            ),
            ("? [1]\n: 2", "a key must be text"),
            (
                "--- 1\n--- 2",
                "^line 2, column 1: a second document begins: give each a file of its own$",
            ),
            ("a: \x00", r"^line 1, column 4: the character U\+0000 is not allowed: remove it$"),
            ("a: &x [*x]", "an alias contains itself"),
            ("[" * 5000, "nested too deeply"),
            (
                "a: !!python/object:os.system x",
                "^line 1, column 4: `!!python/object:os.system` is not a known tag: put text that",
            ),
            ("a: !!int x", "^line 1, column 4: the value does not have the type that its tag"),
            ("a: !!bool maybe", "does not have the type"),
            ("a: !!int [1]", "^line 1, column 4: the value does not have the type"),
            ("a: !!float {b: 1}", "the value does not have the type"),
            ("a: !!map [b, c]", "the value does not have the type"),
            ("a: !!timestamp 2024-01-01", "`!!timestamp` has no value in JSON: write it as text"),
        ],
    )
    def test_say_where_and_why(self, text: str, message: str) -> None:
        with pytest.raises(SpecYamlError, match=message):
            parse(text)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [1\nb: 2", "line 2, column 2: before this, the `[` of line 1, column 4 needs a"),
            ("a: {x: 1\nb: 2", "line 2, column 2: before this, the `{` of line 1, column 4 needs"),
            ('a: "x\nb: 2', "line 2, column 5: the quotation mark of line 1, column 4 is never"),
            ("a:\n\tb: 1", "line 2, column 1: a tab: indent with spaces alone"),
            ("a: @x", "line 1, column 4: put text that begins with '@' in quotation marks"),
            ("a:\n    b: 2\n  c: 3", "line 3, column 3: the indentation fits nothing above"),
            ("a: 1\n- b", "line 2, column 1: an entry of a list among the keys of an object"),
            ("- b\na: 1", "line 2, column 1: a key among the entries of a list"),
            ("a: 'it's'", "line 1, column 8: something follows a value that has ended"),
            ('a: "C:\\data"', "line 1, column 8: in double quotation marks `\\`"),
            ("a: *x", "line 1, column 4: `*x` repeats a value, and none before it is named `&x`"),
            ("a: !x y", "line 1, column 4: `!x` is not a known tag"),
            ("a: |x\n b", "line 1, column 5: something follows `|` or `>`"),
            ("a: [1,,2]", "line 1, column 7: a value is missing before `,`"),
            ("a: " + "9" * 5000, "line 1, column 4: the number has too many digits"),
        ],
    )
    def test_no_word_of_the_parser_shows(self, text: str, message: str) -> None:
        with pytest.raises(SpecYamlError) as raised:
            parse(text)
        assert str(raised.value).startswith(message)
        for word in ("token", "scalar", "mapping", "<", "alias", "stream", "yaml.org"):
            assert word not in str(raised.value)

    def test_aliases_do_not_make_a_small_document_large(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
        with pytest.raises(SpecYamlError, match="more than 100,000 values"):
            parse("\n".join(lines))
