"""Question answering with what AutoModelForQuestionAnswering holds: a step and an evaluation."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.data.squad_sample import squad_dataset
from tests.support.models import train_tokenizer
from tests.tasks.stages import job_of

SQUAD = Path(__file__).resolve().parents[3] / "examples" / "squad"
LENGTH = 96

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": LENGTH,
}
# RoBERTa and its kin count positions from the padding index on.
OFFSET = {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1}

BERT_LIKE: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "albert": {**SMALL, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    | {"max_position_embeddings": LENGTH},
    "electra": {**SMALL, "embedding_size": 16},
    "deberta": {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "big_bird": {
        **SMALL,
        "attention_type": "block_sparse",
        "block_size": 8,
        "num_random_blocks": 1,
    },
}
ROBERTA_LIKE: dict[str, dict[str, Any]] = {
    "roberta": SMALL | OFFSET,
    "longformer": SMALL | OFFSET | {"attention_window": 16},
}
# Without types of tokens, with relative positions, with other positions.
EVERY_TIME = ("distilbert", "deberta-v2", "roberta")


def texts() -> list[str]:
    articles = json.loads((SQUAD / "train-v1.1.json").read_text(encoding="utf-8"))["data"]
    return [paragraph["context"] for paragraph in articles[0]["paragraphs"]]


def bert_tokenizer() -> Any:
    return train_tokenizer(
        texts(),
        vocabulary=400,
        specials=["[PAD]", "[CLS]", "[SEP]", "[UNK]"],
        template="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def roberta_tokenizer() -> Any:
    return train_tokenizer(
        texts(),
        vocabulary=400,
        specials=["<s>", "<pad>", "</s>", "<unk>"],
        template="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        sep_token="</s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def save(folder: Path, model_type: str) -> None:
    roberta = model_type in ROBERTA_LIKE
    tokenizer = roberta_tokenizer() if roberta else bert_tokenizer()
    settings = (ROBERTA_LIKE if roberta else BERT_LIKE)[model_type]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **settings)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=[pytest.mark.heavy] * (name not in EVERY_TIME))
        for name in (*BERT_LIKE, *ROBERTA_LIKE)
    ],
)
def test_trains_and_answers(model_type: str, tmp_path: Path) -> None:
    save(tmp_path / "model", model_type)
    task = {"type": "question-answering", "max_seq_length": LENGTH, "doc_stride": 16}
    dataset = squad_dataset("1.1", SQUAD, max_train_samples=12, max_eval_samples=4)
    options = {"max_steps": 1, "learning_rate": 1e-2, "logging_steps": 1}
    job = job_of(tmp_path, task, tmp_path / "model", dataset, options)
    result, recorder = job.train()
    # A new head knows nothing yet: both ends are about as likely on every token.
    assert recorder.train_values("loss")[1] == pytest.approx(math.log(LENGTH), abs=1)
    assert result.metrics["eval_loss"] != result.baseline["eval_loss"]
    assert {"eval_exact_match", "eval_f1", "eval_loss"} <= result.metrics.keys()
    assert len(job.predictions()) == 4
    finished = transformers.AutoModelForQuestionAnswering.from_pretrained(job.output(result))
    assert finished.config.model_type == model_type
