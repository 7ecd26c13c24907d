"""What torch.compile has made, for the next job of the kind."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from service.contract.stage import prepared_data
from service.contract.stage.stages import StageRequest
from tests.training.support.jobs import Job, rows, run
from worker.storage import atomic_dir
from worker.training.kernels import compile_cache
from worker.training.kernels.compile_cache import Verdict

OPTIONS: dict[str, Any] = {"max_steps": 2, "logging_steps": 1, "save_strategy": "no"}


@pytest.fixture(autouse=True)
def _undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "that of all")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def make_compiled(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., StageRequest]:
    """A job of its own each time; all share a cache."""

    def make(**options: Any) -> StageRequest:
        request = make_job(**{**OPTIONS, "torch_compile": True, **options}).request()
        return request.model_copy(update={"cache_dir": tmp_path / "cache"})

    return make


def compile_into(request: StageRequest, *, rank: int = 0, **files: str) -> set[str]:
    """A stage that compiles `files`; what it found."""
    with compile_cache.shared(request, rank, may_compile=True):
        own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert own.is_relative_to(request.attempt_dir)
        found = {path.name for path in own.rglob("*") if path.is_file()}
        own.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (own / name).write_text(text)
    return found


def entries(request: StageRequest) -> list[Path]:
    root = request.cache_dir / prepared_data.COMPILED
    return [path for path in root.iterdir() if path.is_dir()]


class TestShared:
    def test_the_next_job_finds_it(self, make_compiled: Callable[..., StageRequest]) -> None:
        request = make_compiled()
        assert compile_into(request, graph="1") == set()
        assert compile_into(make_compiled(learning_rate=1e-3), other="2") == {"graph"}
        assert compile_into(make_compiled()) == {"graph", "other"}
        [entry] = entries(request)
        assert atomic_dir.verify(entry)

    def test_another_kind_of_job_does_not(self, make_compiled: Callable[..., StageRequest]) -> None:
        compile_into(make_compiled(), graph="1")
        assert compile_into(make_compiled(per_device_train_batch_size=3)) == set()

    def test_another_project_does_not(self, make_compiled: Callable[..., StageRequest]) -> None:
        request = make_compiled()
        compile_into(request, graph="1")
        Verdict(request).write(faster=True)
        other = request.model_copy(update={"project_id": "other"})
        assert Verdict(other).read() is None
        assert compile_into(other, planted="2") == set()
        assert compile_into(request) == {"graph"}

    def test_nothing_is_kept_of_one_that_fails(
        self, make_compiled: Callable[..., StageRequest]
    ) -> None:
        request = make_compiled()
        folder: dict[str, Any] = {".": "no file"}
        with pytest.raises(OSError, match="Is a directory"):
            compile_into(request, half="a file", **folder)
        assert (request.attempt_dir / "compiled" / "0" / "half").exists()
        assert entries(request) == []

    def test_what_is_damaged_is_not_used(self, make_compiled: Callable[..., StageRequest]) -> None:
        request = make_compiled()
        compile_into(request, graph="1")
        (entries(request)[0] / "graph").write_text("2")
        assert compile_into(make_compiled(), graph="1") == set()
        assert atomic_dir.verify(entries(request)[0])

    def test_of_several_ranks_the_first_leaves_its_own(
        self, make_compiled: Callable[..., StageRequest]
    ) -> None:
        request = make_compiled()
        compile_into(request, rank=1, graph="1")
        assert entries(request) == []
        compile_into(request, rank=0, graph="1")
        assert len(entries(request)) == 1

    def test_a_full_disk_harms_no_job(
        self,
        make_compiled: Callable[..., StageRequest],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(atomic_dir, "writing", full)
        compile_into(make_compiled(), graph="1")
        assert "Cannot save the compiled code for later jobs: [Errno 28]" in capsys.readouterr().err

    def test_without_a_compiler_nothing_is_looked_for(
        self, make_compiled: Callable[..., StageRequest]
    ) -> None:
        request = make_compiled(torch_compile=False)
        with compile_cache.shared(request, 0, may_compile=False):
            pass
        assert not (request.cache_dir / prepared_data.COMPILED).exists()


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_training_compiles_what_no_other_has(
    make_compiled: Callable[..., StageRequest],
) -> None:
    """With the real compiler: the second job finds every graph, and computes the same."""
    counted, losses = [], []
    for _ in range(2):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        _, recorder = run(make_compiled(dropout=0.0, train=rows(16, length=12)))
        inductor = torch._dynamo.utils.counters["inductor"]
        counted.append((inductor["fxgraph_cache_miss"], inductor["fxgraph_cache_hit"]))
        losses.append(recorder.train_values("loss"))
    (missed, _), (missed_again, hit) = counted
    assert missed > 0
    assert (missed_again, hit) == (0, missed)
    assert losses[0] == losses[1]
