"""Small real SQuAD files, cut from the bundled example data."""

import json
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "squad"


def write_squad(folder: Path, train: int = 64, validation: int = 24) -> dict[str, Path]:
    """The first questions of the bundled v2.0 files, in the native nested format."""
    sizes = {"train": train, "validation": validation}
    paths = {}
    for split, size in sizes.items():
        source = json.loads((EXAMPLES / f"{split}-v2.0.json").read_text())
        paths[split] = folder / f"{split}.json"
        paths[split].write_text(json.dumps(_first_questions(source, size)))
    return paths


def _first_questions(source: dict, size: int) -> dict:  # type: ignore[type-arg]
    articles = []
    for article in source["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            questions = paragraph["qas"][:size]
            size -= len(questions)
            if questions:
                paragraphs.append({"context": paragraph["context"], "qas": questions})
        if paragraphs:
            articles.append({"title": article["title"], "paragraphs": paragraphs})
    return {"version": source["version"], "data": articles}
