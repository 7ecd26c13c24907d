"""Tiny models with random weights, tokenizers, data and jobs for every task, created offline.

Seeds are fixed: two calls write the same files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

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
_BODIES: Final = {
    "question-answering": ENCODER,
    "causal-lm": DECODER,
    "masked-lm": ENCODER,
    "text-classification": ENCODER,
    "token-classification": ENCODER,
    "summarization": BOTH,
    "translation": BOTH,
    "chat": DECODER,
    "preference": DECODER,
    "reward": DECODER,
}
TASKS: Final = tuple(_BODIES)
_DROPOUTS: Final[dict[str, tuple[str, ...]]] = {
    ENCODER: ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    DECODER: ("attention_dropout",),
    BOTH: ("dropout_rate",),
}
# Short texts and few tokens: a step takes milliseconds even on a slow processor.
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "question-answering": {"max_seq_length": 48, "doc_stride": 8},
    "causal-lm": {"block_size": 16},
    "masked-lm": {"max_seq_length": 32, "line_by_line": True, "mlm_probability": 0.3},
    "text-classification": {"max_seq_length": 32},
    "token-classification": {"max_seq_length": 32},
    "summarization": {"max_source_length": 32, "max_target_length": 8},
    "translation": {"max_source_length": 32, "max_target_length": 8},
    "chat": {"max_length": 48, "packing": "bfd"},
    "preference": {"max_length": 48},
    "reward": {"max_length": 48},
}
_CHAT_TEMPLATE: Final = (
    "{% for turn in messages %}{{ bos_token + turn.role + ':' + turn.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}"
)


def job(
    task: str,
    folder: Path,
    *,
    dropout: float | None = None,
    copies: int = 1,
    **task_options: Any,
) -> dict[str, Any]:
    """The task, model and dataset of a spec; creates their files in `folder` if they are missing.

    `dropout`: the model's dropout; None keeps its default. `copies`: how often rows are repeated.
    """
    body = _BODIES[task]
    changes = {} if dropout is None else dict.fromkeys(_DROPOUTS[body], dropout)
    data = folder / f"{task}-{copies}.jsonl"
    if not data.exists():
        folder.mkdir(parents=True, exist_ok=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in _rows(task)) * copies)
    return {
        "task": {"type": task, **_OPTIONS[task], **task_options},
        "model": {"name_or_path": str(model(body, folder, **changes))},
        "dataset": {
            "source": "path",
            "train": str(data),
            "validation": str(data),
            "max_eval_samples": 12,
        },
    }


def model(body: str, folder: Path, **config: Any) -> Path:
    """The folder of a model under `folder`, created if missing; `config` overrides its defaults."""
    name = "-".join([body, *(f"{key}-{value}" for key, value in config.items())])
    target = folder / name
    if not (target / "config.json").exists():
        import torch

        torch.manual_seed(0)
        made = _MAKERS[body](config)
        _tokenizer(body).save_pretrained(target)
        made.save_pretrained(target)
    return target


def _rows(task: str) -> list[dict[str, Any]]:
    """Each sentence in a few lengths, so that batches have padding."""
    texts = [" ".join(s.split()[:length]) for length in (4, 9, 99) for s in SENTENCES]
    if task == "question-answering":
        return [_question(text) for text in texts]
    if task == "text-classification":
        return [{"text": text, "label": "long" if len(text) > 40 else "short"} for text in texts]
    if task == "token-classification":
        return [{"tokens": text.split(), "tags": _tags(text)} for text in texts]
    if task == "summarization":
        return [{"text": text, "summary": " ".join(text.split()[:3])} for text in texts]
    if task == "translation":
        return [{"source": text, "target": " ".join(text.split()[:3])} for text in texts]
    if task == "chat":
        return [{"messages": _turns(text)} for text in texts]
    if task in ("preference", "reward"):
        return [_pair(text) for text in texts]
    return [{"text": text} for text in texts]


def _question(text: str) -> dict[str, Any]:
    word = text.split()[1]
    start = text.index(word)
    answers = {"text": [word], "answer_start": [start]}
    return {"question": "what is second?", "context": text, "answers": answers}


def _turns(text: str) -> list[dict[str, str]]:
    words = text.split()
    asked, answered = " ".join(words[:2]), " ".join(words[2:])
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def _pair(text: str) -> dict[str, str]:
    """The better answer continues the text, the worse one continues it in reverse."""
    words = text.split()
    rest = words[2:]
    return {
        "prompt": " ".join(words[:2]),
        "chosen": " ".join(rest),
        "rejected": " ".join([*rest[::-1], "not"]),
    }


def _tags(text: str) -> list[str]:
    return ["B-ARTICLE" if word in {"the", "a"} else "O" for word in text.split()]


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


def _encoder(config: Mapping[str, Any]) -> Any:
    from transformers import BertConfig, BertModel

    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 64, **config}
    return BertModel(BertConfig(vocab_size=_VOCABULARY, **shape))


def _decoder(config: Mapping[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": 64}
    tokens: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 6}
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": _VOCABULARY, **shape, **tokens, **config}))


def _encoder_decoder(config: Mapping[str, Any]) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    shape: dict[str, Any] = {
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        **config,
    }
    tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 6, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(vocab_size=_VOCABULARY, **shape, **tokens))


_MAKERS: Final = {ENCODER: _encoder, DECODER: _decoder, BOTH: _encoder_decoder}
