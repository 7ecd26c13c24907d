"""Answers that evaluations generate, and `mode: predict`."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from service.contract.failures import FailureCode, StageError
from service.contract.tasks.chat import ChatSpec
from tests.support.models import save_tiny_llama
from tests.tasks.chat.jobs import ROWS, Row, chat_job, notices, talk
from tests.training.support.jobs import fails_with
from worker.tasks.chat import answers

END, END_OF_TURN = 0, 2
GENERATE: dict[str, Any] = {"max_new_tokens": 12, "samples": 2}


class Written:
    """What a finished model writes, found by transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)

    def answer(self, row: Row) -> str:
        given = self.tokenizer.apply_chat_template(
            row["messages"][:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        tokens = self.model.generate(**given, max_new_tokens=12, do_sample=False, pad_token_id=0)
        new = tokens[0, given["input_ids"].shape[1] :]
        return str(self.tokenizer.decode(new, skip_special_tokens=True))


def same_answers(count: int) -> list[Row]:
    """The model learns to say one thing."""
    return [talk(f"the report {number}", "was read #### 7") for number in range(count)]


class TestEvaluation:
    def test_samples_are_what_the_published_model_says(self, tmp_path: Path) -> None:
        splits = {"validation": ROWS[:5]}
        options = {"per_device_eval_batch_size": 2, "max_steps": 3}
        job = chat_job(tmp_path / "job", splits=splits, training=options, generate=GENERATE)
        result, _ = job.train()
        written = Written(job.output(result))
        assert written.model.generation_config.eos_token_id == [END, END_OF_TURN]
        assert [sample["row"] for sample in result.samples] == [1, 3]
        for sample in result.samples:
            row = ROWS[sample["row"] - 1]
            assert sample == {
                "row": sample["row"],
                "prompt": row["messages"][0]["content"],
                "reference": row["messages"][1]["content"],
                "prediction": written.answer(row),
            }
        assert "eval_exact_match" not in result.metrics

    def test_exact_match(self, tmp_path: Path) -> None:
        """It learns to say 7, which is right for two of three rows that have a result."""
        rows = same_answers(32)
        wrong, none = talk("the report 1", "was read #### 8"), talk("the report 2", "was read")
        generate = {**GENERATE, "exact_match": r"#### (\d+)"}
        job = chat_job(
            tmp_path / "job",
            rows,
            {"max_steps": 40},
            {"validation": [rows[0], wrong, rows[1], none]},
            generate=generate,
        )
        result, _ = job.train()
        assert result.metrics["eval_exact_match"] == pytest.approx(2 / 3)
        messages = [each for each in notices(job) if "exact_match" in each]
        assert "1 of 4 rows of the validation split do not count" in messages[0]
        assert "(rows 4)" in messages[0]
        found = job.predictions()
        results = [("7", "7"), ("7", "8"), ("7", "7")]
        assert [(row["result"], row["expected"]) for row in found[:3]] == results
        assert "prediction" not in found[3]
        assert found[0]["prediction"] == "was read #### 7"

    def test_only_some_rows_are_answered(self, tmp_path: Path) -> None:
        generate = {**GENERATE, "exact_match": "report", "max_samples": 2, "samples": 1}
        rows = [talk("the report", "the report was read") for _ in range(8)]
        job = chat_job(tmp_path / "job", rows, splits={"validation": rows}, generate=generate)
        result, _ = job.train()
        found = job.predictions()
        assert [row["row"] for row in found if "prediction" in row] == [1, 5]
        assert [sample["row"] for sample in result.samples] == [1]

    def test_an_expression_that_no_answer_has(self, tmp_path: Path) -> None:
        generate = {**GENERATE, "exact_match": "nothing"}
        job = chat_job(tmp_path / "job", splits={"validation": ROWS[:3]}, generate=generate)
        with pytest.raises(StageError, match="matches no answer of the validation split's own"):
            job.prepare()

    def test_an_expression_that_takes_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("worker.tasks.chat.exact_match._SECONDS", 0.1)
        splits = {"validation": [ROWS[0], talk("the report", "x" * 60)]}
        generate = {**GENERATE, "exact_match": r"(?:x|xx)+[yz]|\d"}
        job = chat_job(tmp_path / "job", splits=splits, generate=generate)
        words = "takes too long to match the answer of row 2 of the validation split"
        with fails_with(FailureCode.INVALID_OPTION, words):
            job.prepare()

    def test_prompts_without_room_for_an_answer(self, tmp_path: Path) -> None:
        generate = {**GENERATE, "max_new_tokens": 92}
        job = chat_job(tmp_path / "job", splits={"validation": ROWS[:4]}, generate=generate)
        result, _ = job.train()
        (message,) = [each for each in notices(job) if "get no answer" in each]
        assert "1 of 4 rows of the validation split get no answer" in message
        assert "have room for 36 tokens (rows 4)" in message
        assert [sample["row"] for sample in result.samples] == [1, 2]

    def test_no_row_that_can_be_scored(self, tmp_path: Path) -> None:
        generate = {"max_new_tokens": 120, "exact_match": "#### (.*)"}
        job = chat_job(tmp_path / "job", splits={"validation": ROWS[:4]}, generate=generate)
        with pytest.raises(StageError, match=r"leaves no prompt .* at most 8 tokens") as raised:
            job.prepare()
        assert raised.value.failure.details["option"] == "task.generate.max_new_tokens"

    def test_no_room_for_any_prompt(self, tmp_path: Path) -> None:
        job = chat_job(
            tmp_path / "job", splits={"validation": ROWS[:4]}, generate={"max_new_tokens": 128}
        )
        with fails_with(FailureCode.INVALID_OPTION, "leaves no room for a prompt"):
            job.prepare()


class TestPredict:
    def job(self, tmp_path: Path, rows: list[Row], **generate: Any) -> Any:
        generate = {"max_new_tokens": 12, **generate}
        job = chat_job(tmp_path / "job", splits={"test": rows}, generate=generate)
        del job.body["dataset"]["train"]
        job.body |= {"mode": "predict"}
        job.body["training"] = {"use_cpu": True, "bf16": False, "per_device_eval_batch_size": 2}
        return job

    def test_every_row_is_answered(self, tmp_path: Path) -> None:
        waiting = {"messages": ROWS[1]["messages"][:1]}
        job = self.job(tmp_path, [ROWS[0], waiting, ROWS[2]])
        job.train()
        written = Written(tmp_path / "job" / "llama")
        written.model.generation_config.eos_token_id = [END, END_OF_TURN]
        found = job.predictions("test/predictions.json")
        assert found == [
            {
                "row": number + 1,
                "prompt": row["messages"][0]["content"],
                "prediction": written.answer(row),
            }
            for number, row in enumerate(ROWS[:3])
        ]
        folder = job.workspace / "attempts" / "2" / "predictions" / "test"
        lines = (folder / "generated_predictions.txt").read_text().splitlines()
        assert lines == [" ".join(row["prediction"].splitlines()) for row in found]

    def test_a_prompt_that_is_too_long(self, tmp_path: Path) -> None:
        job = self.job(tmp_path, [ROWS[0], ROWS[3]], max_new_tokens=92)
        with pytest.raises(StageError, match=r"line 2: the prompt has 38 tokens, but only 36"):
            job.prepare()


def test_the_template_of_the_spec_is_published(tmp_path: Path) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        save_tiny_llama(tmp_path / "llama")
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "llama")
    template = (
        "{% for message in messages %}{{ message['content'] }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}{% endif %}"
    )
    answers.set_up(model, tokenizer, ChatSpec(chat_template=template))
    assert tokenizer.chat_template == template
    assert model.generation_config.eos_token_id == END
