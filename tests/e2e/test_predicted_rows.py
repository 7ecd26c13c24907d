"""Rows for the model of every task, through HTTP, broker and worker; and what may go wrong then."""

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from finetune_client import Client

from service.contract.tasks import TASKS
from tests.data.squad_sample import squad_rows
from tests.e2e.stack import BIN, Stack
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_t5
from tests.support.services import wait_until

pytestmark = [
    pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True),
    pytest.mark.timeout(600),
    pytest.mark.long,
    pytest.mark.heavy,
]

Rows = list[dict[str, Any]]
EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
OTHER_SCRIPT: Final = "水道局の報告は、朝に読まれた。"
LONG: Final = "the report of the water board was read by all who were there in the morning. " * 60
PROMPT: Final = LONG[:3000]
"""As long as leaves room for an answer: a longer prompt is refused."""
SQUAD: Final = {"type": "question-answering", "max_seq_length": 128, "doc_stride": 32}
SEQ2SEQ: Final = {"max_source_length": 64, "max_target_length": 8}
TRAINING: Final = {
    "max_steps": 2,
    "save_steps": 1,
    "save_strategy": "steps",
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 2,
    "use_cpu": True,
}


def shortest(path: str, count: int = 8) -> Rows:
    """Rows of an example that a tiny model has positions for."""
    lines = (EXAMPLES / path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in sorted(lines, key=len)[:count]]


def texts() -> Rows:
    lines = (EXAMPLES / "wikitext/train.txt").read_text(encoding="utf-8").splitlines()
    return [{"text": line} for line in lines if len(line) > 100][:8]


def save_t5(folder: Path) -> Path:
    return save_tiny_t5(folder, [LONG])


def save_llama(folder: Path) -> Path:
    return save_tiny_llama(folder, positions=1024)


@dataclass(frozen=True)
class Case:
    task: dict[str, Any]
    model: Callable[[Path], Path]
    rows: Callable[[], Rows]
    asked: Rows
    """One in another script, and one that is longer than the model takes."""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


CASES: Final = {
    "question-answering": Case(
        SQUAD,
        save_tiny_bert,
        lambda: squad_rows("train", "1.1")[:8],
        [
            {"question": "誰が読みましたか", "context": OTHER_SCRIPT},
            {"question": "Who read it?", "context": LONG},
        ],
    ),
    "question-answering v2": Case(
        {**SQUAD, "version_2_with_negative": True},
        save_tiny_bert,
        lambda: squad_rows("train", "2.0")[:8],
        [
            {"question": "誰が読みましたか", "context": OTHER_SCRIPT},
            {"question": "Who read it?", "context": LONG},
        ],
    ),
    "causal-lm": Case(
        {"type": "causal-lm", "block_size": 32, "max_new_tokens": 8},
        save_tiny_gpt2,
        texts,
        [{"text": OTHER_SCRIPT}, {"text": LONG}],
    ),
    "masked-lm": Case(
        {"type": "masked-lm", "max_seq_length": 64},
        save_tiny_bert,
        texts,
        [{"text": f"{OTHER_SCRIPT} [MASK]"}, {"text": f"[MASK] {LONG}"}],
    ),
    "text-classification": Case(
        {"type": "text-classification", "max_seq_length": 64},
        save_tiny_bert,
        lambda: shortest("classification/topics-train.jsonl"),
        [{"text": OTHER_SCRIPT}, {"text": LONG}],
    ),
    "token-classification": Case(
        {"type": "token-classification", "max_seq_length": 64},
        save_tiny_bert,
        lambda: shortest("classification/answers-train.jsonl"),
        [{"tokens": list(OTHER_SCRIPT)}, {"tokens": LONG.split()}],
    ),
    "summarization": Case(
        {"type": "summarization", **SEQ2SEQ},
        save_t5,
        lambda: shortest("seq2seq/summaries-train.jsonl"),
        [{"text": OTHER_SCRIPT}, {"text": LONG}],
    ),
    "translation": Case(
        {"type": "translation", "source_lang": "en", "target_lang": "reversed", **SEQ2SEQ},
        save_t5,
        lambda: shortest("seq2seq/translation-train.jsonl"),
        [{"source": OTHER_SCRIPT}, {"translation": {"en": LONG}}],
    ),
    "chat": Case(
        {"type": "chat", "generate": {"max_new_tokens": 8}},
        save_llama,
        lambda: shortest("gsm8k/chat-train.jsonl"),
        [{"messages": [user(OTHER_SCRIPT)]}, {"prompt": PROMPT}],
    ),
    "preference": Case(
        {"type": "preference", "max_length": 1024, "generate": {"max_new_tokens": 8}},
        save_llama,
        lambda: shortest("gsm8k/preferences-train.jsonl"),
        [{"prompt": OTHER_SCRIPT}, {"prompt": [user(PROMPT)]}],
    ),
    "reward": Case(
        {"type": "reward", "max_length": 1024},
        save_llama,
        lambda: shortest("gsm8k/preferences-train.jsonl"),
        [
            {"prompt": OTHER_SCRIPT, "completion": OTHER_SCRIPT},
            {"prompt": "the report", "completion": PROMPT},
        ],
    ),
}


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> Mapping[Callable[[Path], Path], Path]:
    saves = {case.model for case in CASES.values()}
    return {save: save(tiny_model.parent / f"rows-{save.__name__}") for save in saves}


@pytest.fixture(scope="module")
def trained(
    stack: Stack,
    models: Mapping[Callable[[Path], Path], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, str]:
    """Case → the id of its finished job."""
    folder = tmp_path_factory.mktemp("rows")
    jobs = {}
    for number, (name, case) in enumerate(CASES.items()):
        file = folder / f"{number}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in case.rows()))
        body = {
            "task": case.task,
            "model": {"name_or_path": str(models[case.model])},
            "dataset": {"source": "upload", "train": stack.upload(file)},
            "training": TRAINING,
        }
        jobs[name] = stack.submit(body)
    for job_id in jobs.values():
        stack.finish(job_id)
    return jobs


def predict(stack: Stack, job_id: str, rows: Any, **body: Any) -> httpx.Response:
    given = {"rows": rows, **body}
    return stack.http.post(f"/v1/jobs/{job_id}/predict?wait=60", json=given, timeout=90)


def answered(stack: Stack, job_id: str, rows: Rows, **body: Any) -> dict[str, Any]:
    answer = predict(stack, job_id, rows, **body)
    page: dict[str, Any] = answer.json()
    assert (answer.status_code, page.get("failure")) == (200, None), page
    return page


def tried(stack: Stack, job_id: str, rows: Rows) -> tuple[Rows, str]:
    """What `finetune try` answers, and its notices."""
    done = subprocess.run(
        [str(BIN / "finetune"), "try", job_id, "--input", "-", "--json"],
        input="".join(json.dumps(row) + "\n" for row in rows),
        env=stack.env | {"FINETUNE_URL": stack.url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each.pop("input") for each in found] == rows
    return found, done.stderr


class TestEveryTask:
    def test_the_answers_are_those_of_try(self, stack: Stack, trained: Mapping[str, str]) -> None:
        assert {case.task["type"] for case in CASES.values()} == set(TASKS)
        with ThreadPoolExecutor(1) as pool:
            expected: dict[str, Future[tuple[Rows, str]]] = {
                name: pool.submit(tried, stack, job_id, CASES[name].asked)
                for name, job_id in trained.items()
            }
            for name, job_id in trained.items():
                asked = CASES[name].asked
                page = answered(stack, job_id, asked)
                answers, said = expected[name].result()
                assert page["answers"] == answers, name
                assert all(notice in said for notice in page["notices"]), (name, said)
                assert page["step"] is None
                last = answered(stack, job_id, asked, step="last")
                assert (last["step"], last["answers"]) == (2, answers), name
                if name == "text-classification":
                    earlier = answered(stack, job_id, asked, step=1)
                    assert earlier["step"] == 1
                    assert earlier["answers"] != answers


class TestWhatIsRefused:
    @pytest.mark.parametrize("name", CASES)
    def test_rows_without_their_columns(
        self, stack: Stack, trained: Mapping[str, str], name: str
    ) -> None:
        asked = CASES[name].asked
        for rows in ([*asked, {"other": "x"}], [*asked, {}]):
            refused = predict(stack, trained[name], rows)
            assert refused.status_code == 422, refused.text
            fault = refused.json()["errors"][0]
            assert fault["path"].startswith("rows[2]")
            assert "the row has" in fault["message"]
        for wrong in ([], asked * 51, "rows", ["row"]):
            assert predict(stack, trained[name], wrong).status_code == 422

    def test_what_the_model_cannot_use_is_said_of_the_row(
        self, stack: Stack, trained: Mapping[str, str]
    ) -> None:
        for name, row, words in (
            ("question-answering", {"question": " ", "context": "Ann."}, "`question` is empty"),
            ("chat", {"prompt": LONG}, "the prompt has 1,330 tokens, but only 1,016 leave room"),
        ):
            page = predict(stack, trained[name], [*CASES[name].asked, row]).json()
            assert (page["state"], page["answers"]) == ("failed", None)
            assert page["failure"]["message"].startswith(f"rows[2]: {words}")
            assert page["failure"]["action"] == "Correct the rows, and ask again."

    def test_models_that_do_not_exist(self, stack: Stack, trained: Mapping[str, str]) -> None:
        name = "text-classification"
        job_id, case = trained[name], CASES[name]
        missing = predict(stack, job_id, case.asked, step=7)
        assert (missing.status_code, missing.json()["code"]) == (404, "model_not_found")
        dataset = stack.job(job_id)["spec"]["dataset"]
        body = {
            "mode": "evaluate",
            "task": case.task,
            "model": {"job": job_id},
            "dataset": {"source": "upload", "validation": dataset["train"]},
            "training": {"use_cpu": True},
        }
        evaluated = stack.submit(body)
        stack.finish(evaluated)
        refused = predict(stack, evaluated, case.asked)
        assert refused.status_code == 409
        assert "made no model" in refused.json()["detail"]

    def test_a_conversation_with_a_model_that_writes_no_text(
        self, stack: Stack, trained: Mapping[str, str]
    ) -> None:
        for name, job_id in trained.items():
            body = {"model": job_id, "messages": [user("the report")], "max_tokens": 2}
            answer = stack.http.post("/v1/chat/completions", json=body, timeout=60)
            if name in ("chat", "preference"):
                assert answer.status_code == 200, answer.text
            else:
                assert answer.status_code == 400, answer.text
                assert answer.json()["error"]["message"], name


class TestAttacks:
    def test_the_api_is_killed_while_a_client_waits(
        self, stack: Stack, trained: Mapping[str, str]
    ) -> None:
        """Nothing is lost that had an id, and our client asks again for what had none."""
        job_id, asked = trained["summarization"], CASES["summarization"].asked
        expected = answered(stack, job_id, asked)["answers"]
        answered(stack, trained["masked-lm"], CASES["masked-lm"].asked)  # that takes its place
        first = stack.http.post(f"/v1/jobs/{job_id}/predict?wait=0", json={"rows": asked}).json()
        found: list[Any] = []

        def wait_for_it() -> None:
            with Client(stack.url, max_retries=8) as client:
                found.append(client.jobs.predict(job_id, asked).answers)

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        path = f"/v1/predictions/{first['id']}"
        wait_until(lambda: stack.http.get(path).json()["state"] != "queued", 30, "its claim")
        stack.parts["api"].kill()
        stack.start_part("api", stack.parts["api"].arguments)
        wait_until(stack._answers, 30, "the API")
        wait_until(lambda: stack.http.get(path).json()["state"] == "succeeded", 60, "its end")
        assert stack.http.get(path).json()["answers"] == expected
        waiting.join(60)
        assert found == [expected]

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("LOOP", "takes more than 10 s of computing"),
            ("{{ 'water ' * 1000000 }}", "writes more than 1,00"),
            ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
        ],
    )
    def test_a_hostile_chat_template(
        self,
        stack: Stack,
        models: Mapping[Callable[[Path], Path], Path],
        template: str,
        words: str,
    ) -> None:
        loop = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
        own = save_tiny_llama(models[save_llama].parent / "rows-hostile")
        (own / "chat_template.jinja").write_text(template.replace("LOOP", loop))
        refused = chat(stack, own)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "invalid_prediction"
        assert words in refused.json()["error"]["message"]
        assert chat(stack, models[save_llama]).status_code == 200


def chat(stack: Stack, model: Path) -> httpx.Response:
    body = {"model": str(model), "messages": [user("the report")], "max_tokens": 2}
    return stack.http.post("/v1/chat/completions", json=body, timeout=60)
