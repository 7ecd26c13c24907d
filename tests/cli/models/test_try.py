"""`finetune try`; a thread is the worker. That the answers are those of a job that predicts:
tests/inference."""

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service.cli.models import try_answers, try_inputs, try_model, try_text
from service.cli.models.try_inputs import InputOptions
from service.cli.terminal import output
from service.cli.terminal.exit_codes import UsageError
from service.contract.failures import Failure, FailureCode
from service.contract.interactive.predictions import Choice, PredictionResult, Usage
from service.store.database import Database
from service.store.tables.interactive import PredictionRow
from tests.cli.conftest import Cli
from tests.support.store.job_rows import finished_job
from tests.support.store.predictions import answered_by_thread
from tests.support.store.previews import register_worker

NOTHING = InputOptions([], None, None, None, None)
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Who?"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def inputs(task: str, **given: Any) -> list[try_inputs.Input]:
    return list(try_inputs.source(task, InputOptions(**{**vars(NOTHING), **given})).inputs)


def rows(task: str, **given: Any) -> list[dict[str, Any]]:
    return [each.row for each in inputs(task, **given)]


CHAT: dict[str, Any] = {"task": {"type": "chat"}}
CLASSES: dict[str, Any] = {"task": "text-classification"}
PREDICTED = [{"prediction": "good", "probabilities": {"bad": 0.25, "good": 0.75}}]
WRITTEN = PredictionResult(
    choices=[Choice(text="Ann wrote it.", finish_reason="stop")],
    usage=Usage(prompt_tokens=1, completion_tokens=3),
)


@pytest.fixture
def worker(store: Database) -> None:
    register_worker(store)


@pytest.mark.usefixtures("api")
class TestRows:
    @pytest.fixture
    def classifier(self, store: Database) -> str:
        """The id of its job."""
        return finished_job(store, spec=CLASSES)

    @pytest.mark.usefixtures("worker")
    def test_the_answer_is_the_service_s(
        self, cli: Cli, classifier: str, store: Database, tmp_path: Path
    ) -> None:
        file = tmp_path / "in.jsonl"
        file.write_text(json.dumps({"text": "fine"}))
        with answered_by_thread(store, PredictionResult(answers=PREDICTED, notices=["cut"])):
            shown = cli("try", classifier, "fine")
            found = cli("try", classifier, "--input", str(file), "--json")
        assert (shown.status, shown.err) == (0, "cut\n")
        assert shown.out.splitlines() == ["good", "  good  0.750", "  bad   0.250"]
        assert found.json_lines() == [{"input": {"text": "fine"}, **PREDICTED[0]}]

    @pytest.mark.usefixtures("worker")
    def test_an_input_that_the_model_cannot_use_is_named(
        self, cli: Cli, classifier: str, store: Database
    ) -> None:
        failure = Failure.from_code(
            FailureCode.UNREADABLE_ROW, "rows[1]: `text` is empty", action="Correct the rows."
        )
        with answered_by_thread(store, failure):
            outcome = cli("try", classifier, "the report", " ")
        assert (outcome.status, outcome.out) == (1, "")
        assert "input 2: `text` is empty Correct the rows." in outcome.err

    def test_a_line_without_the_column_is_named(
        self, cli: Cli, classifier: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "in.jsonl"
        file.write_text('{"text": "a"}\n\n{"txt": "b"}\n')
        outcome = cli("try", classifier, "--input", str(file))
        assert (outcome.status, outcome.out) == (2, "")
        assert f"{file}, line 3.text: required" in outcome.err

    def test_it_says_what_it_waits_for(
        self, cli: Cli, classifier: str, store: Database, noted_why: threading.Event
    ) -> None:
        with answered_by_thread(store, PredictionResult(answers=PREDICTED), after=noted_why):
            outcome = cli("try", classifier, "fine")
        assert outcome.status == 0
        assert outcome.err.count("No live worker answers predictions") == 1

    def test_a_person_is_asked_again(
        self, cli: Cli, classifier: str, monkeypatch: pytest.MonkeyPatch, store: Database
    ) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("one\ntwo\n"))
        register_worker(store)
        failure = Failure.from_code(FailureCode.UNREADABLE_ROW, "rows[0]: bad")
        with answered_by_thread(store, failure):
            outcome = cli("try", classifier)
        assert (outcome.status, outcome.err.count("the input: bad")) == (0, 2)

    def test_without_a_model(self, cli: Cli, job_id: str) -> None:
        refused = cli("try", job_id, "--question", "Who?", "--context", "Ada.")
        assert refused.status == 2
        assert "queued" in refused.err

    def test_nothing_on_stdin(
        self, cli: Cli, classifier: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        outcome = cli("try", classifier)
        assert (outcome.status, "stdin holds no input" in outcome.err) == (2, True)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["a text"], "--question and --context"),
            (["--question", "q", "--context", "c", "--text-pair", "x"], "--text-pair is for"),
            (["--question", "q", "--context", "c", "--max-new-tokens", "3"], "--max-new-tokens"),
            (["--max-new-tokens", "0"], "greater than or equal to 1"),
            (["--question", "q"], "--context is missing"),
        ],
    )
    def test_options_that_the_task_does_not_take(
        self, cli: Cli, job_id: str, arguments: list[str], words: str
    ) -> None:
        refused = cli("try", job_id, *arguments)
        assert (refused.status, refused.out) == (2, "")
        assert words in refused.err


@pytest.mark.usefixtures("api")
class TestTexts:
    @pytest.fixture
    def chat(self, store: Database) -> str:
        """The id of a job with a model that answers conversations."""
        return finished_job(store, spec=CHAT)

    @pytest.mark.usefixtures("worker")
    def test_a_conversation_is_streamed(
        self, cli: Cli, chat: str, monkeypatch: pytest.MonkeyPatch, store: Database
    ) -> None:
        printed: list[str] = []
        monkeypatch.setattr(output, "print_text", printed.append)
        monkeypatch.setattr(sys, "stdin", Terminal("Who?\nWhen?\n"))
        with answered_by_thread(store, WRITTEN, texts=(["Ann"], ["Ann wrote"])):
            outcome = cli("try", chat, "--system", "Be brief.")
        assert outcome.status == 0
        assert [piece for piece in printed if piece] == 2 * ["Ann", " wrote", " it.", "\n"]
        with store.read() as session:
            rows = session.scalars(select(PredictionRow).order_by(PredictionRow.id)).all()
        asked = [row.request["input"]["messages"] for row in rows]
        answer = {"role": "assistant", "content": "Ann wrote it."}
        assert asked == [
            [SYSTEM, USER],
            [SYSTEM, USER, answer, {"role": "user", "content": "When?"}],
        ]
        options = rows[0].request["options"]
        assert (options["temperature"], options["max_new_tokens"]) == (0, 256)

    @pytest.mark.usefixtures("worker")
    def test_the_options_of_a_call(self, cli: Cli, store: Database) -> None:
        job_id = finished_job(store, spec={"task": {"type": "causal-lm"}})
        with answered_by_thread(store, WRITTEN):
            given = ("--temperature", "0.5", "--max-new-tokens", "7", "--json")
            outcome = cli("try", job_id, "Who?", *given)
        assert outcome.json() == {"input": {"text": "Who?"}, "prediction": "Ann wrote it."}
        with store.read() as session:
            asked = session.scalars(select(PredictionRow)).one().request
        assert asked["input"] == {"kind": "completion", "prompt": "Who?"}
        options = asked["options"]
        assert (options["temperature"], options["max_new_tokens"]) == (0.5, 7)

    def test_the_options_of_its_job(self) -> None:
        own = {"max_new_tokens": 9, "do_sample": True, "temperature": 0.7, "top_k": 5}
        task = {"type": "chat", "generate": own}
        sampled = {"temperature": 0.7, "max_tokens": 9, "top_k": 5}
        assert try_text.options(task, None, None) == sampled
        assert try_text.options(task, 7, 0) == {**sampled, "temperature": 0, "max_tokens": 7}
        lm = {"type": "causal-lm", "max_new_tokens": 30, "generation": None}
        assert try_text.options(lm, None, None) == {"temperature": 0, "max_tokens": 30}

    @pytest.mark.usefixtures("worker")
    def test_lines_are_rows_unless_there_are_options(
        self, cli: Cli, chat: str, monkeypatch: pytest.MonkeyPatch, store: Database
    ) -> None:
        row = json.dumps({"prompt": "Who?"})
        monkeypatch.setattr(sys, "stdin", io.StringIO(row))
        with answered_by_thread(store, PredictionResult(answers=[{"prediction": "Ann"}])):
            assert cli("try", chat).out == "Ann\n"
        monkeypatch.setattr(sys, "stdin", io.StringIO(row))
        outcome = cli("try", chat, "--temperature", "1")
        assert outcome.status == 2
        assert "stdin, line 1: --max-new-tokens and --temperature need a list" in outcome.err

    def test_without_a_worker(self, cli: Cli, chat: str) -> None:
        outcome = cli("try", chat, "Who?", "When?")
        assert (outcome.status, outcome.out) == (3, "")
        assert "No live worker answers predictions: start one with" in outcome.err
        assert "(503, no_worker)" in outcome.err

    @pytest.mark.usefixtures("worker")
    def test_a_failure_in_the_stream(self, cli: Cli, chat: str, store: Database) -> None:
        failure = Failure.from_code(
            FailureCode.SEQUENCE_TOO_LONG, "Too long.", action="Shorten it."
        )
        with answered_by_thread(store, failure, texts=(["Ann"],)):
            outcome = cli("try", chat, "Who?", "When?")
        assert (outcome.status, outcome.out) == (1, "> Who?\nAnn\n")
        assert "Too long. Shorten it." in outcome.err


@pytest.mark.usefixtures("processes")
def test_neither_torch_nor_transformers_is_loaded(api: str, store: Database) -> None:
    job_id = finished_job(store, spec=CLASSES)
    register_worker(store)
    code = (
        "import sys; from service.cli.app import main\n"
        f"sys.argv = ['finetune', 'try', {job_id!r}, 'fine']\n"
        "try: main()\n"
        "finally: print({'torch', 'transformers', 'datasets', 'worker'} & set(sys.modules))"
    )
    with answered_by_thread(store, PredictionResult(answers=PREDICTED)):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


class TestInputs:
    def test_of_options(self) -> None:
        asked = {"question": "Who?", "context": "Ada."}
        assert rows("question-answering", **asked) == [asked]
        assert rows("text-classification", texts=["a", "b"], text_pair="c") == [
            {"text": "a", "text_pair": "c"},
            {"text": "b", "text_pair": "c"},
        ]
        assert rows("translation", texts=["a"]) == [{"source": "a"}]
        tokens = ["Ada", "didn't", "go", "to", "St", ".", "Ives", ",", "Cornwall", "."]
        text = "Ada didn't go to St. Ives, Cornwall."
        assert rows("token-classification", texts=[text]) == [{"tokens": tokens}]

    def test_of_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "a"}\n\nplain text\n'))
        assert rows("causal-lm") == [{"text": "a"}, {"text": "plain text"}]
        monkeypatch.setattr(sys, "stdin", io.StringIO("{]\n"))
        with pytest.raises(UsageError, match="stdin, line 1 is not valid JSON"):
            rows("causal-lm", file="-")
        monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
        with pytest.raises(UsageError, match="is not a JSON object"):
            rows("question-answering")
        with pytest.raises(UsageError, match="cannot read"):
            rows("causal-lm", file="/nowhere.jsonl")

    def test_options_complete_the_lines(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        file = tmp_path / "asked.txt"
        file.write_text('\ufeffWho?\n{"question": "Where?", "context": "Rome."}\n')
        assert rows("question-answering", context="Ada.", file=str(file)) == [
            {"question": "Who?", "context": "Ada."},
            {"question": "Where?", "context": "Rome."},
        ]
        monkeypatch.setattr(sys, "stdin", io.StringIO('a\n{"text": "b"}\n'))
        assert rows("text-classification", text_pair="c") == [
            {"text": "a", "text_pair": "c"},
            {"text": "b", "text_pair": "c"},
        ]

    def test_each_has_the_place_where_it_was_given(self, tmp_path: Path) -> None:
        file = tmp_path / "in.txt"
        file.write_text("a\n\nb\n")
        given = inputs("causal-lm", file=str(file))
        assert [each.place for each in given] == [f"{file}, line 1", f"{file}, line 3"]
        message = "rows[1]: `text` is too long; rows[6]"
        assert try_model.with_places(message, given) == (
            f"{file}, line 3: `text` is too long; rows[6]"
        )
        assert [each.place for each in inputs("causal-lm", texts=["a", "b"])] == [
            "input 1",
            "input 2",
        ]

    @pytest.mark.parametrize("content", [b"caf\xe9\n", b'{"text": "\\ud800"}\n'])
    @pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
    def test_what_is_not_unicode_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, errors: str
    ) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors=errors)
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(UsageError, match=r"stdin.* is not UTF-8 text"):
            rows("causal-lm")
        (tmp_path / "in.txt").write_bytes(content)
        with pytest.raises(UsageError, match=r"in\.txt.* is not UTF-8 text"):
            rows("causal-lm", file=str(tmp_path / "in.txt"))

    def test_of_a_person(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("Ada wrote it.\nWho?\n\nWhat?\n"))
        source = try_inputs.source("question-answering", NOTHING)
        assert source.is_interactive
        context = "Ada wrote it."
        assert [each.row for each in source.inputs] == [
            {"question": "Who?", "context": context},
            {"question": "What?", "context": context},
        ]


class TestConversations:
    def test_a_text_is_a_turn_of_the_user(self) -> None:
        assert rows("chat", texts=["Who?"]) == [{"messages": [USER]}]
        assert rows("chat", texts=["Who?"], system="Be brief.") == [{"messages": [SYSTEM, USER]}]

    def test_lines_may_be_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = [{"role": "system", "content": "Rhyme."}, USER]
        given = [{"messages": [USER]}, {"messages": own}]
        lines = [*map(json.dumps, given), "Who?"]
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        first = {"messages": [SYSTEM, USER]}
        assert rows("chat", system="Be brief.") == [first, {"messages": own}, first]

    @pytest.mark.parametrize(
        ("task", "row", "column"),
        [("chat", {"prompt": "Who?"}, "messages"), ("preference", {"prompt": "Who?"}, "prompt")],
    )
    def test_a_row_that_has_no_place_for_the_system_s_turn(
        self, monkeypatch: pytest.MonkeyPatch, task: str, row: dict[str, str], column: str
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(row)))
        problem = f"stdin, line 1: --system needs a list of turns in `{column}`"
        with pytest.raises(UsageError, match=problem):
            rows(task, system="Be brief.")
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(row)))
        assert rows(task) == [row]

    def test_it_continues_until_an_empty_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("Who?\nWho?\nWhen?\n\nWhere?\n"))
        source = try_inputs.source("chat", InputOptions(**{**vars(NOTHING), "system": "Be brief."}))
        assert source.is_interactive
        turns = []
        for given in source.inputs:
            turns.append([turn["content"] for turn in given.row["messages"]])
            if len(turns) != 1:  # the first turn could not be answered
                source.answered({"prediction": f"Answer {len(turns)}."})
        assert turns == [
            ["Be brief.", "Who?"],
            ["Be brief.", "Who?"],
            ["Be brief.", "Who?", "Answer 2.", "When?"],
            ["Be brief.", "Where?"],
        ]

    def test_a_model_of_preferences_answers_a_prompt(self) -> None:
        assert rows("preference", texts=["Who?"]) == [{"prompt": [USER]}]
        assert rows("preference", texts=["Who?"], system="Be brief.") == [
            {"prompt": [SYSTEM, USER]}
        ]

    def test_a_reward_is_of_a_row(self) -> None:
        with pytest.raises(UsageError, match="reward scores conversations"):
            rows("reward", texts=["Who?"])

    def test_the_title_is_the_last_turn(self) -> None:
        last = {"role": "user", "content": "And when?"}
        assert try_inputs.title({"messages": [USER, last]}) == "And when?"
        assert try_inputs.title({"prompt": [USER]}) == "Who?"
        assert try_inputs.title({"instruction": "Name her.", "input": "x"}) == "Name her."
        assert try_inputs.title({"messages": []}) == "{'messages': []}"

    def test_the_option_of_other_tasks(self) -> None:
        with pytest.raises(UsageError, match="--system is for chat, preference, not for causal-lm"):
            rows("causal-lm", texts=["a"], system="Be brief.")


class TestAnswers:
    @pytest.mark.parametrize(
        ("task", "answer", "lines"),
        [
            ("question-answering", {"prediction": "Ada", "probability": 0.925}, ["Ada  (0.93)"]),
            ("question-answering", {"prediction": "", "probability": None}, ["(no answer)"]),
            (
                "text-classification",
                {"prediction": "good", "probabilities": {"bad": 0.25, "good": 0.75}},
                ["good", "  good  0.750", "  bad   0.250"],
            ),
            (
                "text-classification",
                {"prediction": [], "probabilities": {"a": 0.25}},
                ["(no label)", "  a  0.250"],
            ),
            ("text-classification", {"prediction": 0.123456789}, ["0.123457"]),
            (
                "token-classification",
                {
                    "tokens": ["Ada", "Lovelace", "saw", "Paris", "Rome"],
                    "prediction": ["B-PER", "I-PER", "O", "B-LOC", "B-LOC"],
                    "probabilities": [0.9, 0.8, 0.7, 0.6, 0.5],
                },
                [
                    "Ada Lovelace  PER  0.800",
                    "Paris         LOC  0.600",
                    "Rome          LOC  0.500",
                ],
            ),
            (
                "token-classification",
                {"tokens": ["go", "x"], "prediction": ["VERB", None], "probabilities": [0.9, None]},
                ["go  VERB  0.900", "x   "],
            ),
            (
                "token-classification",
                {"tokens": ["go"], "prediction": ["O"], "probabilities": [0.9]},
                ["(nothing found)"],
            ),
            (
                "masked-lm",
                {"masks": [[{"score": 0.5, "token_str": " board", "token": 3}]]},
                ["  0.500  board"],
            ),
            ("causal-lm", {"prompt": "a", "prediction": " b"}, [" b"]),
            ("chat", {"prediction": "Yes.\nNo."}, ["Yes.", "No."]),
            ("reward", {"reward": -0.25}, ["-0.2500"]),
            (
                "reward",
                {"chosen_reward": 1.5, "rejected_reward": -2.0},
                ["chosen_reward    1.5000", "rejected_reward  -2.0000"],
            ),
        ],
    )
    def test_as_lines(self, task: str, answer: dict[str, Any], lines: list[str]) -> None:
        assert list(try_answers.lines(task, answer)) == lines
