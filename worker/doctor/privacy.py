"""Removes secrets and personal data from a report, which users attach to public issues."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from service.system.masking import MASK, mask

# Variables that decide how torch, CUDA, NCCL and downloads behave; their values are shown.
_SHOWN: Final = re.compile(
    r"^(CUDA|NVIDIA|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|GOMP|OPENBLAS|ONEDNN"
    r"|MALLOC|HF|MLFLOW|TOKENIZERS|TRANSFORMERS|(HTTPS?|ALL|NO)_PROXY|VIRTUAL_ENV|LD_PRELOAD"
    r"|GLIBC_TUNABLES|CC|CXX|FINETUNE)(_|$)",
    re.IGNORECASE,
)
_SECRET: Final = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|URL|URI|_PROXY", re.IGNORECASE
)
_UUID: Final = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{12,}", re.IGNORECASE)
# Shorter values occur inside harmless words.
_MIN_SECRET_LENGTH: Final = 6
_MIN_HOST_LENGTH: Final = 4


class Cleaner:
    """Removes secrets, the user's folders, the host name and the rest of GPU UUIDs from text."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._replacements = sorted(self._find(), key=lambda pair: -len(pair[0]))

    def text(self, text: str) -> str:
        for found, shown in self._replacements:
            text = text.replace(found, shown)
        text, host = mask(text), platform.node()
        if len(host) >= _MIN_HOST_LENGTH:
            # Whole words only. NCCL begins each line of its output with the host name.
            text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "<host>", text)
        return _UUID.sub(r"\1…", text)

    def value(self, value: JsonValue) -> JsonValue:
        """Clean all strings of a JSON value, including its keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(part) for part in value]
        if isinstance(value, dict):
            return {self.text(name): self.value(part) for name, part in value.items()}
        return value

    def variables(self) -> dict[str, str]:
        """The environment variables that matter; the values of secrets are masked."""
        return {
            name: MASK if _SECRET.search(name) else self.text(value)
            for name, value in sorted(self._environment.items())
            if _SHOWN.match(name)
        }

    def _find(self) -> Iterator[tuple[str, str]]:
        for name, value in self._environment.items():
            if _SECRET.search(name) and len(value) >= _MIN_SECRET_LENGTH:
                yield value, MASK
        home = self._environment.get("FINETUNE_HOME", "")
        if len(home) > 1:
            yield home, "$FINETUNE_HOME"
        folder = str(Path.home())
        if folder != "/":
            yield folder, "~"
