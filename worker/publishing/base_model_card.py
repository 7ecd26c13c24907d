"""Metadata of the base model's card that also holds for a fine-tuned one: language, license, tags.

A card may hold anything. Invalid metadata is left out, because the Hub would reject a card that
repeats it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from huggingface_hub import metadata_load

from service.contract.stage.stages import BaseCard, BaseJob
from service.contract.tasks.tasks import TASKS

CARD: Final = "README.md"
_MOST_BYTES: Final = 1 << 20
_MOST_LANGUAGES: Final = 200
_MOST_TAGS: Final = 20
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}|code|multilingual")
_TAG: Final = re.compile(r"[\w.+-][\w .:+/-]{0,49}")
_NAME: Final = re.compile(r"[a-z0-9._-]{1,64}")
_LINK: Final = re.compile(r"https://[^\s\"'<>]{1,500}")

_KNOWN_LICENSES: Final = """
afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear
bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0
cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0
cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
gemma gfdl gpl gpl-2.0 gpl-3.0 intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3
llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openrail
openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
"""
"""Known to the Hub, which rejects cards with any other license."""

_FORMAT_TAGS: Final = """
adapter-transformers coreml diffusers endpoints_compatible feature-extraction fill-mask
finetune-service generated_from_keras_callback generated_from_trainer gguf ia3 jax keras lora mlx
onnx openvino peft prefix-tuning prompt-tuning pytorch rust safetensors sentence-similarity
sentence-transformers spacy tensorboard text-generation text2text-generation tf tflite timm trainer
transformers
"""
"""How the base model is stored, loaded or made, which may differ for the new model."""


def read(folder: Path) -> BaseCard | None:
    """The card of the model in `folder`; None if there is none, or nothing usable in it."""
    path = folder / CARD
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        metadata = metadata_load(path)
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        return None
    return _card(metadata) if isinstance(metadata, dict) else None


def of_job(base: BaseJob) -> BaseCard | None:
    """The card of another job's model, which is in the folder of the attempt that published it."""
    finished = base.finished or base.folder
    cards = finished.parents[1].glob(f"*/{CARD}")
    newest = max(cards, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else read(newest.parent)


def _card(metadata: dict[Any, Any]) -> BaseCard | None:
    license_ = _text(metadata.get("license"))
    named = license_ == "other"
    card = BaseCard(
        language=list(dict.fromkeys(_languages(metadata.get("language"))))[:_MOST_LANGUAGES],
        license=license_ if license_ in _KNOWN_LICENSES.split() else None,
        license_name=_matching(_NAME, metadata.get("license_name")) if named else None,
        license_link=_matching(_LINK, metadata.get("license_link")) if named else None,
        tags=list(dict.fromkeys(_tags(metadata.get("tags"))))[:_MOST_TAGS],
    )
    return None if card == BaseCard() else card


def _languages(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        code = "no" if each is False else _text(each)  # Norwegian; YAML reads `no` as a boolean
        if code and _LANGUAGE.fullmatch(code):
            yield code


def _tags(value: Any) -> Iterator[str]:
    known = {*_FORMAT_TAGS.split(), *TASKS}
    for each in value if isinstance(value, list) else []:
        tag = _matching(_TAG, each)
        if tag and tag not in known:
            yield tag


def _text(value: Any) -> str | None:
    """The text, which is often in a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value.strip().lower() if isinstance(value, str) else None


def _matching(pattern: re.Pattern[str], value: Any) -> str | None:
    found = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
    return found.group() if found else None
