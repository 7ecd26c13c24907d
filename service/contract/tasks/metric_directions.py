"""Whether more of a metric is better: the one table that the best model, early stopping, schedules
that follow a metric, and searches read."""

from typing import Final

GREATER_IS_BETTER: Final[dict[str, bool | None]] = {
    "loss": False,
    "perplexity": False,
    "accuracy": True,
    "exact_match": True,
    "exact": True,
    "f1": True,
    "f1_macro": True,
    "f1_micro": True,
    "f1_weighted": True,
    "precision": True,
    "recall": True,
    "matthews_correlation": True,
    "pearson": True,
    "spearmanr": True,
    "best_exact": True,
    "best_f1": True,
    "best_exact_thresh": None,
    "best_f1_thresh": None,
    "total": None,
    "number": None,
    "rouge1": True,
    "rouge2": True,
    "rougeL": True,
    "rougeLsum": True,
    "bleu": True,
    "gen_len": None,
    "rewards/chosen": True,
    "rewards/rejected": False,
    "rewards/accuracies": True,
    "rewards/margins": True,
    "logps/chosen": True,
    "logps/rejected": False,
    "kl": False,
    "margin": True,
    "mean_reward": None,
    "min_reward": None,
    "max_reward": None,
}
"""None: neither is better, for example for a length or a threshold."""


def greater_is_better(metric: str) -> bool | None:
    """Of a metric with or without `eval_`, and with the name of a validation set, of a type of span
    or of a group of questions before it; None if neither is better, or nothing is known of it."""
    name = metric.removeprefix("eval_")
    while name not in GREATER_IS_BETTER:
        _, found, name = name.partition("_")
        if not found:
            return None
    return GREATER_IS_BETTER[name]
