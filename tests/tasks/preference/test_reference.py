"""worker.stages.reference.log_probs: they survive kills, damage and full disks, bit for bit."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from service.contract.stage import prepared_data
from service.contract.stage.events import Notice, ReferenceSaved
from tests.tasks.preference.support import job
from tests.tasks.stages import StagedJob
from tests.training.support.jobs import Killed, Recorder
from tests.training.support.two import Case, run_on_two
from worker.stages.reference import blocks as reference_blocks
from worker.stages.train import inputs
from worker.storage import atomic_dir
from worker.training.distributed.ranks import Ranks
from worker.training.evaluation.evaluator import Evaluator
from worker.training.fast_paths import FastPaths
from worker.training.kernels import cpu_attention, cpu_attention_choice
from worker.training.kernels.cpu_attention import Kernels

pytestmark = pytest.mark.usefixtures("trainings")

BATCHES = list(range(6)) + list(range(3))
"""Of 12 pairs to train on and 5 to validate, two in a batch."""
Undisturbed = Callable[..., dict[str, bytes]]


@pytest.fixture(autouse=True)
def _each_batch_is_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_blocks, "SECONDS_OF_BLOCK", 0.0)


@contextmanager
def forwards(
    before: Callable[[int, Any], None] = lambda _count, _batch: None,
) -> Iterator[list[int]]:
    """The numbers of the batches that the reference gives to the model; `before` is called with how
    many there were."""
    numbers: list[int] = []
    output, run = Evaluator._output, Evaluator.run

    def noting(self: Evaluator, batch: Any, number: int, *arguments: Any) -> Any:
        before(len(numbers), batch)
        numbers.append(number)
        return output(self, batch, number, *arguments)

    def run_noting(self: Evaluator, compute: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Evaluator, "_output", noting)
            return run(self, compute)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Evaluator, "run", run_noting)
        yield numbers


def die_at(place: int) -> Callable[[int, Any], None]:
    def die(count: int, _batch: Any) -> None:
        if count == place:
            raise Killed

    return die


def made(folder: Path, **task: Any) -> StagedJob:
    folder.mkdir(exist_ok=True)
    return job(folder, task, per_device_eval_batch_size=2, max_steps=1)


def killed(folder: Path, at: int, **task: Any) -> StagedJob:
    """A job whose first attempt died before it computed batch `at` of all splits."""
    staged = made(folder, **task)
    with forwards(die_at(at)), pytest.raises(Killed):
        staged.train()
    return staged


@pytest.fixture(scope="module")
def kept() -> dict[str, dict[str, bytes]]:
    return {}


@pytest.fixture
def undisturbed(tmp_path: Path, kept: dict[str, dict[str, bytes]]) -> Undisturbed:
    """The values of a job that was never interrupted, computed once for each loss."""

    def values(loss_type: str = "sigmoid") -> dict[str, bytes]:
        if loss_type not in kept:
            staged = made(tmp_path / "whole", loss_type=loss_type)
            staged.train()
            kept[loss_type] = values_of(staged)
        return kept[loss_type]

    return values


def root_of(staged: StagedJob) -> Path:
    return staged.home / "cache" / prepared_data.REFERENCE


def values_of(staged: StagedJob) -> dict[str, bytes]:
    """Name of a file → its content; only the complete entry has such files at this depth."""
    files = list(root_of(staged).glob("*/*.npy"))
    assert {file.name for file in files} == {"train.npy", "validation.npy"}
    return {file.name: file.read_bytes() for file in files}


def blocks_of(staged: StagedJob) -> list[Path]:
    return sorted(root_of(staged).glob("*-blocks/*/*"))


@pytest.mark.parametrize(
    ("at", "loss_type"),
    [
        *((3, "kto"), (7, "sigmoid")),
        pytest.param(3, "sigmoid", marks=pytest.mark.heavy),
        pytest.param(7, "kto", marks=pytest.mark.heavy),
    ],
)
def test_a_killed_attempt_is_continued(
    tmp_path: Path, undisturbed: Undisturbed, loss_type: str, at: int
) -> None:
    """In the training split, and in the validation split. KTO has 24 and 10 single answers."""
    splits = (range(12), range(5)) if loss_type == "kto" else (range(6), range(3))
    batches = [number for split in splits for number in split]
    staged = killed(tmp_path / "killed", at, loss_type=loss_type)
    with forwards() as computed:
        _, recorder = staged.train(attempt=3)
    assert computed == batches[at:]
    assert values_of(staged) == undisturbed(loss_type)
    [notice] = [e for e in recorder.of(Notice) if "Continuing the reference" in e.message]
    assert notice.data == {"features": recorder.of(ReferenceSaved)[0].features - 2}


def test_each_kill_leaves_more(tmp_path: Path, undisturbed: Undisturbed) -> None:
    staged = killed(tmp_path / "killed", 2)
    recorder = Recorder()
    with forwards(die_at(4)) as computed, pytest.raises(Killed):
        staged.train(attempt=3, recorder=recorder)
    assert computed == BATCHES[2:6]
    assert [event.features for event in recorder.of(ReferenceSaved)] == [6, 8, 10, 12]
    with forwards() as rest:
        staged.train(attempt=4)
    assert rest == BATCHES[6:]
    assert values_of(staged) == undisturbed()


def test_blocks_are_removed_when_the_reference_is_complete(tmp_path: Path) -> None:
    """Also those that an attempt left beside its complete reference."""
    staged = killed(tmp_path, 3)
    assert len(blocks_of(staged)) == 3
    [folder] = root_of(staged).glob("*-blocks")
    staged.train(attempt=3)
    assert not list(root_of(staged).glob("*-blocks"))
    (folder / "train" / "0").mkdir(parents=True)
    _, recorder = staged.train(attempt=4)
    assert any("Reusing the reference" in event.message for event in recorder.of(Notice))
    assert not folder.exists()


def test_a_short_reference_writes_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_blocks, "SECONDS_OF_BLOCK", 30.0)
    staged = killed(tmp_path, 7)
    assert not blocks_of(staged)


def test_a_block_has_the_batches_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Undisturbed
) -> None:
    """Also those of two splits, in a block of each."""
    clock = iter(range(100))  # read at the beginning, and after each batch
    stopwatch = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(reference_blocks, "time", stopwatch)
    monkeypatch.setattr(reference_blocks, "SECONDS_OF_BLOCK", 7.0)
    staged = killed(tmp_path / "killed", 8)
    sizes = {block.parent.name: len(np.load(block / "features.npy")) for block in blocks_of(staged)}
    assert sizes == {"train": 12, "validation": 2}
    with forwards() as computed:
        staged.train(attempt=3)
    assert computed == BATCHES[7:]
    assert values_of(staged) == undisturbed()


@pytest.mark.parametrize(
    "damage", ["flipped", pytest.param("short", marks=pytest.mark.heavy), "removed"]
)
def test_a_damaged_block_is_computed_again(
    tmp_path: Path, undisturbed: Undisturbed, damage: str
) -> None:
    staged = killed(tmp_path / "killed", 4)
    file = blocks_of(staged)[1] / "values.npy"
    numbers = {str(indices[0]): n for n, indices in enumerate(train_batches(staged))}
    content = file.read_bytes()
    match damage:
        case "flipped":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "short":
            file.write_bytes(content[:-1])
        case "removed":
            file.unlink()
    with forwards() as computed:
        staged.train(attempt=3)
    assert computed == [numbers[file.parent.name], *BATCHES[4:]]
    assert values_of(staged) == undisturbed()


def train_batches(staged: StagedJob) -> list[list[int]]:
    """As the evaluation makes them: the longest first."""
    found: list[list[int]] = []
    original = Evaluator.batches

    def batches(self: Evaluator, features: Any) -> list[list[int]]:
        made = original(self, features)
        found.extend(made if not found else [])
        return made

    with pytest.MonkeyPatch.context() as patched, forwards(die_at(0)):
        patched.setattr(Evaluator, "batches", batches)
        with suppress(Killed):
            staged.train(attempt=9)
    return found


def test_a_full_disk_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither for a lock nor for a block nor for the whole; and nothing counts as saved."""
    staged = made(tmp_path)
    locked, writing = prepared_data.locked, atomic_dir.writing

    def full(original: Any) -> Any:
        def refuse(path: Path, *rest: Any) -> Any:
            if prepared_data.REFERENCE in path.parts:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(path, *rest)

        return refuse

    staged.prepare()
    for module, name, original in (
        (prepared_data, "locked", locked),
        (atomic_dir, "writing", writing),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, full(original))
            _, recorder = staged.train(attempt=3)
        assert not recorder.of(ReferenceSaved)
        assert recorder.train_values("rewards/margins")[1] == pytest.approx(0, abs=1e-6)
        assert "Cannot save the reference's log-probabilities" in capfd.readouterr().err
        assert not blocks_of(staged)


def test_after_a_full_disk_the_next_block_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, refused = atomic_dir.writing, [True, True]

    def refuse(path: Path) -> Any:
        if refused:
            refused.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return writing(path)

    staged = made(tmp_path)
    staged.prepare()
    monkeypatch.setattr(atomic_dir, "writing", refuse)
    with forwards(die_at(4)), pytest.raises(Killed):
        staged.train()
    with forwards() as computed:
        staged.train(attempt=3)
    assert computed == BATCHES[4:]


def test_blocks_stay_if_the_whole_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = atomic_dir.writing

    def refuse(path: Path) -> Any:
        if path.parent.name == prepared_data.REFERENCE:
            raise OSError(errno.ENOSPC, "No space left on device")
        return writing(path)

    staged = made(tmp_path)
    staged.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(atomic_dir, "writing", refuse)
        staged.train()
    with forwards() as computed:
        staged.train(attempt=3)
    assert computed == []
    assert values_of(staged)


def test_a_batch_that_was_computed_in_halves_is_kept_as_a_whole(tmp_path: Path) -> None:
    """The attempt dies between the halves of the second batch."""
    staged = made(tmp_path)
    calls: list[int] = []

    def starve(_count: int, batch: Any) -> None:
        size = len(batch["sequence_counts"])
        calls.append(size)
        if size > 1:
            raise torch.OutOfMemoryError("out of memory")
        if len(calls) == 6:
            raise Killed

    with forwards(starve), pytest.raises(Killed):
        staged.train()
    assert calls == [2, 1, 1, 2, 1, 1]
    with forwards() as computed:
        staged.train(attempt=3)
    assert computed == BATCHES[1:]


class TestKey:
    @pytest.mark.parametrize(
        ("name", "chosen", "reused"),
        [
            ("lean_layers", False, False),
            ("compiled_layers", False, True),
            ("cpu_attention", {"training": "plain", "evaluation": "plain"}, True),
            ("cpu_attention", {"training": "fused", "evaluation": "fused"}, False),
        ],
    )
    def test_has_the_paths_that_were_chosen_with_the_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, chosen: Any, reused: bool
    ) -> None:
        """A resumed training keeps the paths it began with; compiled layers only train, and keys of
        earlier releases have no kernels of the attention."""
        staged = made(tmp_path)
        staged.train()
        monkeypatch.setattr(
            inputs, "FastPaths", lambda ranks, _recorded: FastPaths(ranks, {name: chosen})
        )
        _, recorder = staged.train(attempt=3)
        found = any("Reusing the reference" in event.message for event in recorder.of(Notice))
        assert found is reused


def test_its_attention_is_computed_as_in_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where evaluations would be faster with the other kernel."""
    measured = cpu_attention_choice.Seconds(2.0, 1.0, 1.0, 2.0)
    assert measured.kernels.evaluation == "fused"
    monkeypatch.setattr(cpu_attention_choice, "measured", lambda _shape: measured)
    used: list[Kernels] = []
    monkeypatch.setattr(cpu_attention, "use", used.append)
    job(tmp_path, {}, per_device_eval_batch_size=2, max_steps=1, bf16=True).train()
    assert used == [Kernels(training="plain", evaluation="plain")]


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_two_processes_continue_what_one_began(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The first reads the blocks for both and writes the others; the rest is shared out."""
    staged = killed(tmp_path / "killed", 3)
    staged.body["resources"] = {"gpus": 0, "num_processes": 2}
    two = tmp_path / "two"
    two.mkdir()
    case = Case(staged.request(attempt=3), saves_each_batch=True)
    outcome = run_on_two(two, {"continued": case})["continued"]
    assert outcome.evaluated[:4] == [3, 5, 0, 2]
    saved = [event.features for event in outcome.recorder.of(ReferenceSaved)]
    assert saved == [8, 10, 12, 14, 16, 17]
    assert values_of(staged) == undisturbed()
    assert not blocks_of(staged)


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    class Second(Ranks):
        def broadcast(self, value: Any, _source: int = 0) -> Any:
            return {}

    blocks = reference_blocks.Blocks.for_key(tmp_path, "k", Second(rank=1, world_size=2), _never)
    blocks._keep("train", [([0], np.zeros((1, 2), np.float32))])
    blocks.remove()
    assert not list(tmp_path.iterdir())


def _never(_count: int) -> None:
    raise AssertionError
