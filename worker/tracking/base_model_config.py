"""The base model's shape as params of a run: from its `config.json` and the headers of its weights.

The worker never imports torch or transformers, so both files are read as what they are.
"""

import functools
import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "base_model"
# Param → the names that architectures use for it.
_FIELDS: Final = {
    "hidden_size": ("hidden_size", "d_model", "n_embd", "dim"),
    "layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "attention_heads": ("num_attention_heads", "num_heads", "n_head", "n_heads"),
    "key_value_heads": ("num_key_value_heads",),
    "intermediate_size": ("intermediate_size", "d_ff", "n_inner", "hidden_dim"),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
}
_CONFIG_BYTES: Final = 1 << 20
_HEADER_BYTES: Final = 16 << 20
_FILES: Final = 200
_WHOLE: Final = "model.safetensors"
_CHARACTERS: Final = 200


def params(folder: Path) -> Mapping[str, str]:
    """Such as `base_model.hidden_size`; empty if the folder is not on this machine."""
    file = folder / "config.json"
    with suppress(OSError, ValueError, RecursionError):
        return _params(file, file.stat().st_mtime_ns)
    return {}


@functools.lru_cache(maxsize=8)
def _params(file: Path, _changed_at: int) -> Mapping[str, str]:
    """Read once: the params of a running job are asked for every few seconds."""
    with file.open("rb") as stream:
        config = json.loads(stream.read(_CONFIG_BYTES))
    if not isinstance(config, dict):
        return {}
    found = dict(_shape(config)) | _count(file.parent)
    return {f"{PREFIX}.{name}": str(value)[:_CHARACTERS] for name, value in found.items()}


def _shape(config: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    architectures = config.get("architectures") or []
    if config.get("model_type"):
        yield "model_type", config["model_type"]
    if isinstance(architectures, list) and architectures:
        yield "architecture", architectures[0]
    text = config.get("text_config")
    known = {**(text if isinstance(text, dict) else {}), **config}
    for name, aliases in _FIELDS.items():
        value = next((known[a] for a in aliases if isinstance(known.get(a), int)), None)
        if value is not None:
            yield name, value


def _count(folder: Path) -> dict[str, int]:
    """The number of weights, if they are in safetensors files that can be read."""
    whole = folder / _WHOLE
    files = [whole] if whole.exists() else sorted(folder.glob("model-*.safetensors"))
    if not files or len(files) > _FILES:
        return {}
    with suppress(OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {"parameters": sum(_weights(file) for file in files)}
    return {}


def _weights(file: Path) -> int:
    """A safetensors file begins with the length of its header, a map of name → shape and type."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
        if length > _HEADER_BYTES:
            raise ValueError(f"{file.name} has a header of {length} bytes")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return sum(math.prod(tensor["shape"]) for tensor in header.values())
