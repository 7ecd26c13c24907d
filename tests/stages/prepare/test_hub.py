"""`prepare` on models and data of the Hub double, through the real client."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode
from service.contract.stage.stages import BaseCard, PrepareResult
from tests.data.squad_sample import squad_rows
from tests.stages import support
from tests.stages.support import TOKEN, Forks, Run, request
from tests.support.hub import HubDouble, Repo, Request
from tests.tasks.classification.jobs import evaluations
from tests.tasks.stages import StagedJob, write_rows

NAMED = {"easy": "validation[:3]", "hard": "validation[3:7]"}
_NUMBERS = itertools.count()


@dataclass
class Repos:
    """A model and a data set for this test only."""

    hub: HubDouble
    model: Repo
    data: Repo

    def spec(self, **dataset: Any) -> dict[str, Any]:
        source = {"source": "hub", "name": self.data.id, **dataset}
        return support.spec(self.model.id) | {"dataset": source}

    def requests(self) -> list[Request]:
        return [one for one in self.hub.requests if self.model.id in one.path]


@pytest.fixture
def filled(hub: HubDouble, model: Path) -> Iterator[Repos]:
    number = next(_NUMBERS)
    files = {
        f"{split}.jsonl": "".join(json.dumps(row) + "\n" for row in squad_rows(split)).encode()
        for split in ("train", "validation")
    }
    hub.add_repo(f"org/tiny-{number}", model)
    hub.add_repo(f"org/squad-{number}", files, repo_type="dataset")
    yield Repos(hub, hub.repo(f"org/tiny-{number}"), hub.repo(f"org/squad-{number}", "dataset"))
    hub.heal()
    hub.gate_passes.clear()


class TestHub:
    def test_model_and_data_at_their_commits(self, run: Run, filled: Repos, model: Path) -> None:
        extra = {path.name: path.read_bytes() for path in model.iterdir()}
        extra |= {
            "README.md": b"---\nlicense: mit\n---\n",
            "pytorch_model.bin": b"x",
            "code.py": b"x",
            "onnx/model.safetensors": b"x",
        }
        commit = filled.model.commit("main", "more", extra).sha
        body = filled.spec(train="train[:50%]", validation="validation[:7]")
        ended = run(body)
        assert ended.status == 0, ended.log
        result = PrepareResult.model_validate(ended.result)
        assert result.model_revision == commit
        assert result.dataset_revision == filled.data.branches["main"]
        examples = {split: numbers["examples"] for split, numbers in result.splits.items()}
        assert examples == {"train": 26, "validation": 7}
        assert {path.name for path in result.model_dir.iterdir()} == {
            path.name
            for path in model.iterdir()
            if path.suffix in (".json", ".safetensors", ".txt")
        }
        weights = result.model_dir / "model.safetensors"
        assert not weights.readlink().is_absolute(), "the home may be moved"
        assert weights.read_bytes() == extra["model.safetensors"]
        assert result.base_card == BaseCard(license="mit")
        assert any(commit[:12] in notice for notice in ended.notices)
        fetched = {request.path for request in filled.requests() if "/resolve/" in request.path}
        assert not any(path.endswith((".bin", ".py")) for path in fetched)

    def test_named_validation_sets_train(
        self, run: Run, filled: Repos, model: Path, tmp_path: Path
    ) -> None:
        """Each has the numbers that the same rows have from a file."""
        training = {"max_steps": 1, "save_strategy": "no", "use_cpu": True}
        body = filled.spec(train="train[:8]", validation=NAMED) | {"training": training}
        prepared = run(body)
        assert prepared.status == 0, prepared.log
        result = PrepareResult.model_validate(prepared.result)
        sizes = {split: counts["examples"] for split, counts in result.splits.items()}
        assert sizes == {"train": 8, "validation.easy": 3, "validation.hard": 4}
        assert result.dataset_revision == filled.data.branches["main"]

        of_the_hub = StagedJob(tmp_path / "hub", body)
        of_the_hub.prepared = result
        rows = squad_rows("validation")
        files = {"easy": rows[:3], "hard": rows[3:7], "train": squad_rows("train")[:8]}
        paths = {name: write_rows(tmp_path / name, part) for name, part in files.items()}
        train = {"train": paths.pop("train"), "validation": paths}
        local = {"model": {"name_or_path": str(model)}, "dataset": {"source": "path", **train}}
        of_files = StagedJob(tmp_path / "files", body | local)
        found, expected = (evaluations(job.train()[0]) for job in (of_the_hub, of_files))
        assert {"eval_easy_f1", "eval_hard_f1", "eval_hard_loss"} <= set(found)
        assert found == expected

    def test_an_old_revision_of_the_data(self, run: Run, filled: Repos) -> None:
        repo = filled.data
        old = repo.branches["main"]
        repo.commit("main", "new", {"train.jsonl": b'{"question": 1}\n'})
        ended = run(filled.spec(revision=old))
        assert ended.result["dataset_revision"] == old
        assert ended.result["splits"]["train"]["examples"] == 52

    def test_a_job_that_is_prepared_again_takes_the_commits_that_it_had(
        self, run: Run, filled: Repos
    ) -> None:
        first = run(filled.spec()).result
        filled.data.commit("main", "new", {"train.jsonl": b'{"question": 1}\n'})
        filled.model.commit("main", "new", {"config.json": b"{}"})
        again = run(filled.spec(), prepared=first)
        assert again.status == 0, again.log
        for name in ("model_revision", "dataset_revision", "data_fingerprint"):
            assert again.result[name] == first[name]

    def test_a_bad_row_is_named(self, run: Run, filled: Repos) -> None:
        rows = squad_rows("train")[:3]
        rows[1]["answers"]["answer_start"][0] = 99_999
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        filled.data.commit("main", "bad", {"train.jsonl": content})
        failure = run(filled.spec()).failure
        assert failure.code is FailureCode.UNREADABLE_ROW
        assert failure.message.startswith(f"{filled.data.id}, split train, row 2: the answer")
        body = filled.spec(on_bad_row="skip", max_bad_fraction=0.34)
        ended = run(body)
        assert ended.status == 0, ended.log
        assert ended.result["splits"]["train"]["examples"] == 2
        counts = ended.result["data_report"]["splits"]["train"]
        assert counts["skipped_by_reason"] == {"answer_not_found": 1}

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"name": "org/none"}, FailureCode.DATASET_NOT_FOUND),
            ({"revision": "none"}, FailureCode.DATASET_NOT_FOUND),
            ({"train": "none"}, FailureCode.DATASET_NOT_FOUND),
            ({"train": "train[:x%]"}, FailureCode.DATASET_NOT_FOUND),
            ({"config": "none"}, FailureCode.DATASET_NOT_FOUND),
            ({"train": "train[:0]"}, FailureCode.EMPTY_DATASET),
            ({"columns": {"context": "passage"}}, FailureCode.MISSING_COLUMN),
        ],
    )
    def test_data_that_is_not_there(
        self, run: Run, filled: Repos, changes: dict[str, Any], code: FailureCode
    ) -> None:
        ended = run(filled.spec(**changes))
        assert ended.failure.code is code, ended.log

    def test_gated_data(self, run: Run, filled: Repos) -> None:
        filled.data.gated = True
        failure = run(filled.spec(), TOKEN).failure
        assert failure.code is FailureCode.DATASET_ACCESS_DENIED
        filled.hub.gate_passes.add(TOKEN)
        assert run(filled.spec(), TOKEN).status == 0

    def test_an_older_copy_never_replaces_unavailable_data(self, run: Run, filled: Repos) -> None:
        assert run(filled.spec()).status == 0
        files = filled.data.at("main")
        assert files is not None
        changed = {**files.files, "train.jsonl": files.files["train.jsonl"] + b"\n"}
        filled.data.commit("main", "new", changed)
        filled.data.gated = True
        ended = run(filled.spec())
        assert ended.status == 1
        assert ended.failure.code in (FailureCode.DATASET_ACCESS_DENIED, FailureCode.NETWORK)

    @pytest.mark.parametrize("field", ["name_or_path", "tokenizer_name", "config_name"])
    def test_model_not_found(self, run: Run, filled: Repos, field: str) -> None:
        body = filled.spec()
        body["model"][field] = "org/none"
        failure = run(body).failure
        assert failure.code is FailureCode.MODEL_NOT_FOUND
        assert f"`model.{field}`" in failure.message

    def test_revision_not_found(self, run: Run, filled: Repos) -> None:
        body = filled.spec()
        body["model"]["revision"] = "v9"
        failure = run(body).failure
        assert failure.code is FailureCode.MODEL_NOT_FOUND
        assert f"{filled.model.id!r} has no revision 'v9'" in failure.message

    @pytest.mark.parametrize("token", [None, TOKEN])
    def test_gated_model(self, run: Run, filled: Repos, token: str | None) -> None:
        filled.model.gated = True
        ended = run(filled.spec(), token)
        assert ended.failure.code is FailureCode.MODEL_ACCESS_DENIED
        assert TOKEN not in ended.log

    def test_private_model_with_and_without_a_token(self, run: Run, filled: Repos) -> None:
        """For others it looks like a repository that does not exist."""
        filled.model.private = True
        failure = run(filled.spec()).failure
        assert failure.code is FailureCode.MODEL_NOT_FOUND
        assert "private" in failure.message
        assert run(filled.spec(), TOKEN).status == 0

    def test_pickled_weights_are_not_even_fetched(
        self, run: Run, filled: Repos, model: Path
    ) -> None:
        files = {path.name: path.read_bytes() for path in model.iterdir()}
        files["pytorch_model.bin"] = files.pop("model.safetensors")
        filled.model.commit("main", "pickle", files)
        failure = run(filled.spec()).failure
        assert failure.code is FailureCode.UNSAFE_WEIGHTS
        assert not [request for request in filled.requests() if "/resolve/" in request.path]

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (403, FailureCode.MODEL_ACCESS_DENIED),
            (400, FailureCode.HUB_REJECTED),
        ],
    )
    def test_other_answers(self, run: Run, filled: Repos, status: int, code: FailureCode) -> None:
        filled.hub.fail(r"/api/models/", status, method="GET")
        assert run(filled.spec()).failure.code is code

    def test_half_an_answer_about_the_data_is_the_hubs_fault(self, run: Run, filled: Repos) -> None:
        """The data set is not at fault, so the stage is retried."""
        for method in ("GET", "POST"):
            filled.hub.fail(f"{filled.data.id}/(tree|paths-info)/", method=method, halve=True)
        assert run(filled.spec()).failure.code is FailureCode.HUB_UNAVAILABLE

    def test_a_token_that_the_hub_does_not_know(self, run: Run, filled: Repos) -> None:
        ended = run(filled.spec(), "hf_" + "u" * 34)
        assert ended.failure.code is FailureCode.HUB_UNAUTHORIZED

    def test_no_network(self, tmp_path: Path, filled: Repos, forks: Forks) -> None:
        ended = forks.run(request(tmp_path, filled.spec()))
        assert ended.failure.code is FailureCode.NETWORK
