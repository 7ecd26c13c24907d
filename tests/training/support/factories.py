"""Specs and models for tests of one part of the training."""

from typing import Any

from transformers import BertConfig, BertForQuestionAnswering

from service.contract.spec.spec import JobSpec


def spec_of(training: dict[str, Any], **sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "task": "question-answering",
            "model": {"name_or_path": "/models/tiny"},
            "dataset": {"source": "path", "train": "/data/train.json"},
            "training": training,
            **sections,
        }
    )


def tiny_bert() -> BertForQuestionAnswering:
    return BertForQuestionAnswering(
        BertConfig(
            vocab_size=48,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
