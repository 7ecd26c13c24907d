"""What of a tokenizer affects its output, as one address."""

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from worker.storage import atomic_dir, content_cache

_WHERE_LOADED = frozenset({"name_or_path", "is_local", "local_files_only", "tokenizer_file"})
"""Settings of a saved tokenizer that do not change its output."""


def tokenizer_identity(tokenizer: Any) -> str:
    """sha256 of the state of a tokenizer that affects its output."""
    fast = tokenizer.is_fast
    text = tokenizer.backend_tokenizer.to_str() if fast else json.dumps(_slow(tokenizer))
    settings = {
        "padding_side": tokenizer.padding_side,
        "inputs": tokenizer.model_input_names,
        "specials": tokenizer.special_tokens_map,
    }
    return _address(text, json.dumps(settings))


@lru_cache(maxsize=4)
def _address(tokenizer: str, settings: str) -> str:
    """Of both texts of JSON. Of a large vocabulary it takes a tenth of a second, and a process that
    previews or predicts asks again and again for the same tokenizer."""
    return content_cache.address({"tokenizer": json.loads(tokenizer), **json.loads(settings)})


def _slow(tokenizer: Any) -> dict[str, Any]:
    """A slow tokenizer: its class, and the files it saves."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path for path in Path(folder).iterdir()}
        settings = json.loads(files.pop("tokenizer_config.json").read_text())
        hashes = {name: atomic_dir.file_sha256(path) for name, path in sorted(files.items())}
    kept = {name: value for name, value in settings.items() if name not in _WHERE_LOADED}
    return {"class": type(tokenizer).__name__, "files": hashes, "settings": kept}
