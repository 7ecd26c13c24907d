"""Tiny models with random weights and without dropout, tokenizers, data and jobs for every task,
created offline. Seeds are fixed: two calls write the same files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from worker.doctor.check import Context, Finding, ok

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
_SPECIALS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>")

ENCODER, DECODER, BOTH = "encoder", "decoder", "encoder-decoder"
_SHORT: Final[dict[str, Any]] = {
    "max_source_length": 32,
    "max_target_length": 8,
    "generation": {"min_new_tokens": 4},
}
# Task → its model and its parameters: so few tokens that a step takes milliseconds.
_TASKS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "question-answering": (ENCODER, {"max_seq_length": 48, "doc_stride": 8}),
    "causal-lm": (DECODER, {"block_size": 16}),
    "masked-lm": (ENCODER, {"max_seq_length": 32, "line_by_line": True, "mlm_probability": 0.3}),
    "text-classification": (ENCODER, {"max_seq_length": 32}),
    "token-classification": (ENCODER, {"max_seq_length": 32}),
    "summarization": (BOTH, _SHORT),
    "translation": (BOTH, _SHORT),
    "chat": (DECODER, {"max_length": 48, "packing": "bfd"}),
    "preference": (DECODER, {"max_length": 48}),
    "reward": (DECODER, {"max_length": 48}),
}
PREDICTED: Final = 6
"""Rows of the test splits."""
_LABELS: Final = ("answers", "label", "tags", "summary", "target")
"""Columns that rows to predict do not have."""
_CHAT_TEMPLATE: Final = (
    "{% for turn in messages %}{{ bos_token + turn.role + ':' + turn.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}"
)


def job(task: str, folder: Path, splits: Sequence[str], **parameters: Any) -> dict[str, Any]:
    """The task, model and dataset of a spec whose files `write` has written to `folder`."""
    body, usual = _TASKS[task]
    files = {split: str(folder / f"{task}-{split}.jsonl") for split in splits}
    return {
        "task": {"type": task, **usual, **parameters},
        "model": {"name_or_path": str(folder / body)},
        "dataset": {"source": "path", **files},
    }


def write(context: Context) -> Finding:
    """The models and data of all tasks, in the scratch folder. Imports torch."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = context.scratch
    for body, make in _MAKERS.items():
        torch.manual_seed(0)
        make().save_pretrained(folder / body)
        _tokenizer(body).save_pretrained(folder / body)
    for task in _TASKS:
        row = _ROWS.get(task, lambda text: {"text": text})
        # In a few lengths, so that batches have padding.
        rows = [row(" ".join(s.split()[:length])) for length in (4, 9, 99) for s in SENTENCES]
        splits = {
            "train": rows,
            "validation": rows[:12],
            "test": [*map(_to_predict, rows[:PREDICTED])],
        }
        for split, some in splits.items():
            lines = "".join(json.dumps(row) + "\n" for row in some)
            (folder / f"{task}-{split}.jsonl").write_text(lines)
    return ok("the models and data of all tasks are written")


def _to_predict(row: dict[str, Any]) -> dict[str, Any]:
    """Without labels; with a mask, which only masked language models need."""
    kept = {name: value for name, value in row.items() if name not in _LABELS}
    return {name: f"[MASK] {value}" if name == "text" else value for name, value in kept.items()}


def _question(text: str) -> dict[str, Any]:
    word = text.split()[1]
    start = text.index(word)
    answers = {"text": [word], "answer_start": [start]}
    return {"question": "what is second?", "context": text, "answers": answers}


def _turns(text: str) -> dict[str, Any]:
    words = text.split()
    turns = {"user": " ".join(words[:2]), "assistant": " ".join(words[2:])}
    return {"messages": [{"role": role, "content": said} for role, said in turns.items()]}


def _pair(text: str) -> dict[str, Any]:
    """The better answer continues the text, the worse one continues it in reverse."""
    words = text.split()
    rest = words[2:]
    return {
        "prompt": " ".join(words[:2]),
        "chosen": " ".join(rest),
        "rejected": " ".join([*rest[::-1], "not"]),
    }


def _tagged(text: str) -> dict[str, Any]:
    tags = ["B-ARTICLE" if word in {"the", "a"} else "O" for word in text.split()]
    return {"tokens": text.split(), "tags": tags}


def _begin(text: str) -> str:
    return " ".join(text.split()[:3])


_ROWS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "question-answering": _question,
    "text-classification": lambda t: {"text": t, "label": "long" if len(t) > 40 else "short"},
    "token-classification": _tagged,
    "summarization": lambda text: {"text": text, "summary": _begin(text)},
    "translation": lambda text: {"source": text, "target": _begin(text)},
    "chat": _turns,
    "preference": _pair,
    "reward": _pair,
}


def _tokenizer(body: str) -> Any:
    """Byte-level BPE trained on the sentences, with the special tokens that the model expects.

    The merges are the same in each run: the trainer breaks ties by the order of tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=list(_SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    single, pair = {
        ENCODER: ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        DECODER: ("<s> $A", "<s> $A $B"),
        BOTH: ("$A </s>", "$A </s> $B </s>"),
    }[body]
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, number) for number, token in enumerate(_SPECIALS)],
    )
    names = ["pad", "unk", "cls", "sep", "mask", "bos", "eos"]
    tokens = {f"{name}_token": token for name, token in zip(names, _SPECIALS, strict=True)}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=64,
        chat_template=_CHAT_TEMPLATE if body == DECODER else None,
        **tokens,
    )


_VOCABULARY: Final = 384
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


_MAKERS: Final = {ENCODER: _encoder, DECODER: _decoder, BOTH: _encoder_decoder}
