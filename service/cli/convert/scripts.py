"""What the reference scripts assume when their arguments do not say it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Script:
    task: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of the task, when no argument says otherwise."""
    held_out: bool = False
    """Whether a share of the training rows validates when there is no validation file."""


_GENERATES: Final = {"predict_with_generate": False}

SCRIPTS: Final[dict[str, Script]] = {
    "run_qa": Script("question-answering"),
    "run_qa_beam_search": Script("question-answering", {"head": "beam-search"}),
    "run_squad": Script("question-answering"),
    "run_squad_trainer": Script("question-answering"),
    "run_clm": Script("causal-lm", held_out=True),
    "run_mlm": Script("masked-lm", held_out=True),
    "run_mlm_wwm": Script("masked-lm", {"whole_word_mask": True}, held_out=True),
    "run_glue": Script("text-classification"),
    "run_ner": Script("token-classification"),
    "run_summarization": Script("summarization", _GENERATES),
    "run_translation": Script("translation", _GENERATES),
}
HELD_OUT_PERCENTAGE: Final = 5

# GLUE's tasks → the columns of a text, and of the second one.
GLUE_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "cola": ("sentence",),
    "mnli": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
    "qqp": ("question1", "question2"),
    "rte": ("sentence1", "sentence2"),
    "sst2": ("sentence",),
    "stsb": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
}
# Data sets of the Hub → the columns of the texts and of their summaries.
SUMMARY_COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "amazon_reviews_multi": ("review_body", "review_title"),
    "big_patent": ("description", "abstract"),
    "cnn_dailymail": ("article", "highlights"),
    "orange_sum": ("text", "summary"),
    "pn_summary": ("article", "summary"),
    "psc": ("extract_text", "summary_text"),
    "samsum": ("dialogue", "summary"),
    "thaisum": ("body", "summary"),
    "xglue": ("news_body", "news_title"),
    "xsum": ("document", "summary"),
    "wiki_summary": ("article", "highlights"),
    "multi_news": ("document", "summary"),
}
