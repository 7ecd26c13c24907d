"""What a loaded model writes, compared with transformers' own forward passes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from service.contract.failures import FailureCode, StageError
from service.contract.interactive.predictions import Choice, PredictionRequest
from service.contract.spec.peft import BASE_CONFIG_FOLDER
from service.contract.spec.spec import JobSpec
from service.contract.stage.prediction_events import PredictorRequest, TrainedModel
from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from tests.support.models import CHATML, save_tiny_llama
from tests.training.support.jobs import fails_with
from worker.inference.text_model import TextModel
from worker.tasks.chat import jinja
from worker.training.adapters.adapter import known_warnings

PROMPT = "the report of the water"
TOKENS = 10
USER = {"role": "user", "content": "the report of the water board"}
ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
PEFT = {
    "lora": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    "prompt-tuning": PromptTuningConfig(num_virtual_tokens=7, task_type="CAUSAL_LM"),
}
Load = Callable[..., TextModel]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return load(folder, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def peer(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def load(
    model_dir: Path, own: Path, *, trained: TrainedModel | None = None, **sections: Any
) -> TextModel:
    body = {
        "mode": "predict",
        "task": {"type": "chat"},
        "model": {"name_or_path": str(model_dir)},
        "dataset": {"source": "path", "format": "jsonl", "test": ["/none.jsonl"]},
    }
    stage = StageRequest(
        job_id="job-0",
        stage=Stage.PREPARE,
        epoch=1,
        attempt=1,
        spec=JobSpec.accepted(body),
        workspace=own,
        attempt_dir=own,
        cache_dir=own / "cache",
        model_roots=[model_dir.parent.resolve()],
    )
    if sections:
        spec = stage.spec.model_copy(update=sections)
        stage = stage.model_copy(update={"spec": spec})
    return TextModel(PredictorRequest(stage=stage, trained=trained, use_gpu=False))


def choices_of(model: TextModel, prompt: str = PROMPT, **options: Any) -> list[Choice]:
    asked = PredictionRequest.model_validate(
        {
            "model": {"name_or_path": "org/name"},
            "input": {"kind": "completion", "prompt": prompt},
            "options": {"max_new_tokens": TOKENS, "temperature": 0, **options},
        }
    )
    return model.answer(asked, lambda _texts: None, lambda: False).choices


def chat(messages: list[dict[str, str]]) -> PredictionRequest:
    return PredictionRequest.model_validate(
        {
            "model": {"name_or_path": "org/name"},
            "input": {"kind": "chat", "messages": messages},
            "options": {"max_new_tokens": TOKENS, "temperature": 0},
        }
    )


def text_of(model: TextModel, prompt: str = PROMPT, **options: Any) -> str:
    (choice,) = choices_of(model, prompt, **options)
    return choice.text


def by_hand(
    peer: Any, ids: list[int], presence: float = 0, frequency: float = 0
) -> tuple[list[int], list[torch.Tensor]]:
    """The likeliest token each time, from a whole forward pass each, with the penalties that OpenAI
    documents: `mu[j] - c[j] * frequency - float(c[j] > 0) * presence`, where `c` counts the tokens
    of the answer. And the log-probabilities without penalties."""
    found: list[int] = []
    logprobs = []
    for _ in range(TOKENS):
        with torch.no_grad():
            scores = peer(torch.tensor([ids + found])).logits[0, -1].float()
        logprobs.append(torch.log_softmax(scores, dim=-1))
        for token in set(found):
            scores[token] -= found.count(token) * frequency + presence
        found.append(int(scores.argmax()))
    return found, logprobs


def test_greedy_with_its_logprobs(loaded: TextModel, peer: Any, tokenizer: Any) -> None:
    found, expected = by_hand(peer, tokenizer(PROMPT)["input_ids"])
    (choice,) = choices_of(loaded, logprobs=3)
    assert choice.text == tokenizer.decode(found)
    assert choice.logprobs is not None
    for token, logprobs, given in zip(found, expected, choice.logprobs, strict=True):
        best = torch.topk(logprobs, 3)
        assert given.token == tokenizer.decode([token])
        assert given.logprob == pytest.approx(logprobs[token].item(), abs=1e-4)
        assert [each.logprob for each in given.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert b"".join(bytes(each.bytes) for each in choice.logprobs).decode(
        errors="replace"
    ) == tokenizer.decode(found)


@pytest.mark.parametrize(("presence", "frequency"), [(0.05, 0), (0, 0.04), (-0.03, 0.06), (2, 2)])
def test_penalties(
    loaded: TextModel, peer: Any, tokenizer: Any, presence: float, frequency: float
) -> None:
    found, _ = by_hand(peer, tokenizer(PROMPT)["input_ids"], presence, frequency)
    text = text_of(loaded, presence_penalty=presence, frequency_penalty=frequency)
    assert text == tokenizer.decode(found)


def test_a_chat_is_answered_after_its_template(
    loaded: TextModel, peer: Any, tokenizer: Any
) -> None:
    """Greedily, until a token that ends a turn."""
    ids = tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    found, _ = by_hand(peer, ids)
    answer = loaded.answer(chat([USER]), lambda _texts: None, lambda: False)
    text = tokenizer.decode(found)
    assert answer.choices[0].message == {"role": "assistant", "content": text}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == TOKENS


class TestChatTemplate:
    """It comes with the model, so it is untrusted."""

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("{% if add_generation_prompt %}LOOP{% endif %}" + CHATML, "takes more than 0 s"),
            ("LOOP", "The model's chat template takes more than 0 s of computing"),
            ("{{ 'water ' * 1000000 }}" + CHATML, "writes more than 1,00"),
            ("{{ 'a' * 4000000000 }}", "takes more than 2 GiB of memory"),
            ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is"),
            ("{% include '/etc/passwd' %}", "no loader for this environment"),
            ("{% for %}", "is not a valid Jinja template: line 1"),
            ("{# nothing #}", "The chat template writes nothing"),
            (None, "The model has no chat template"),
        ],
    )
    def test_a_hostile_one_is_refused_and_the_model_stays(
        self,
        folder: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        template: str | None,
        words: str,
    ) -> None:
        monkeypatch.setattr(jinja, "_SECONDS", 0.1)
        own = save_tiny_llama(tmp_path / "model")
        file = own / "chat_template.jinja"
        if template is None:
            file.unlink()
        else:
            file.write_text(template.replace("LOOP", ENDLESS))
        model = load(own, tmp_path)
        with pytest.raises(StageError, match=words) as caught:
            model.answer(chat([USER]), lambda _texts: None, lambda: False)
        failure = caught.value.failure
        assert failure.code is FailureCode.INVALID_OPTION
        # A request has no job whose option could be set.
        assert "task.chat_template" not in failure.message + failure.action
        assert "finetune clone" not in failure.action
        assert text_of(model) == text_of(load(folder, tmp_path))


def test_a_stop_string_ends_the_text_before_it(loaded: TextModel) -> None:
    text = text_of(loaded)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    (cut,) = choices_of(loaded, stop=[stop])
    assert (cut.text, cut.finish_reason) == (text[: text.index(stop)], "stop")


def test_choices_are_sampled_apart_and_repeat_with_their_seed(loaded: TextModel) -> None:
    def sampled(seed: int) -> list[str]:
        found = choices_of(loaded, n=8, temperature=1.0, seed=seed)
        return [choice.text for choice in found]

    assert sampled(3) == sampled(3) != sampled(4)
    assert len(set(sampled(3))) == 8


@pytest.mark.parametrize(
    "given",
    [
        {"num_beams": 4},
        {"num_return_sequences": 2, "do_sample": True},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"prompt_lookup_num_tokens": 3},
        {"stop_strings": ["e"]},
        {"max_time": 0.0},
        {"guidance_scale": 2.0},
        {"min_new_tokens": 50, "max_length": 3, "return_dict_in_generate": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_model_cannot_choose_how_it_is_searched(
    loaded: TextModel, folder: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    """Its generation config may ask for several rows for each answer, for example."""
    own = save_tiny_llama(tmp_path / "model")
    file = own / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | given))
    made = load(own, tmp_path)
    assert text_of(made) == text_of(loaded)
    assert len(choices_of(made, n=2, temperature=1.0)) == 2


def test_a_model_may_have_tokens_that_it_never_writes(
    loaded: TextModel, tokenizer: Any, tmp_path: Path
) -> None:
    first = choices_of(loaded, max_new_tokens=1, logprobs=2)[0].logprobs
    assert first is not None
    best, second = (each.token for each in first[0].top)
    own = save_tiny_llama(tmp_path / "model")
    file = own / "generation_config.json"
    never = [each for each in range(len(tokenizer)) if tokenizer.decode([each]) == best]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"suppress_tokens": never}))
    assert text_of(load(own, tmp_path), max_new_tokens=1) == second


def test_as_many_tokens_as_there_are_positions(loaded: TextModel) -> None:
    """The model has 128, and each letter is a token."""
    (choice,) = choices_of(loaded, "x" * 126, max_new_tokens=None)
    assert choice.finish_reason == "length"
    with fails_with(FailureCode.SEQUENCE_TOO_LONG):
        choices_of(loaded, "x" * 128)


class TestAdapters:
    def adapted(self, folder: Path, tmp_path: Path, method: str) -> tuple[TextModel, Any]:
        """Loaded, and as peft has it."""
        torch.manual_seed(1)
        base = AutoModelForCausalLM.from_pretrained(folder)
        target = tmp_path / "adapter"
        with known_warnings():
            adapter = get_peft_model(base, PEFT[method]).eval()
            adapter.save_pretrained(str(target))
        AutoTokenizer.from_pretrained(folder).save_pretrained(target)
        (target / BASE_CONFIG_FOLDER).mkdir()
        (target / BASE_CONFIG_FOLDER / "config.json").write_text(
            (folder / "config.json").read_text()
        )
        trained = TrainedModel(spec={}, folder=target, settings=[], base=folder)
        spec = JobSpec.model_validate(
            {
                "task": "chat",
                "model": {"name_or_path": str(folder)},
                "dataset": {"source": "hub", "name": "org/data"},
                "peft": {"method": method}
                | ({} if method == "lora" else {"num_virtual_tokens": 7}),
            }
        )
        return load(folder, tmp_path, trained=trained, peft=spec.peft), adapter

    def test_answers_as_if_it_was_merged(self, folder: Path, tmp_path: Path) -> None:
        made, adapter = self.adapted(folder, tmp_path, "lora")
        merged = adapter.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "merged")
        whole = load(tmp_path / "merged", tmp_path)
        assert text_of(made) == text_of(whole) != text_of(load(folder, tmp_path))

    @pytest.mark.filterwarnings("ignore:Position ids are not supported")
    def test_virtual_tokens_take_positions(
        self, folder: Path, tmp_path: Path, tokenizer: Any
    ) -> None:
        made, adapter = self.adapted(folder, tmp_path, "prompt-tuning")
        found, _ = by_hand(adapter, tokenizer(PROMPT)["input_ids"])
        assert text_of(made) == tokenizer.decode(found) != text_of(load(folder, tmp_path))
        assert choices_of(made, "x" * 120)[0].finish_reason == "length"
        with fails_with(FailureCode.SEQUENCE_TOO_LONG, "121 positions"):
            choices_of(made, "x" * 121)
