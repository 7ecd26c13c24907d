"""worker.training.distributed.shared_weights, in two processes."""

import faulthandler
import gc
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from service.contract.spec.spec import JobSpec
from tests.contract.factories import job_spec
from tests.training.support.jobs import Job, tiny_model
from worker.stages.train.inputs import load_parts
from worker.training import build
from worker.training.distributed import registry, shared_weights
from worker.training.distributed.fsdp import FSDPStrategy
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.shared_weights import read_once

Work = Callable[[Ranks], Any]
_RANK_SECONDS = 60


def on_two(folder: Path, work: Work) -> list[Any]:
    """What `work` returns in each of two processes, which are forked: nothing is imported again."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    members = [
        context.Process(target=_rank, args=(number, folder / "store", work, pipes[number][1]))
        for number in range(2)
    ]
    # A process group that another test has left is ended here: in a child, which has none of its
    # threads, its end would abort that child.
    gc.collect()
    for member in members:
        member.start()
    for _, sender in pipes:
        sender.close()
    results = [receiver.recv() for receiver, _ in pipes]
    for member in members:
        member.join()
    for result in results:
        if isinstance(result, str):
            pytest.fail(result)
    return results


def _rank(number: int, store: Path, work: Work, sender: Any) -> None:
    # Shows where each rank waits if one of them never arrives, and ends both.
    faulthandler.dump_traceback_later(_RANK_SECONDS, exit=True)
    try:
        torch.set_num_threads(1)
        file = torch.distributed.FileStore(str(store), 2)  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=file, rank=number, world_size=2)
        sender.send(work(Ranks(number, 2, torch.distributed.group.WORLD)))
        torch.distributed.destroy_process_group()
    except BaseException:
        sender.send(traceback.format_exc())


def model_with_new_head() -> tuple[Any, list[str]]:
    model = tiny_model()
    model.register_buffer("scale", torch.rand(3), persistent=False)
    model.transformer.wpe.weight.requires_grad_(False)
    return model, ["score.weight"]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters())


def shared_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:weights")


class TestReadOnce:
    @pytest.mark.usefixtures("processes")
    def test_the_others_have_what_the_first_has_read(self, tmp_path: Path) -> None:
        def work(ranks: Ranks) -> Any:
            torch.manual_seed(ranks.rank)
            read = [0]

            def load() -> tuple[Any, list[str]]:
                read[0] += 1
                return model_with_new_head()

            model, new = read_once(load, ranks)
            return {
                "read": read[0],
                "new": new,
                "weights": {name: value.tolist() for name, value in model.state_dict().items()},
                "buffer": model.scale.tolist(),
                "trains": {name: each.requires_grad for name, each in model.named_parameters()},
                "tied": model.lm_head.weight is model.transformer.wte.weight,
                "loss": model.eval()(
                    torch.arange(8)[None], labels=torch.arange(8)[None]
                ).loss.item(),
                "drawn": torch.rand(3).tolist(),
                "mapped": shared_mappings() > 0,
                "loss_type": model.loss_type,
            }

        first, second = on_two(tmp_path, work)
        assert (first.pop("read"), second.pop("read")) == (1, 0)
        assert first == second
        assert first["tied"]
        assert first["mapped"]
        expected = tiny_model().state_dict()
        assert first["weights"] == {name: value.tolist() for name, value in expected.items()}

    @pytest.mark.usefixtures("processes")
    def test_what_one_writes_is_its_own(self, tmp_path: Path) -> None:
        def work(ranks: Ranks) -> Any:
            (weight,) = read_once(lambda: [torch.nn.Parameter(torch.ones(5))], ranks)
            with torch.no_grad():
                weight[ranks.rank] = 7.0
            ranks.barrier()
            return weight.tolist()

        assert on_two(tmp_path, work) == [[7, 1, 1, 1, 1], [1, 7, 1, 1, 1]]

    @pytest.mark.usefixtures("processes")
    def test_the_memory_is_free_when_the_weights_are(self, tmp_path: Path) -> None:
        def work(ranks: Ranks) -> Any:
            model, _ = read_once(model_with_new_head, ranks)
            before = shared_mappings()
            buffer = model.scale
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
            del model, parameter
            return before > 0, shared_mappings(), len(buffer)

        assert on_two(tmp_path, work) == [(True, 0, 3)] * 2

    @pytest.mark.usefixtures("processes")
    def test_kinds_of_weights(self, tmp_path: Path) -> None:
        def made() -> list[torch.nn.Parameter]:
            values = [
                torch.arange(4, dtype=torch.bfloat16),
                torch.zeros(0, 3),
                torch.zeros(0, 3),
                torch.tensor(2.5),
                torch.arange(6.0).view(2, 3).T,
                torch.arange(3),
            ]
            return [torch.nn.Parameter(value, value.is_floating_point()) for value in values]

        def work(ranks: Ranks) -> Any:
            found = read_once(made, ranks)
            return [(value.dtype, value.shape, value.tolist()) for value in found]

        expected = [(value.dtype, value.shape, value.tolist()) for value in made()]
        assert on_two(tmp_path, work) == [expected, expected]

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize("reason", ["no such memory", "cannot be opened", "cannot be pickled"])
    def test_each_reads_for_itself_where_nothing_can_be_shared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
    ) -> None:
        def refuse(*_: Any) -> Any:
            raise PermissionError(reason)

        if reason == "no such memory":
            monkeypatch.setattr(os, "memfd_create", refuse)
        if reason == "cannot be opened":
            monkeypatch.setattr(os, "open", refuse)

        def work(ranks: Ranks) -> Any:
            def load() -> Any:
                model: Any = tiny_model()
                if reason == "cannot be pickled":
                    model.hook = lambda: None
                return model

            model = read_once(load, ranks)
            return [value.tolist() for value in model.parameters()]

        expected = [value.tolist() for value in tiny_model().parameters()]
        assert on_two(tmp_path, work) == [expected, expected]

    @pytest.mark.usefixtures("processes")
    def test_each_process_reads_where_the_machine_cannot_be_known(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_weights, "_BOOT", tmp_path / "hidden")

        def work(ranks: Ranks) -> Any:
            (weight,) = read_once(lambda: [torch.nn.Parameter(torch.ones(5))], ranks)
            return weight.tolist(), shared_mappings()

        first, second = on_two(tmp_path, work)
        assert second == ([1] * 5, 1)  # that of its own
        assert first[0] == second[0]

    @pytest.mark.usefixtures("processes")
    def test_each_machine_reads_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where process ids and descriptors of one mean other files on the other."""

        def work(ranks: Ranks) -> Any:
            torch.manual_seed(ranks.rank)
            machine = "upper" if ranks.rank < 1 else "lower"
            monkeypatch.setattr(shared_weights, "_machine", lambda: (machine, 0))
            read = [0]

            def load() -> torch.nn.Parameter:
                read[0] += 1
                return torch.nn.Parameter(torch.rand(3))

            head = read_once(load, ranks)
            return read, head.tolist(), torch.rand(3).tolist()

        first, second = on_two(tmp_path, work)
        assert first[0] == [1]
        assert first == second

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize("kind", ["zeros", "empty", "pipe"])
    def test_another_file_under_the_descriptors_number_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """As in another container, in which the process id is that of another process."""
        other, opened = tmp_path / "other", os.open
        if kind == "pipe":
            os.mkfifo(other)
        else:
            other.write_bytes(b"")
            os.truncate(other, (1 << 26) if kind == "zeros" else 0)

        def elsewhere(path: str, *flags: int) -> int:
            return opened(other if path.startswith("/proc/") else path, *flags)

        monkeypatch.setattr(os, "open", elsewhere)

        def work(ranks: Ranks) -> Any:
            return [value.tolist() for value in read_once(tiny_model, ranks).parameters()]

        expected = [value.tolist() for value in tiny_model().parameters()]
        assert on_two(tmp_path, work) == [expected, expected]

    def test_one_process_alone_just_reads(self) -> None:
        value = object()
        assert read_once(lambda: value, Ranks()) is value


@pytest.mark.usefixtures("processes")
class TestStage:
    def test_the_model_is_loaded_once(
        self, tmp_path: Path, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And a checkpoint of it is read once, into what each process has of it."""
        strategy = {"gpus": 0, "num_processes": 2, "strategy": "fsdp"}
        request = make_job(resources=strategy).request()
        loads: list[str] = []
        original = build.load_model
        monkeypatch.setattr(
            build, "load_model", lambda *a, **o: loads.append("") or original(*a, **o)
        )
        events: list[Any] = []
        assert request.prepared is not None
        prepared = request.prepared

        def work(ranks: Ranks) -> Any:
            parts = load_parts(request, prepared, torch.device("cpu"), events.append, ranks)
            read = len(loads)
            strategy = FSDPStrategy(Accelerator(cpu=True), parts.model, sgd, request.spec, ranks)
            del parts
            sharded = shared_mappings()

            def fill(model: torch.nn.Module) -> None:
                loads.append("")
                with torch.no_grad():
                    for number, value in enumerate(model.parameters()):
                        value.fill_(number)

            strategy.load_weights(fill, trained_only=False)
            held = [value.full_tensor().unique().tolist() for value in strategy.model.parameters()]
            return read, sharded, len(loads) - read, held

        first, second = on_two(tmp_path, work)
        values = [[float(number)] for number in range(len(first[3]))]
        assert first == (1, 0, 1, values)
        assert second == (0, 0, 0, values)


class TestWhose:
    """Weights that stay where they were loaded would keep the shared memory for ever."""

    def spec(self, strategy: str, **body: Any) -> JobSpec:
        return job_spec(resources={"gpus": 2, "strategy": {"type": strategy}}, **body)

    @pytest.mark.parametrize(
        ("device", "strategy", "expected"),
        [("cpu", "ddp", False), ("cpu", "fsdp", True), ("cuda", "ddp", True)],
    )
    def test_where_the_training_has_copies(
        self, device: str, strategy: str, expected: bool
    ) -> None:
        made = self.spec(strategy)
        assert registry.leaves_loaded_weights(made, torch.device(device)) is expected

    def test_not_of_quantized_ones(self) -> None:
        peft = {"method": "lora", "quantization": {"bits": 4}}
        made = self.spec("ddp", peft=peft)
        assert not registry.leaves_loaded_weights(made, torch.device("cuda"))
