"""The headers of safetensors files, and the index of sharded ones; no weights are read."""

import re
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from worker.base_model.json_files import broken

_LARGEST_HEADER: Final = 32 * 1024**2
_LENGTH: Final = struct.Struct("<Q")
_SHARD: Final = re.compile(r"model-\d+-of-\d+\.safetensors")
_MOST_TENSORS: Final = 1_000_000
_MOST_SHARDS: Final = 1000
# What torch trains, or converts to a type that it trains. Others are counters and masks.
_FLOATING: Final = frozenset({"F64", "F32", "F16", "BF16"})
_TRAINED: Final = re.compile(r"(.*\.)?(weight|bias)")


def check_headers(paths: Mapping[str, Path], name: str, *, quantized: bool) -> None:
    """StageError(invalid_model) for a file that is cut off, contradicts itself or, unless the model
    is `quantized`, holds weights that are not floating-point numbers."""
    seen: dict[str, str] = {}
    for file, path in paths.items():
        _check_length(path, file, name)
        try:
            with safe_open(path, framework="pt") as opened:
                for tensor in opened.keys():  # noqa: SIM118 — not a mapping
                    dtype = opened.get_slice(tensor).get_dtype()
                    if not quantized:
                        _check_dtype(tensor, dtype, file, name)
                    if tensor in seen:
                        problem = f"has {tensor[:80]!r}, which is in {seen[tensor]}, too"
                        raise broken(name, file, problem)
                    seen[tensor] = file
        except (SafetensorError, ValueError, OverflowError) as error:
            problem = f"is not a valid safetensors file, or is cut off: {str(error)[:200]}"
            raise broken(name, file, problem) from error


def _check_length(path: Path, file: str, name: str) -> None:
    """The library reads a header of any length up to 100 MB before it looks at it."""
    with path.open("rb") as stream:
        head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise broken(name, file, f"is cut off: it has {len(head)} bytes")
    (length,) = _LENGTH.unpack(head)
    if length > _LARGEST_HEADER:
        problem = f"has a header of {length:,} bytes; at most {_LARGEST_HEADER:,} are read"
        raise broken(name, file, problem, limit=_LARGEST_HEADER)


def _check_dtype(tensor: str, dtype: str, file: str, name: str) -> None:
    if _TRAINED.fullmatch(tensor) and dtype not in _FLOATING:
        raise broken(
            name,
            file,
            f"has {tensor[:80]!r} in {dtype}: weights are trained from float32, float16 or "
            "bfloat16. Give the model that is not quantized",
            tensor=tensor[:200],
        )


def check_index(index: Mapping[str, Any], name: str) -> None:
    """StageError(invalid_model) for shards that are not plain names in the model's folder."""
    file = "model.safetensors.index.json"
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise broken(name, file, "has no `weight_map`")
    if len(shards) > _MOST_TENSORS or len(set(map(str, shards.values()))) > _MOST_SHARDS:
        problem = f"names more than {_MOST_TENSORS:,} tensors or {_MOST_SHARDS:,} files"
        raise broken(name, file, problem)
    for tensor, shard in shards.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            problem = f"puts {tensor[:80]!r} into {str(shard)[:80]!r}; shards are called "
            raise broken(name, file, problem + "model-00001-of-00002.safetensors and so on")


def require_shards(index: Mapping[str, Any], found: Collection[str], name: str) -> None:
    """StageError(invalid_model) if files that the index names are missing."""
    missing = sorted(set(index["weight_map"].values()).difference(found))
    if missing:
        file = "model.safetensors.index.json"
        raise broken(name, file, f"names files that are missing: {', '.join(missing[:5])}")
