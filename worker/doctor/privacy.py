"""Removing what must not be in a report that is attached to a public issue."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

MASK: Final = "***"
# Variables that decide how torch, CUDA and NCCL behave; their values are shown.
_SHOWN: Final = re.compile(
    r"^(CUDA|NVIDIA|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|GOMP|OPENBLAS|ONEDNN"
    r"|MALLOC|HF_HUB_OFFLINE|LD_PRELOAD|GLIBC_TUNABLES|CC|CXX|FINETUNE)(_|$)"
)
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|URL|URI", re.IGNORECASE)
# Of the Hub, of this service, and what a URL has before its host.
_KNOWN_SECRETS: Final = (
    (re.compile(r"\b(hf_|ft_|sk-)[A-Za-z0-9_-]{8,}"), MASK),
    (re.compile(r"://[^/@\s]+@"), f"://{MASK}@"),
)
_UUID: Final = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{12,}", re.IGNORECASE)
# A shorter value is in too many innocent words.
_SHORTEST_SECRET: Final = 6
_SHORTEST_NAME: Final = 4


class Cleaner:
    """Takes secrets, the user's name, folders and host name, and all but the first part of a GPU's
    UUID out of text."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._replacements = sorted(self._find(), key=lambda pair: -len(pair[0]))
        # As whole words: NCCL begins each of its lines with the host's name.
        host = platform.node()
        self._names = [(_word(host), "<host>")] if len(host) >= _SHORTEST_NAME else []

    def text(self, text: str) -> str:
        for found, shown in self._replacements:
            text = text.replace(found, shown)
        for pattern, shown in (*_KNOWN_SECRETS, *self._names):
            text = pattern.sub(shown, text)
        return _UUID.sub(r"\1…", text)

    def value(self, value: JsonValue) -> JsonValue:
        """The same in all strings of a JSON value, the names of its members included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(part) for part in value]
        if isinstance(value, dict):
            return {self.text(name): self.value(part) for name, part in value.items()}
        return value

    def variables(self) -> dict[str, str]:
        """Those of the environment that matter; of secrets only that they are set."""
        shown = {n: v for n, v in sorted(self._environment.items()) if _SHOWN.match(n)}
        return {
            name: MASK if _SECRET.search(name) else self.text(value)
            for name, value in shown.items()
        }

    def _find(self) -> Iterator[tuple[str, str]]:
        for name, value in self._environment.items():
            if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
                yield value, MASK
        home = self._environment.get("FINETUNE_HOME", "")
        if len(home) > 1:
            yield home, "$FINETUNE_HOME"
        folder = str(Path.home())
        if folder != "/":
            yield folder, "~"


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
