"""What the reference scripts assume when their arguments do not say it."""

import re
from collections.abc import Iterable, Mapping
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

_FLAX: Final = re.compile(r"_?flax_?")
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
NOT_CONVERTED: Final[dict[str, str]] = {
    "run_bart_dlm": "it trains a model to restore shuffled and masked texts (BART), which no task "
    "here does",
    "run_t5_mlm": "it trains a model to write the passages that were cut out of a text (T5), which "
    "no task here does",
}
"""Scripts that are known, and why they are not converted."""
HELD_OUT_PERCENTAGE: Final = 5

# Options that only one script has; a script that was renamed or copied still has them.
_OWN_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "run_clm": frozenset({"block_size", "keep_linebreaks"}),
    "run_glue": frozenset({"task_name"}),
    "run_mlm": frozenset({"line_by_line", "mlm_probability"}),
    "run_ner": frozenset({"label_all_tokens", "return_entity_level_metrics"}),
    "run_qa": frozenset(
        {
            "doc_stride",
            "max_answer_length",
            "n_best_size",
            "null_score_diff_threshold",
            "version_2_with_negative",
        }
    ),
    "run_summarization": frozenset({"summary_column"}),
    "run_t5_mlm": frozenset({"mean_noise_span_length"}),
    "run_translation": frozenset({"source_lang", "target_lang"}),
}

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


def without_flax(name: str) -> str:
    """`run_clm_flax` → `run_clm`, `run_flax_glue` → `run_glue`."""
    return _FLAX.sub("_", name).strip("_")


def by_options(names: Iterable[str]) -> tuple[str, str] | None:
    """The one script that has some of these options, and the first of them; None if that is not
    clear."""
    given = frozenset(names)
    found = {script: sorted(own & given) for script, own in _OWN_OPTIONS.items() if own & given}
    if "run_t5_mlm" in found:
        found.pop("run_mlm", None)
    return next((script, own[0]) for script, own in found.items()) if len(found) == 1 else None
