"""An adapter on the Hub: what is pushed; a user's client and the card's code can load it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard

from tests.publishing.card_code import code_of, run_code, run_here
from tests.publishing.conftest import PREPARED, TOKEN, TRAINED, make_request, write
from tests.stages.support import StageServer
from tests.support.factories import make_spec
from tests.support.hub import HubDouble
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_t5
from worker.publishing import model_card
from worker.training import build
from worker.training.adapters import adapter

LORA = {"method": "lora", "target_modules": "all-linear", "r": 4}
HUB = {"model_id": "org/tiny-lora"}


def save_adapter(base: Path, output: Path, auto: Any, revision: str | None, **spec: Any) -> Any:
    """An adapter as the train stage leaves it, with weights that change something."""
    torch.manual_seed(0)
    labels = {"num_labels": 3} if "classification" in str(spec["task"]) else {}
    if spec["task"] == "reward":
        labels = {"num_labels": 1}
    model, new = build.load_model(auto, base, "float32", labels)
    adapted: Any = adapter.wrap(model, make_spec(**spec), base, new)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) * (0.1 if "lora" in name else 0.01))
    adapter.save(adapted, output, make_spec(**spec), revision)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(output)
    return adapted.eval()


@pytest.mark.heavy  # TestAdapter of tests/e2e pushes one, too
@pytest.mark.usefixtures("processes")
def test_pushed_it_loads_by_the_real_client_and_answers(
    server: StageServer, hub: HubDouble, tmp_path: Path
) -> None:
    base = save_tiny_bert(tmp_path / "base")
    commit = hub.add_repo("org/base", base)
    spec = {
        "task": "question-answering",
        "model": {"name_or_path": "org/base"},
        "peft": LORA,
        "hub": HUB,
    }
    workspace = tmp_path / "job"
    output = workspace / str(TRAINED.output_dir)
    auto = transformers.AutoModelForQuestionAnswering
    adapted = save_adapter(base, output, auto, commit, **spec)
    request = make_request(workspace, spec=spec, hub_endpoint=hub.endpoint).model_copy(
        update={"prepared": PREPARED.model_copy(update={"model_revision": commit})}
    )
    published = server.run(write(request), TOKEN)
    assert published.status == 0, published.log

    files = hub.repo("org/tiny-lora").commits[-1].files
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= set(files)
    assert "base_model_config/config.json" in files
    assert not {"model.safetensors", "config.json"} & set(files)
    config = json.loads(files["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/base", commit)
    card: Any = ModelCard(files["README.md"].decode())
    assert card.data.library_name == "peft"
    assert card.data.base_model == "org/base"
    assert card.data.base_model_relation == "adapter"
    assert "lora" in card.data.tags

    code = code_of(card.text)
    also = """
from peft import AutoPeftModelForQuestionAnswering
auto = AutoPeftModelForQuestionAnswering.from_pretrained("org/tiny-lora").eval()
ids = torch.arange(5, 15)[None]
with torch.no_grad():
    print(*(float(m(input_ids=ids).start_logits.sum()) for m in (model, auto)))
"""
    printed = run_code(code + also, hub.environment(tmp_path / "user", TOKEN)).splitlines()
    with torch.no_grad():
        expected = float(adapted(input_ids=torch.arange(5, 15)[None]).start_logits.sum())
    assert [float(value) for value in printed[-1].split()] == pytest.approx([expected] * 2)


@pytest.mark.parametrize(
    ("task", "auto"),
    [
        ("causal-lm", transformers.AutoModelForCausalLM),
        ("chat", transformers.AutoModelForCausalLM),
        ("reward", transformers.AutoModelForSequenceClassification),
        ("masked-lm", transformers.AutoModelForMaskedLM),
        ("text-classification", transformers.AutoModelForSequenceClassification),
        ("token-classification", transformers.AutoModelForTokenClassification),
        ("summarization", transformers.AutoModelForSeq2SeqLM),
    ],
)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_code_of_the_card(tmp_path: Path, task: str, auto: Any) -> None:
    base = tmp_path / "tiny"
    if task == "summarization":
        save_tiny_t5(base, ["A long text. It says many things, and some of them twice."])
    else:
        makers: Any = {
            "causal-lm": save_tiny_gpt2,
            "chat": save_tiny_llama,
            "reward": save_tiny_llama,
        }
        makers.get(task, save_tiny_bert)(base)
    spec = {"task": task, "model": {"name_or_path": str(base)}, "peft": LORA}
    output = tmp_path / "output"
    save_adapter(base, output, auto, None, **spec)
    prepared = PREPARED.model_copy(update={"model_revision": None})
    text = model_card.render(make_request(tmp_path, spec=spec), prepared, TRAINED)
    assert str(tmp_path) not in text
    printed = run_here(text, {"path/to/this/folder": output, "path/to/tiny": base})
    assert printed
    if task == "text-classification":  # three labels are known from the adapter's own folder
        assert printed.count("LABEL_") == 3


def test_a_merged_model_is_described_as_a_whole_one(tmp_path: Path) -> None:
    spec = {"task": "causal-lm", "peft": {**LORA, "merge": True}}
    card: Any = ModelCard(model_card.render(make_request(tmp_path, spec=spec), PREPARED, TRAINED))
    assert card.data.library_name == "transformers"
    assert "base_model_relation" not in card.data.to_dict()
    assert "PeftModel" not in card.text
    assert "It was trained by `lora`, and the change is part of its weights." in card.text
    assert "| `peft.r` | 4 |" in card.text
