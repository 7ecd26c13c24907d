"""A folder of a model's files that a job may load: known names, no links, bounded sizes.

Small files are copied, and what could load code is taken out of them. Weights are large: each is a
link to the one regular file that was checked, and only safetensors read it.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.contract.stage import home_paths
from service.contract.stage.events import Notice
from worker.base_model import config_bounds, config_keys, tokenizer_file, weight_files
from worker.base_model.json_files import broken, parse, read_bytes

_MIB: Final = 1024**2
INDEX: Final = "model.safetensors.index.json"
WEIGHTS: Final = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
WHOLE: Final = "model.safetensors"
CONFIG: Final = "config.json"


@dataclass(frozen=True)
class _Kind:
    names: re.Pattern[str]
    most_bytes: int


# The largest that are known: a tokenizer.json of 34 MB, a SentencePiece model of 15 MB, an index of
# 9 MB, a config.json of 2 MB (21,000 labels).
_KINDS: Final = (
    _Kind(re.compile(r"config\.json"), 8 * _MIB),
    _Kind(re.compile(r"generation_config\.json|chat_template\.json"), _MIB),
    _Kind(re.compile(r"chat_template\.jinja"), _MIB),
    _Kind(re.compile(r"tokenizer\.json"), 64 * _MIB),
    _Kind(
        re.compile(r"(tokenizer_config|special_tokens_map|added_tokens|normalizer)\.json"),
        16 * _MIB,
    ),
    _Kind(
        re.compile(
            r"[^/]*vocab[^/]*\.(json|txt)|merges(\.txt)?|words\.json|bpe\.codes|dict\.txt|"
            r"word_(shape|pronunciation)\.json|emoji\.json|byte_maps\.json|"
            r"[^/]+\.(model|spm|tokenizer)"
        ),
        64 * _MIB,
    ),
    _Kind(re.compile(re.escape(INDEX)), 32 * _MIB),
)


def is_setting(file: str) -> bool:
    """Whether it is a file of the configuration or the tokenizer that jobs load: never code, never
    anything that has to be unpickled."""
    return any(kind.names.fullmatch(file) for kind in _KINDS)


def is_followed(path: Path) -> bool:
    """Whether `path` is a regular file, or a link that stays with its model: within its folder, or
    in the Hub's cache from a snapshot to the same repository's files."""
    try:
        if stat.S_ISREG(path.lstat().st_mode):
            return True
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    folder = path.parent.resolve()
    homes = {folder}
    if folder.parent.name == "snapshots":
        homes.add(folder.parent.parent / "blobs")
    return target.parent in homes and target.is_file()


@dataclass(frozen=True)
class Vetting:
    """Copies from `source`, the folder of the model `name`, to `target`."""

    name: str
    source: Path
    target: Path
    home: Path
    notice: Callable[[Notice], None]

    def copy_settings(self, files: Iterable[str]) -> None:
        """StageError(invalid_model) for a file that no library should read."""
        self.target.mkdir(parents=True, exist_ok=True)
        for file in files:
            if is_setting(file):
                content = self._checked(file, self._read(file))
                (self.target / file).write_bytes(content)

    def link_weights(self, files: Iterable[str], *, quantized: bool) -> None:
        """Link the safetensors whose headers are valid. StageError(invalid_model)."""
        self.target.mkdir(parents=True, exist_ok=True)
        paths = {file: self._real(file) for file in files if WEIGHTS.fullmatch(file)}
        if WHOLE not in paths:
            index = parse(self._read(INDEX), INDEX, self.name)
            weight_files.require_shards(index, paths, self.name)
        weight_files.check_headers(paths, self.name, quantized=quantized)
        for file, path in paths.items():
            home_paths.link(self.target / file, path, self.home)

    def _real(self, file: str) -> Path:
        path = self.source / file
        if not is_followed(path):
            missing = not os.path.lexists(path)
            problem = "is missing" if missing else "is a link to another folder, or not a file"
            raise broken(self.name, file, problem)
        return path.resolve()

    def _read(self, file: str) -> bytes:
        limit = next(kind.most_bytes for kind in _KINDS if kind.names.fullmatch(file))
        path = self._real(file)
        return read_bytes(path.parent, path.name, limit, self.name)

    def _checked(self, file: str, content: bytes) -> bytes:
        if not file.endswith(".json") or file == "tokenizer.json":
            if file == "tokenizer.json":
                tokenizer_file.check(parse(content, file, self.name), self.name)
            return content
        value = parse(content, file, self.name)
        if file == INDEX:
            weight_files.check_index(value, self.name)
        elif file == CONFIG or file == "generation_config.json":
            config_bounds.check(value, file, self.name)
        return self._without_code(file, value, content)

    def _without_code(self, file: str, value: dict[str, Any], content: bytes) -> bytes:
        if not re.fullmatch(r"(config|generation_config|tokenizer_config)\.json", file):
            return content
        kept, dropped = config_keys.cleaned(value, file, self.name)
        if dropped:
            named = ", ".join(f"`{key}`" for key in dropped[:10])
            message = f"{file} of the model {self.name!r}: {named} would load code or other files"
            data = {"file": file, "dropped": dropped[:100]}
            self.notice(Notice(message=f"{message}, and is ignored", data=data))
        return content if kept == value else json.dumps(kept, ensure_ascii=False).encode()
