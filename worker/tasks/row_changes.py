"""What a job says about rows that it uses otherwise than they are written, or that are probably not
what their author means: the counts of a cleaner (`worker.data.cleaning.CountsChanges`) that need
more than their name."""

from collections.abc import Iterator, Mapping
from typing import Final

from service.contract.stage.events import Notice
from worker.data.cleaning import Tally

SENTENCES: Final[dict[str, str]] = {
    "other_normal_form": "{count} answers of the {split} split and their contexts are written in "
    "different Unicode normal forms (NFC and NFD): the answers are used as the contexts have them",
    "marked_unanswerable": "{count} rows of the {split} split have an empty answer at -1: they are "
    "read as questions without an answer (`{{text: [], answer_start: []}}`)",
    "repeated_prompt": "In {count} of {rows} rows of the {split} split the answers begin with the "
    "row's own prompt, so that it is there twice: remove it from the answers, or remove the column "
    "`prompt`",
}


def notices(tallies: Mapping[str, Tally]) -> Iterator[Notice]:
    for split, tally in tallies.items():
        for name, sentence in SENTENCES.items():
            count = tally.changes.get(name, 0)
            if count:
                message = sentence.format(count=f"{count:,}", rows=f"{tally.used:,}", split=split)
                yield Notice(message=message, data={"split": split, name: count})
