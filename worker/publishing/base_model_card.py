"""What the base model's own card says that is true of its descendants: languages, license, tags.

Cards are written by anybody. What is faulty in one is left out, since the Hub would refuse a push
whose card repeats it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from huggingface_hub import metadata_load

from service.contract.stages import BaseCard, BaseJob
from service.contract.tasks import TASKS

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
"""To the Hub: it refuses cards with any other."""

_TAGS_OF_ITS_OWN: Final = """
adapter-transformers coreml diffusers endpoints_compatible feature-extraction fill-mask
finetune-service generated_from_keras_callback generated_from_trainer gguf ia3 jax keras lora mlx
onnx openvino peft prefix-tuning prompt-tuning pytorch rust safetensors sentence-similarity
sentence-transformers spacy tensorboard text-generation text2text-generation tf tflite timm trainer
transformers
"""
"""They say how the base model is stored, loaded or made; the new card says that for itself."""


def read(folder: Path) -> BaseCard | None:
    """Of the model in `folder`; None without a card, or when it says nothing that can be used."""
    path = folder / CARD
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        said = metadata_load(path)
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        return None
    return _card(said) if isinstance(said, dict) else None


def of_job(base: BaseJob) -> BaseCard | None:
    """Of the model of another job: its card lies with the attempt that published it."""
    finished = base.finished or base.folder
    cards = finished.parents[1].glob(f"*/{CARD}")
    newest = max(cards, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else read(newest.parent)


def _card(said: dict[Any, Any]) -> BaseCard | None:
    license_ = _text(said.get("license"))
    named = license_ == "other"
    card = BaseCard(
        language=list(dict.fromkeys(_languages(said.get("language"))))[:_MOST_LANGUAGES],
        license=license_ if license_ in _KNOWN_LICENSES.split() else None,
        license_name=_matching(_NAME, said.get("license_name")) if named else None,
        license_link=_matching(_LINK, said.get("license_link")) if named else None,
        tags=list(dict.fromkeys(_tags(said.get("tags"))))[:_MOST_TAGS],
    )
    return None if card == BaseCard() else card


def _languages(said: Any) -> Iterator[str]:
    for each in said if isinstance(said, list) else [said]:
        code = "no" if each is False else _text(each)  # Norwegian, to YAML a boolean
        if code and _LANGUAGE.fullmatch(code):
            yield code


def _tags(said: Any) -> Iterator[str]:
    known = {*_TAGS_OF_ITS_OWN.split(), *TASKS}
    for each in said if isinstance(said, list) else []:
        tag = _matching(_TAG, each)
        if tag and tag not in known:
            yield tag


def _text(said: Any) -> str | None:
    """A list of one is common."""
    if isinstance(said, list) and len(said) == 1:
        said = said[0]
    return said.strip().lower() if isinstance(said, str) else None


def _matching(pattern: re.Pattern[str], said: Any) -> str | None:
    found = pattern.fullmatch(said.strip()) if isinstance(said, str) else None
    return found.group() if found else None
