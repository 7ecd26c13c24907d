"""Tiny models with random weights and without dropout, tokenizers, data and jobs for every task,
created offline. Seeds are fixed: two calls write the same files.

`python -P -m worker.doctor.tiny <request>` writes them, as a stage does, which a fork server can
fork.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from service.contract.stage.stages import StageRequest
from worker.stages.base import Channel, run_stage

Row = dict[str, Any]

SENTENCES: Final = (
    "the report of the water board was read by all who were there in the morning",
    "a river runs from the hills to the old town and on to the sea",
    "the town has a mill, a school and two bridges",
    "who was there when the board read the report?",
    "all of them were, and they liked what they read",
    "it rains in the hills, and the river is high in the morning",
    "the school is near the first bridge and the mill near the second",
    "the sea is far from the hills but near the town",
)
_SPECIALS: Final = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "bos_token": "<s>",
    "eos_token": "</s>",
}
_VOCABULARY: Final = 384
_CHAT_TEMPLATE: Final = (
    "{% for turn in messages %}{{ bos_token + turn.role + ':' + turn.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}"
)
PREDICTED: Final = 6
"""Rows of the test splits."""
_LABELS: Final = ("answers", "label", "tags", "summary", "target")
"""Columns that rows to predict do not have."""


def job(task: str, folder: Path, splits: Sequence[str], **parameters: Any) -> dict[str, Any]:
    """The task, model and dataset of a spec whose files `write` has written to `folder`."""
    body, usual, _ = _TASKS[task]
    files = {split: str(folder / f"{task}-{split}.jsonl") for split in splits}
    return {
        "task": {"type": task, **usual, **parameters},
        "model": {"name_or_path": str(folder / body)},
        "dataset": {"source": "path", **files},
    }


class Written(BaseModel):
    """How many models there are in the folder."""

    models: int


def main(request: StageRequest, _channel: Channel) -> Written:
    """Write the models and data of all tasks to the workspace. Imports torch."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = request.workspace
    for body, make in _MODELS.items():
        torch.manual_seed(0)
        make().save_pretrained(folder / body)
        _tokenizer(body).save_pretrained(folder / body)
    for task, (_, _, row) in _TASKS.items():
        # Each sentence in a few lengths, so that batches have padding.
        rows = [row(" ".join(s.split()[:length])) for length in (4, 9, 99) for s in SENTENCES]
        asked = [_to_predict(row) for row in rows[:PREDICTED]]
        for split, some in {"train": rows, "validation": rows[:12], "test": asked}.items():
            lines = "".join(json.dumps(row) + "\n" for row in some)
            (folder / f"{task}-{split}.jsonl").write_text(lines)
    return Written(models=len(_MODELS))


def _to_predict(row: Row) -> Row:
    """Without labels; with a mask, which only masked language models need."""
    kept = {name: value for name, value in row.items() if name not in _LABELS}
    return {name: f"[MASK] {value}" if name == "text" else value for name, value in kept.items()}


def _question(text: str) -> Row:
    word = text.split()[1]
    answers = {"text": [word], "answer_start": [text.index(word)]}
    return {"question": "what is second?", "context": text, "answers": answers}


def _turns(text: str) -> Row:
    words = text.split()
    turns = {"user": " ".join(words[:2]), "assistant": " ".join(words[2:])}
    return {"messages": [{"role": role, "content": content} for role, content in turns.items()]}


def _pair(text: str) -> Row:
    """The better answer continues the text, the worse one continues it in reverse."""
    words = text.split()
    worse = [*words[:1:-1], "not"]
    prompt, chosen = " ".join(words[:2]), " ".join(words[2:])
    return {"prompt": prompt, "chosen": chosen, "rejected": " ".join(worse)}


def _tagged(text: str) -> Row:
    tags = ["B-ARTICLE" if word in {"the", "a"} else "O" for word in text.split()]
    return {"tokens": text.split(), "tags": tags}


def _classified(text: str) -> Row:
    return {"text": text, "label": "long" if len(text) > 40 else "short"}


def _first_words(source: str, target: str) -> Callable[[str], Row]:
    return lambda text: {source: text, target: " ".join(text.split()[:3])}


def _text(text: str) -> Row:
    return {"text": text}


ENCODER, DECODER, BOTH = "encoder", "decoder", "encoder-decoder"
_READ: Final = {"max_seq_length": 32}
_MASKED: Final = {**_READ, "line_by_line": True, "mlm_probability": 0.3}
_WRITTEN: Final[dict[str, Any]] = {
    "max_source_length": 32,
    "max_target_length": 8,
    "generation": {"min_new_tokens": 4},
}
# Task → its model, its parameters (so few tokens that a step takes milliseconds), a row of a text.
_TASKS: Final[dict[str, tuple[str, dict[str, Any], Callable[[str], Row]]]] = {
    "question-answering": (ENCODER, {"max_seq_length": 48, "doc_stride": 8}, _question),
    "causal-lm": (DECODER, {"block_size": 16}, _text),
    "masked-lm": (ENCODER, _MASKED, _text),
    "text-classification": (ENCODER, _READ, _classified),
    "token-classification": (ENCODER, _READ, _tagged),
    "summarization": (BOTH, _WRITTEN, _first_words("text", "summary")),
    "translation": (BOTH, _WRITTEN, _first_words("source", "target")),
    "chat": (DECODER, {"max_length": 48, "packing": "bfd"}, _turns),
    "preference": (DECODER, {"max_length": 48}, _pair),
    "reward": (DECODER, {"max_length": 48}, _pair),
}


def _tokenizer(body: str) -> Any:
    """Byte-level BPE trained on the sentences, with the special tokens that the model expects.

    The merges are the same in each run: the trainer breaks ties by the order of tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = [*_SPECIALS.values()]
    backend = Tokenizer(models.BPE(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    single, pair = {
        ENCODER: ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        DECODER: ("<s> $A", "<s> $A $B"),
        BOTH: ("$A </s>", "$A </s> $B </s>"),
    }[body]
    numbered = [(token, number) for number, token in enumerate(specials)]
    backend.post_processor = processors.TemplateProcessing(single, pair, special_tokens=numbered)
    template = _CHAT_TEMPLATE if body == DECODER else None
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=64, chat_template=template, **_SPECIALS
    )


_SIZES: Final[dict[str, Any]] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def _encoder() -> Any:
    from transformers import BertConfig, BertModel

    dropout: Any = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return BertModel(BertConfig(**_SIZES, **dropout))


def _decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 6}
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **_SIZES, **tokens))


def _encoder_decoder() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    shape: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 6, "decoder_start_token_id": 0}
    config = T5Config(vocab_size=_VOCABULARY, dropout_rate=0.0, **shape, **tokens)
    return T5ForConditionalGeneration(config)


_MODELS: Final = {ENCODER: _encoder, DECODER: _decoder, BOTH: _encoder_decoder}


if __name__ == "__main__":
    run_stage(main)
