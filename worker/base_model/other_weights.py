"""Weights in formats other than safetensors, and the commands that convert them."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from service.contract.failures import FailureCode, StageError

_SHOWN: Final = 5


@dataclass(frozen=True)
class Format:
    pattern: re.Pattern[str]
    nature: str
    """Why it is not loaded."""
    command: str
    """Run in the model's folder, it writes model.safetensors there or in `converted/`."""


# Tensors that share memory, such as tied embeddings, are written separately.
_FROM_PICKLE: Final = (
    'python -c "import glob, torch; from safetensors.torch import save_file; w = {}; '
    "[w.update(torch.load(f, map_location='cpu', weights_only=True)) "
    "for f in sorted(glob.glob('*.bin') + glob.glob('*.pt') + glob.glob('*.pth'))]; "
    "save_file({k: v.clone().contiguous() for k, v in w.items()}, 'model.safetensors', "
    "metadata={'format': 'pt'})\""
)
# transformers 4 reads these; config.json names the class. Tested on BERT with torch 2.14 and flax
# 0.12, and with tensorflow 2.21.
_WITH_TRANSFORMERS_4: Final = (
    "python -m venv old && "
    "old/bin/pip install 'transformers==4.46.3' 'huggingface-hub<1' torch {library} && "
    'old/bin/python -c "import json, transformers; '
    "name = json.load(open('config.json'))['architectures'][0].removeprefix('{prefix}'); "
    "getattr(transformers, name).from_pretrained('.', {option}=True).save_pretrained('converted')\""
)
_FORMATS: Final = (
    Format(
        re.compile(r"[^/]+\.(bin|pt|pth|ckpt|pkl)"),
        "pickles, which can run code when they are loaded",
        _FROM_PICKLE,
    ),
    Format(
        re.compile(r"[^/]+\.msgpack"),
        "Flax's format, which holds no code but which neither PyTorch nor transformers 5 reads",
        _WITH_TRANSFORMERS_4.format(library="flax", prefix="Flax", option="from_flax"),
    ),
    Format(
        re.compile(r"[^/]+\.h5"),
        "TensorFlow's format, which neither PyTorch nor transformers 5 reads",
        _WITH_TRANSFORMERS_4.format(library="tensorflow tf-keras", prefix="TF", option="from_tf"),
    ),
)


def refuse(name: str, files: Iterable[str], *, is_on_hub: bool) -> None:
    """StageError(unsafe_weights) if a model without safetensors has weights in another format.

    With several formats the error has the first one's command, which needs the least.
    """
    listed = sorted(files)
    for kind in _FORMATS:
        found = [file for file in listed if kind.pattern.fullmatch(file)]
        if not found or found == ["training_args.bin"]:
            continue
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        command = _command(name, kind, is_on_hub=is_on_hub)
        raise StageError(
            FailureCode.UNSAFE_WEIGHTS,
            f"The model {name!r} has weights only as {shown}: {kind.nature}. Only safetensors "
            f"files are loaded. If you trust their source, convert them: {command}",
            files=found,
            command=command,
        )


def _command(name: str, kind: Format, *, is_on_hub: bool) -> str:
    if not is_on_hub:
        return f"cd {shlex.quote(name)} && {kind.command}"
    return f"hf download {shlex.quote(name)} --local-dir model && cd model && {kind.command}"
