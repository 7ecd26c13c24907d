"""Names of folders made from what users call their jobs."""

import unicodedata
from typing import Final

from finetune_client.downloads import RESERVED

_MOST_BYTES: Final = 100


def folder_name(name: str | None, otherwise: str) -> str:
    """`name` as the name of one visible folder, on any file system; `otherwise` if nothing is left
    of it.

    Letters, marks and digits of all scripts stay, and so do dots and underscores inside the name.
    """
    text = unicodedata.normalize("NFC", name or "")
    kept = "".join(each if _may_stay(each) else " " for each in text)
    cut = "-".join(kept.split()).encode()[:_MOST_BYTES].decode(errors="ignore").strip("-.")
    return otherwise if not cut or cut.partition(".")[0].lower() in RESERVED else cut


def _may_stay(character: str) -> bool:
    return character in "-._" or unicodedata.category(character)[0] in "LMN"
