"""What a worker finds in the rows of a spec."""

from typing import Any

LENGTHS = {
    **dict.fromkeys(("total", "min", "mean", "p50", "p90", "p95", "p99"), 5),
    "max": 1200,
    "histogram": [{"from": 0, "to": 511, "rows": 90}, {"from": 512, "to": 1200, "rows": 3}],
}
FOUND: dict[str, Any] = {
    "rows_limit": 100,
    "splits": {
        "train": {
            "rows_read": 100,
            "rows_usable": 99,
            "rows_bad": 1,
            "bad_by_reason": {"empty": 1},
            "bad_rows": [
                {"place": "train.jsonl, line 2", "reason": "empty", "problem": "is empty"}
            ],
            "is_whole": False,
            "rows_estimated": 1000,
            "features": 40,
            "trained_tokens": 2000,
            "tokens": LENGTHS,
            "truncated": 3,
        }
    },
    "examples": [
        {
            "split": "train",
            "text": "Hi there\x1b[2J!\nYes.",
            "tokens": ["Hi", " there", "\x1b", "[2J", "!", "\n", "Yes", "."],
            "length": 8,
            "trained": [{"start": 6, "end": 8, "text_start": 14, "text_end": 18}],
            "target": "the answer",
        }
    ],
    "notices": ["3 rows were cut"],
    "max_length": 512,
    "length_option": "max_length",
    "epoch": {
        "is_exact": False,
        "rows": 1000,
        "features": 400,
        "trained_tokens": 20000,
        "batches": 50,
        "optimizer_steps": 25,
        "total_steps": 75,
    },
}
