"""A spec with its data next to it, as a user has them."""

import json
from pathlib import Path

ROWS = (
    '{"question": "Who?", "context": "Watt.", "answers": {"text": ["Watt"], "answer_start": [0]}}\n'
)


def write_spec(folder: Path, **changes: object) -> Path:
    """A spec with its data next to it."""
    (folder / "train.jsonl").write_text(ROWS)
    spec = {
        "name": "from-a-file",
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "upload", "train": "./train.jsonl"},
        **changes,
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path
