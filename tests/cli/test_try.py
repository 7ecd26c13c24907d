"""`finetune try`. That the answers are those of a job that predicts: tests/inference."""

import hashlib
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli import (
    finished_models,
    inference_process,
    try_answers,
    try_inputs,
    try_model,
)
from service.cli.client import Client
from service.cli.exit_codes import UsageError
from service.cli.try_inputs import Given
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.models import ArtifactRow
from tests.cli.conftest import Cli
from tests.cli.job_rows import end
from tests.support.models import save_tiny_bert

NOTHING = Given([], None, None, None, None)
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Who?"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def inputs(task: str, **given: Any) -> list[try_inputs.Input]:
    return list(try_inputs.source(task, Given(**{**vars(NOTHING), **given})).inputs)


def rows(task: str, **given: Any) -> list[dict[str, Any]]:
    return [each.row for each in inputs(task, **given)]


@pytest.fixture
def classifier(http: httpx.Client, store: Database, home: Path) -> str:
    """A finished job with a model of two classes; its id."""
    spec = {
        "task": "text-classification",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data"},
    }
    job_id = str(http.post("/v1/jobs", json=spec).raise_for_status().json()["id"])
    from transformers import AutoModelForSequenceClassification

    output = Settings(home=home).workspace(job_id) / "attempts/1/output"
    save_tiny_bert(output)
    model = AutoModelForSequenceClassification.from_pretrained(
        output, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}
    )
    model.save_pretrained(output)
    results = {"train": {"output_dir": "attempts/1/output", "weights_sha256": "a" * 64}}
    end(store, job_id, "succeeded", results=results)
    return job_id


class TestCommand:
    def test_answers_on_this_machine(
        self, cli: Cli, classifier: str, home: Path, tmp_path: Path
    ) -> None:
        from transformers import pipeline

        output = Settings(home=home).workspace(classifier) / "attempts/1/output"
        texts = ["the report of the board", "water in the morning"]
        file = tmp_path / "in.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        found = cli("try", classifier, "--input", str(file), "--json")
        assert (found.status, found.err) == (0, "")
        score: Any = pipeline("text-classification", model=str(output), top_k=None, device="cpu")
        for answer, text in zip(found.json_lines(), texts, strict=True):
            expected = {each["label"]: each["score"] for each in score([text])[0]}
            assert answer["input"] == {"text": text}
            assert answer["probabilities"] == pytest.approx(expected, abs=0.01)
            assert answer["prediction"] == max(expected, key=lambda name: expected[name])

    @pytest.mark.parametrize(
        ("arguments", "typed", "words"),
        [
            ((), "", "stdin holds no input"),
            (("the report", " "), "", "input 2: `text` is empty"),
        ],
    )
    def test_what_cannot_be_used_is_named(
        self,
        cli: Cli,
        classifier: str,
        monkeypatch: pytest.MonkeyPatch,
        arguments: tuple[str, ...],
        typed: str,
        words: str,
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        outcome = cli("try", classifier, *arguments)
        assert outcome.status in (1, 2)
        assert words in outcome.err

    def test_a_process_without_rows_says_nothing(self) -> None:
        command = [sys.executable, "-m", "worker.inference"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def test_without_the_packages_of_a_worker(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        really = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "torch" else really(name)
        )
        refused = cli("try", "job-1", "x")
        assert refused.status == 2
        assert "install finetune-service[worker]" in refused.err
        assert "mode: predict" in refused.err

    def test_without_a_model(self, cli: Cli, job_id: str) -> None:
        refused = cli("try", job_id, "--question", "Who?", "--context", "Ada.")
        assert refused.status == 2
        assert f"{job_id} has no finished model: it is queued" in refused.err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["a text"], "--question and --context"),
            (["--question", "q", "--context", "c", "--text-pair", "x"], "--text-pair is for"),
            (["--question", "q", "--context", "c", "--max-new-tokens", "3"], "--max-new-tokens"),
            (["--question", "q", "--context", "c", "--device", "tpu"], "is not cpu, cuda or"),
            (["--question", "q", "--context", "c", "--top-k", "0"], "greater than or equal to 1"),
            (["--question", "q"], "--context is missing"),
        ],
    )
    def test_options_that_the_task_does_not_take(
        self, cli: Cli, job_id: str, arguments: list[str], words: str
    ) -> None:
        refused = cli("try", job_id, *arguments)
        assert (refused.status, refused.out) == (2, "")
        assert words in refused.err


class TestHub:
    def test_is_that_of_the_service(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FINETUNE_HUB_ENDPOINT", "http://mirror.local")
        monkeypatch.setenv("FINETUNE_HUB_TOKEN", "hf_x")
        environment, secrets = inference_process._environment("cpu")
        assert environment["HF_ENDPOINT"] == "http://mirror.local"
        assert secrets["HF_TOKEN"] == "hf_x"
        assert "hf_x" not in environment.values()


class TestFinishedModels:
    def test_the_folder_of_another_user_is_not_used(self) -> None:
        path = f"/{'x' * 300}/job-1"
        assert finished_models._local({"id": "job-1", "result": {"model_path": path}}) is None

    def register(self, store: Database, home: Path, job_id: str, content: bytes) -> None:
        path = Settings(home=home).workspace(job_id) / "attempts/1/files/config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        row = ArtifactRow(
            job_id=job_id,
            name="model/config.json",
            path="attempts/1/files/config.json",
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            created_at=db_now(),
        )
        with store.write() as session:
            session.merge(row)

    def test_downloaded_once_for_each_model(
        self, api: str, store: Database, home: Path, job_id: str
    ) -> None:
        folders = []
        for weights in ("a" * 64, "a" * 64, "b" * 64):
            self.register(store, home, job_id, weights.encode())
            results = {"train": {"output_dir": "elsewhere", "weights_sha256": weights}}
            end(store, job_id, "succeeded", results=results)
            with Client.from_environment() as client:
                found = finished_models.find(client, client.get(f"/v1/jobs/{job_id}"))
            assert (found.folder / "config.json").read_text() == weights
            folders.append(found.folder)
        assert folders[0] == folders[1] != folders[2]
        assert folders[0].is_relative_to(home / "cache")

    def test_at_most_five_are_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(finished_models, "_IN_USE_SECONDS", -1.0)
        for number in range(7):
            finished_models._make_room(tmp_path)
            folder = tmp_path / f"job-{number}"
            folder.mkdir()
            (folder / ".finetune-download.json").touch()
        assert len(list(tmp_path.iterdir())) == 5
        assert (tmp_path / "job-6").is_dir()


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
        message = "rows.jsonl, line 2: `text` is too long; rows.jsonl, line 7"
        assert try_model.with_places(message, given) == (
            f"{file}, line 3: `text` is too long; rows.jsonl, line 7"
        )
        message = "Row 1 of the test split has no [MASK]"
        assert try_model.with_places(message, given) == f"{file}, line 1 has no [MASK]"
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
        source = try_inputs.source("chat", Given(**{**vars(NOTHING), "system": "Be brief."}))
        assert source.is_interactive
        said = []
        for given in source.inputs:
            said.append([turn["content"] for turn in given.row["messages"]])
            if len(said) != 1:  # the first turn could not be answered
                source.answered({"prediction": f"Answer {len(said)}."})
        assert said == [
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

    def test_the_options_of_an_answer(self) -> None:
        task = {"type": "chat", "generate": None}
        assert try_model.changed(task, None, None, None) == task
        assert try_model.changed(task, 7, 0.5, None)["generate"] == {
            "max_new_tokens": 7,
            "do_sample": True,
            "temperature": 0.5,
        }
        own = {"max_new_tokens": 9, "do_sample": True, "temperature": 0.7}
        assert try_model.changed({**task, "generate": own}, None, 0, None)["generate"] == {
            **own,
            "do_sample": False,
        }
        with pytest.raises(UsageError, match="--top-k does not apply to chat"):
            try_model.changed(task, None, None, 3)

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
