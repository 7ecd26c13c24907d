import pytest

from service.cli.terminal import output

PROBLEM = {
    "status": 422,
    "code": "invalid_spec",
    "title": "Invalid spec: 2 errors",
    "detail": "`errors` lists each with its path and what is allowed there.",
    "errors": [
        {
            "path": "training.learning_rte",
            "message": "unknown field",
            "suggestion": "learning_rate",
        },
        {"path": "", "message": "bf16 and fp16 exclude each other", "suggestion": None},
    ],
}


class TestShowProblem:
    def test_each_fault_with_path_message_and_suggestion(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output.show_problem(PROBLEM)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [
            "Invalid spec: 2 errors (422, invalid_spec)",
            "  training.learning_rte: unknown field; did you mean `learning_rate`?",
            "  the request: bf16 and fp16 exclude each other",
        ]


class TestPrintTable:
    def test_a_long_cell_is_neither_cut_nor_folded(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output.print_table(("id", "data"), [{"id": "job-1", "data": "x" * 300}])
        assert capsys.readouterr().out.splitlines()[1].rstrip() == "job-1  " + "x" * 300

    def test_columns_in_order_and_blanks_for_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        output.print_table(("id", "n"), [{"id": "a", "n": None}, {"id": "b", "n": 1.5}])
        assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
            ["id", "n"],
            ["a"],
            ["b", "1.5"],
        ]
