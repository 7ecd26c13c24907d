"""What a run of benchmarks/training_speed.py trains; shared with its reference process."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

LORA_RANK = 8


@dataclass(frozen=True)
class Case:
    name: str
    """`qa`, `mlm`, `clm` or `lora`."""
    best: bool
    """The Trainer at its best; else as the reference scripts set it up by default."""
    bf16: bool
    """Whether the Trainer at its best computes in bfloat16."""
    steps: int
    batch_size: int
    max_length: int
    learning_rate: float
    from_scratch: bool
    folder: Path
    prepared_dir: Path
    model_dir: Path
    tokenizer_dir: Path
    seed: int = 42

    def write(self) -> Path:
        path = self.folder / "case.json"
        path.write_text(json.dumps(asdict(self), default=str))
        return path

    @classmethod
    def read(cls, path: Path) -> "Case":
        values = json.loads(path.read_text())
        paths = ("folder", "prepared_dir", "model_dir", "tokenizer_dir")
        given = {name: Path(values[name]) for name in paths}
        return cls(**{**values, **given})
