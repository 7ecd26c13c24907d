import pytest

from service.contract.tasks.chat import ChatSpec
from service.contract.tasks.parameters import CausalLMSpec, MaskedLMSpec, QuestionAnsweringSpec
from service.contract.tasks.preference import PreferenceSpec
from service.contract.tasks.tasks import TASKS
from worker.tasks import registry
from worker.tasks.row_checks import ROW_CHECKS

CHAT = {"messages", "tools", "prompt", "input_ids", "trained", "without_thinking"}
# What the cleaned rows of each task hold, and what a training row must bring.
SCHEMAS = {
    "question-answering": {"id", "question", "context", "answers"},
    "question-answering/beam-search": {"id", "question", "context", "answers"},
    "causal-lm": {"text"},
    "masked-lm": {"text"},
    "text-classification": {"text", "text_pair", "labels", "number", "form"},
    "token-classification": {"tokens", "tags"},
    "summarization": {"source", "target"},
    "translation": {"source", "target"},
    "preference": {"messages", "tools", "prompt", "labels", "form", "input_ids", "start"},
    "preference/text-generation": CHAT,
    "reward": {"messages", "tools", "prompt", "labels", "form", "input_ids", "start", "margin"},
    "chat": CHAT,
}
REQUIRED = {
    "question-answering": ("question", "context", "answers"),
    "question-answering/beam-search": ("question", "context", "answers"),
    "causal-lm": ("text",),
    "masked-lm": ("text",),
    "text-classification": ("text", "label"),
    "token-classification": ("tokens", "tags"),
    "summarization": ("text", "summary"),
    "translation": (),  # one of several forms, which the cleaner looks at
    "preference": (),
    "reward": (),
    "chat": (),
}


class TestRegistry:
    def test_has_the_tasks_of_the_contract_and_their_variants(self) -> None:
        beam_search = QuestionAnsweringSpec(head="beam-search").variant()
        assert QuestionAnsweringSpec().variant() == "question-answering"
        predicting = {
            parameters().predicting_variant()
            for parameters in (CausalLMSpec, MaskedLMSpec, ChatSpec, PreferenceSpec)
        }
        assert set(registry.REGISTRY) == {*TASKS, beam_search, *predicting}

    @pytest.mark.parametrize("name", registry.REGISTRY)
    def test_each_task_knows_its_name_and_only_known_columns(self, name: str) -> None:
        task = registry.get(name)
        described = TASKS[name.partition("/")[0]]
        assert task.name == described.type
        required = REQUIRED.get(name, REQUIRED[described.type])
        assert ROW_CHECKS[task.name].required("train") == required
        assert set(required) <= {column.name for column in described.columns}
        assert set(task.example_schema()) == SCHEMAS.get(name, SCHEMAS[described.type])

    @pytest.mark.parametrize("name", TASKS)
    def test_the_length_comes_from_an_option_of_the_task(self, name: str) -> None:
        assert registry.get(name).length_option in TASKS[name].parameters.model_fields
