"""The columns that rows of each task have in other tools: found, or named as not used."""

from typing import Final

from worker.data.column_names import UsualNames

_WEIGHT: Final = {"sample_weight": "Keras and scikit-learn weigh the row by it in the loss"}
_TOKENS: Final = {
    "input_ids": "TRL trains these tokens in place of the text",
    "completion_mask": "TRL trains only the tokens that it marks",
    "assistant_masks": "TRL trains only the tokens that it marks",
}
_TURNS: Final = {
    **_WEIGHT,
    "image": "TRL shows it to a model that sees",
    "images": "TRL shows them to a model that sees",
    "videos": "LLaMA-Factory shows them to a model that sees",
    "audios": "LLaMA-Factory plays them to a model that hears",
    "chat_template_kwargs": "TRL gives the values in it to the chat template",
    "system": "LLaMA-Factory begins the conversation with it, as the turn of the system",
    "history": "LLaMA-Factory puts the turns in it before the others",
}
_REFERENCE: Final = "TRL takes it as the reference's log-probability of the answer"
_PREFIX: Final = {
    **_WEIGHT,
    "prefix": "simpletransformers puts it before the text; `task.source_prefix` does so here, one "
    "for all rows",
}
_PAIRS: Final = (
    ("article", "highlights"),
    ("document", "summary"),
    ("article", "summary"),
    ("dialogue", "summary"),
    ("body", "summary"),
    ("description", "abstract"),
    ("review_body", "review_title"),
    ("extract_text", "summary_text"),
    ("news_body", "news_title"),
)
"""run_summarization's, by the name of the data set there."""
_SIDES: Final = tuple(
    tuple({side: name} for name in dict.fromkeys(pair[number] for pair in _PAIRS))
    for number, side in enumerate(("text", "summary"))
)

USUAL: Final[dict[str, UsualNames]] = {
    "causal-lm": UsualNames("run_clm", in_order=("text",), unused=_WEIGHT | _TOKENS),
    "masked-lm": UsualNames(
        "run_mlm",
        in_order=("text",),
        unused=_WEIGHT | {"chinese_ref": "run_mlm_wwm reads from it which characters are a word"},
    ),
    "question-answering": UsualNames(
        "run_qa",
        in_order=("question", "context", "answers"),
        unused={
            **_WEIGHT,
            "is_impossible": "the processors of SQuAD 2.0 in transformers drop the answers of such "
            "a question; here `answers` of one without an answer is empty",
        },
    ),
    "text-classification": UsualNames(
        "run_glue",
        named=(
            ({"label": "labels"},),
            ({"text": "sentence1", "text_pair": "sentence2"},),
        ),
        own=("labels",),
        in_order=("text", "text_pair"),
        unused=_WEIGHT | {"sentence2": "run_glue reads it as the second text"},
    ),
    "token-classification": UsualNames(
        "run_ner",
        named=(
            ({"tags": "ner_tags"},),
            ({"tags": "pos_tags"}, {"tags": "chunk_tags"}),
        ),
        in_order=("tokens", "tags"),
        unused={
            **_WEIGHT,
            **{
                f"{name}_tags": f"run_ner trains it with `--task_name {name}`"
                for name in ("ner", "pos", "chunk")
            },
            "bbox": "LayoutLM reads from it where the words are",
            "bboxes": "LayoutLM reads from it where the words are",
        },
    ),
    "summarization": UsualNames(
        "run_summarization",
        named=(tuple({"text": text, "summary": summary} for text, summary in _PAIRS), *_SIDES),
        in_order=("text", "summary"),
        unused=_PREFIX,
    ),
    "translation": UsualNames(unused=_PREFIX),
    "chat": UsualNames(
        "TRL",
        named=(({"messages": "conversations"},),),
        instead_of=("messages", "prompt", "instruction"),
        written={
            ("instruction", "output"): "the user's turn is the instruction, with the input after "
            "an empty line, and the output is the assistant's; the text that Alpaca puts around "
            "them is not added",
            ("prompt", "completion"): "where they are text, each is one turn, of the user and of "
            "the assistant, and the chat template writes them",
        },
        unused=_TURNS | _TOKENS,
    ),
    "preference": UsualNames(
        unused={
            **_TURNS,
            "ref_chosen_logps": _REFERENCE,
            "ref_rejected_logps": _REFERENCE,
            "ref_logps": _REFERENCE,
        }
    ),
    "reward": UsualNames(unused=_TURNS),
}
