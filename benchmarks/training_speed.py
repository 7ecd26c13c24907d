"""Compares the speed of the train stage with `transformers.Trainer` on the same data.

    python -m benchmarks.training_speed [qa mlm clm lora] [--steps 30] [--pairs 3]

For each task there are two references: the Trainer as run_qa, run_mlm and run_clm set it up by
default (fp32, QA padded to 384), and the Trainer with its best settings (QA padded to the longest
and grouped by length; precision, threads and allocator as trainings of a few steps of its own are
fastest on this machine, which is printed). Ours uses its defaults, including the allocator that a
worker gives its stages, except for QA's order by length. `lora` is
the causal language model of `clm` with an adapter of rank 8, by peft on both sides. Each pair runs
ours and the reference in turn, each in its own process with all cores. Printed are real tokens
(without padding) per second of training, the median ratio with its range, the mean loss of both
over the same number of steps, and the peak memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.cases import LORA_RANK, Case
from service.contract.states import Stage
from service.settings import Settings
from tests.stages.support import Running, write_request
from tests.support.models import minilm_dir
from worker.processes import allocator
from worker.processes.stage_environment import stage_environment
from worker.training import cpu_products

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
LENGTHS = {"qa": 384, "mlm": 512, "clm": 512, "lora": 512}
TASKS: dict[str, dict[str, Any]] = {
    "qa": {"type": "question-answering", "max_seq_length": 384, "doc_stride": 128},
    "mlm": {"type": "masked-lm", "max_seq_length": 512},
    "clm": {"type": "causal-lm", "block_size": 512},
    "lora": {"type": "causal-lm", "block_size": 512},
}
_TRIAL_STEPS = 4
_HOPELESS = 3
"""bfloat16 is not tried where layers take this many times as long in it as in float32."""
GPT2: dict[str, Any] = {"n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 512}


def base_model(name: str, folder: Path) -> Path:
    """The base model of the task; `lora`: the one that `save_gpt2` saved in the case's folder."""
    return folder / "gpt2" if name == "lora" else minilm_dir()


def save_gpt2(folder: Path) -> None:
    """Save the model that `clm` creates from scratch, so that an adapter can be added to it."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_dir())
    transformers.set_seed(42)
    own: dict[str, Any] = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(**own, **GPT2)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def spec(name: str, training: dict[str, Any], base: Path | None = None) -> dict[str, Any]:
    """`base`: the model's folder; default: MiniLM."""
    model: dict[str, Any] = {"name_or_path": str(base or minilm_dir())}
    more = {"peft": {"method": "lora", "r": LORA_RANK}} if name == "lora" else {}
    if name == "clm":
        model = {"config": {"model_type": "gpt2", "config_overrides": GPT2}}
        model["tokenizer_name"] = str(minilm_dir())
    file = "squad/train-v1.1.json" if name == "qa" else "wikitext/train.txt"
    return {
        "task": TASKS[name],
        "model": model,
        "dataset": {"source": "path", "train": str(EXAMPLES / file)},
        "training": training,
        "resources": {"gpus": 0},
        **more,
    }


@cache
def malloc() -> str:
    """The allocator that a worker on this machine gives its stages."""
    return allocator.find(allocator.AUTO, with_gpu=torch.cuda.is_available())


@dataclass(frozen=True)
class Process:
    """A stage's process; by default as a worker starts it, with all cores."""

    threads: int | None = None
    malloc: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    before: str = "pass"
    """Python that is run before the stage's module."""

    def environment(self, kind: str, home: Path) -> dict[str, str]:
        settings = Settings(home=home).model_copy(update={"malloc": self.malloc or malloc()})
        threads = str(self.threads or os.cpu_count())
        own = stage_environment(settings, Stage(kind)) | {"HF_HUB_OFFLINE": "1"}
        return {**own, "OMP_NUM_THREADS": threads, **self.variables}

    def command(self, kind: str) -> list[str]:
        module = f"worker.stages.{kind}.stage"
        run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        return ["-c", f"import runpy\n{self.before}\n{run}"]


AS_A_WORKER = Process()


def stage(
    kind: str, folder: Path, body: dict[str, Any], process: Process = AS_A_WORKER, **more: Any
) -> Any:
    """Run a stage in its own process; returns its output."""
    own = folder.parent
    roots = {"data_roots": [EXAMPLES, own], "model_roots": [minilm_dir(), own]}
    request = write_request(folder, body, **{**roots, **more, "stage": kind})
    return Running(
        [*process.command(kind), str(request)], folder / "log", process.environment(kind, own)
    ).wait()


def prepared(name: str, folder: Path, *, steps: int) -> tuple[Case, dict[str, Any]]:
    """The case with the reference's defaults, and the output of `prepare`."""
    if name == "lora":
        save_gpt2(base_model(name, folder))
    body = spec(name, {}, base_model(name, folder))
    result = stage("prepare", folder / "prepare", body).result
    case = Case(
        name=name,
        best=False,
        bf16=False,
        steps=steps,
        batch_size=8,
        max_length=LENGTHS[name],
        learning_rate=5e-5,
        from_scratch=name == "clm",
        folder=folder,
        prepared_dir=Path(result["prepared_dir"]),
        model_dir=Path(result["model_dir"]),
        tokenizer_dir=Path(result["tokenizer_dir"]),
    )
    return case, result


@dataclass(frozen=True)
class Side:
    rate: float
    """Real tokens, without padding, per second of training."""
    loss: float
    """The mean over all steps."""
    peak: float
    """Bytes resident at most."""


def report(label: str, pairs: Sequence[tuple[Side, Side]]) -> None:
    """Ours and the reference's; losses and memory are those of the last pair."""
    ratios = [mine.rate / other.rate for mine, other in pairs]
    rates = [statistics.median(side.rate for side in sides) for sides in zip(*pairs, strict=True)]
    mine, other = pairs[-1]
    print(
        f"{label:35} {statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})   "
        f"tokens/s {rates[0]:5.0f} : {rates[1]:5.0f}   loss {mine.loss:.4f} : {other.loss:.4f}   "
        f"peak {mine.peak / 2**30:.2f} : {other.peak / 2**30:.2f} GiB",
        flush=True,
    )


def training_of(case: Case, **options: Any) -> dict[str, Any]:
    """`training` of our side of the case, with `options` in place of its own."""
    return {
        "max_steps": case.steps,
        "per_device_train_batch_size": case.batch_size,
        "learning_rate": case.learning_rate,
        "logging_steps": case.steps,
        "save_strategy": "no",
        "train_sampling_strategy": "group_by_length" if case.name == "qa" else "random",
        **options,
    }


def ours(
    case: Case,
    number: int,
    prepare_result: dict[str, Any],
    process: Process = AS_A_WORKER,
    **options: Any,
) -> Side:
    """`number`: of the run, for its folder; `options`: of `training`, besides the case's."""
    training = training_of(case, **options)
    folder = case.folder / f"ours-{number}"
    body = spec(case.name, training, base_model(case.name, case.folder))
    ended = stage("train", folder, body, process, prepared=prepare_result)
    metrics = ended.result["metrics"]
    return Side(
        metrics["train_tokens_per_second"],
        metrics["train_loss"],
        metrics["train_peak_memory_bytes"],
    )


@dataclass(frozen=True)
class Reference:
    """The Trainer, with what its process gets."""

    case: Case
    threads: int = os.cpu_count() or 1
    malloc: str = allocator.SYSTEM

    def run(self) -> Side:
        variables = allocator.preloading(self.malloc, {})
        path = str(self.case.write())
        output = program("benchmarks.reference", path, threads=self.threads, variables=variables)
        return Side(output["tokens"] / output["seconds"], output["loss"], output["peak_bytes"])

    def __str__(self) -> str:
        precision = "bfloat16" if self.case.bf16 else "float32"
        return f"{precision}, {self.threads} threads, malloc {self.malloc}"


@cache
def bfloat16_may_pay() -> bool:
    """False where a trial of a few steps could only be slower, and would take minutes."""
    layers = cpu_products.measured(cpu_products.USUAL)
    print(f"  layers take {layers}", flush=True)
    return layers.bfloat16 < _HOPELESS * layers.float32


def at_its_best(case: Case) -> Reference:
    """The precision, then the threads, then the allocator with which the Trainer is fastest."""
    best = Reference(replace(case, best=True, steps=_TRIAL_STEPS))
    rate = best.run().rate
    for changed in (
        {"case": replace(best.case, bf16=bfloat16_may_pay())},
        {"threads": psutil.cpu_count(logical=False) or best.threads},
        {"malloc": malloc()},
    ):
        other = replace(best, **changed)
        if other == best:
            continue
        other_rate = other.run().rate
        print(f"  {best}: {rate:.0f} tokens/s; {other}: {other_rate:.0f}", flush=True)
        if other_rate > rate:
            best, rate = other, other_rate
    return replace(best, case=replace(best.case, steps=case.steps))


def program(
    module: str,
    *arguments: str,
    threads: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a module in its own process, by default with all cores; returns the JSON of its last
    line. If it fails, SystemExit has its output."""
    own = {"OMP_NUM_THREADS": str(threads or os.cpu_count()), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **own, **(variables or {})},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-5000:])
    output: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return output


def compare(name: str, folder: Path, *, steps: int, pairs: int) -> None:
    folder.mkdir()
    case, result = prepared(name, folder, steps=steps)
    best = at_its_best(case)
    print(f"{name}: the Trainer is fastest in {best}", flush=True)
    references = {"reference's defaults": Reference(case), "Trainer at its best": best}
    for place, (label, theirs) in enumerate(references.items()):
        numbers = range(place * pairs, (place + 1) * pairs)
        rows = [(ours(case, number, result), theirs.run()) for number in numbers]
        report(f"{name} against the {label}", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default="all", choices=[*TASKS, "all"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in TASKS if "all" in options.tasks else options.tasks:
            compare(name, Path(folder) / name, steps=options.steps, pairs=options.pairs)
    print(f"our malloc {malloc()}   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
