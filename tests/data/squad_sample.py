"""The small copy of SQuAD that tests read, as files and as flat rows."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "squad"


def squad_file(split: str, version: str = "2.0") -> Path:
    return FOLDER / f"{split}-v{version}.json"


def squad_dataset(version: str, folder: Path = FOLDER, **options: Any) -> dict[str, Any]:
    """As a spec has it."""
    files = {s: str(folder / f"{s}-v{version}.json") for s in ("train", "validation")}
    return files | options


def squad_rows(split: str, version: str = "2.0") -> list[dict[str, Any]]:
    """Rows with id, question, context and answers as {text: [...], answer_start: [...]}."""
    articles = json.loads(squad_file(split, version).read_text())["data"]
    return [
        {
            "id": question["id"],
            "question": question["question"],
            "context": paragraph["context"],
            "answers": {
                "text": [answer["text"] for answer in question["answers"]],
                "answer_start": [answer["answer_start"] for answer in question["answers"]],
            },
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
