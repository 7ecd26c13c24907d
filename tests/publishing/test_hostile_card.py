"""Nothing that a user or a stage names gets out of its place in a model card."""

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.contract.stage.stages import BaseCard
from tests.publishing.card_code import code_of
from tests.publishing.conftest import PREPARED, TRAINED, make_request
from tests.support.hostile_text import HOSTILE, steering
from tests.support.rendered_markdown import elements
from worker.publishing import model_card

CALLS = {
    *("AutoTokenizer.from_pretrained", "AutoModelForSeq2SeqLM.from_pretrained"),
    *("AutoModelForSeq2SeqLM.from_pretrained(…).eval", "tokenizer", "model.generate"),
    *("tokenizer.batch_decode", "print", "AutoConfig.from_pretrained"),
    *("GenerationConfig.from_pretrained", "PeftModel.from_pretrained"),
    "PeftModel.from_pretrained(…).eval",
}
TEXTS = [text for text in HOSTILE if "\udc9b" not in text]  # a spec refuses lone surrogates
LORA = {"method": "lora", "target_modules": ["q", "v"]}


def called(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        inner = node.value
        name = f"{called(inner.func)}(…)" if isinstance(inner, ast.Call) else called(inner)
        return f"{name}.{node.attr}"
    return ast.unparse(node)


def hostile_card(workspace: Path, text: str, **spec: Any) -> str:
    prepared = PREPARED.model_copy(
        update={
            "model_revision": text,
            "dataset_revision": text,
            "data_fingerprint": text,
            "splits": {text: {"examples": 1}},
            "base_card": BaseCard(license_name=text, license="other", tags=[text]),
        }
    )
    trained = TRAINED.model_copy(
        update={"metric_for_best_model": text, "weights_sha256": text, "metrics": {"eval_x": 1.0}}
    )
    task = {"type": "translation", "source_prefix": text}
    columns = {"source": text.replace("\x00", "")}
    dataset = {"source": "hub", "name": "org/data", "config": text, "columns": columns}
    request = make_request(
        workspace, spec={"name": "n", "task": task, "dataset": dataset, "hub": None, **spec}
    )
    return model_card.render(request, prepared, trained)


def body_of(card: str) -> str:
    return card.removeprefix("---\n").split("\n---\n", 1)[1]


@pytest.mark.parametrize("peft", [None, LORA], ids=["model", "adapter"])
@pytest.mark.parametrize("text", TEXTS)
class TestHostileCard:
    def test_its_code_calls_only_what_the_service_wrote(
        self, tmp_path: Path, text: str, peft: Any
    ) -> None:
        model = {"name_or_path": text if peft else "org/model"}
        tree = ast.parse(code_of(hostile_card(tmp_path, text, peft=peft, model=model)))
        calls = {called(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert calls <= CALLS
        (value,) = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "text"
        ]
        expected = f"{text}The report was written by Ada in 1843."
        assert ast.literal_eval(value) == expected
        imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.ImportFrom)]
        assert {line.split()[1] for line in imports} <= {"transformers", "peft"}

    def test_its_front_matter_holds_the_text_as_text(
        self, tmp_path: Path, text: str, peft: Any
    ) -> None:
        card = hostile_card(tmp_path, text, peft=peft)
        front = yaml.safe_load(card.removeprefix("---\n").split("\n---\n")[0])
        assert front["license_name"] == text
        assert front["tags"] == ["finetune-service", "translation", *(["lora"] * bool(peft)), text]
        assert set(front) <= {
            *("library_name", "pipeline_tag", "base_model", "base_model_relation", "datasets"),
            *("tags", "license", "license_name"),
        }

    def test_its_text_has_no_link_or_html_of_the_user(
        self, tmp_path: Path, text: str, peft: Any
    ) -> None:
        card = hostile_card(tmp_path, text, peft=peft)
        made = elements(body_of(card))
        assert made.count("a") == 1  # of the base model
        assert set(made) <= {
            *("h1", "h2", "p", "a", "code", "pre", "ul", "li"),
            *("table", "thead", "tbody", "tr", "th", "td"),
        }
        assert made.count("pre") == 1
        harmless = elements(body_of(hostile_card(tmp_path, "plain", peft=peft)))
        assert (made.count("h1"), made.count("h2")) == (1, harmless.count("h2"))
        assert made.count("tr") == harmless.count("tr")

    def test_it_steers_no_terminal(self, tmp_path: Path, text: str, peft: Any) -> None:
        card = hostile_card(tmp_path, text, peft=peft)
        assert steering(card) == []
        card.encode()
