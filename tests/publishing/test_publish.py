"""The stage in a real child process, against the Hub double and a real MLflow server."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.publishing.card_code import code_of, run_code
from tests.publishing.conftest import PREPARED, TOKEN, Run
from tests.stages.support import phases
from tests.support.hub import HubDouble
from tests.support.servers.services import free_port
from worker.storage import atomic_dir
from worker.tracking.trackers import JOB_ID_TAG, MlflowTracker, NewRun

HUB = {"hub": {"model_id": "org/tiny-qa", "license": "apache-2.0"}}


class TestHub:
    def test_one_private_commit_that_loads_and_answers(
        self, run: Run, hub: HubDouble, tmp_path: Path, tiny_qa_model: Path
    ) -> None:
        published = run(spec=HUB)
        assert published.status == 0, published.log
        repo = hub.repo("org/tiny-qa")
        created, commit = repo.commits
        assert repo.private is True
        assert commit.parent == created.sha
        assert commit.title == "Fine-tuned model of job-1"
        local = {path.name: path.read_bytes() for path in tiny_qa_model.iterdir()}
        card = (tmp_path / "job/attempts/2/README.md").read_bytes()
        assert dict(commit.files) == dict(created.files) | local | {"README.md": card}
        assert published.result["hub_commit"] == commit.sha
        assert published.result["hub_url"] == f"{hub.endpoint}/org/tiny-qa"
        assert f"{hub.endpoint}/org/tiny-qa/commit/{commit.sha}" in published.notices[-1]
        # The code of the card itself, by a user who has nothing but the Hub.
        answer = run_code(code_of(card.decode()), hub.environment(tmp_path / "user", TOKEN)).strip()
        assert answer
        assert answer in "The report was written by Ada in 1843."

    @pytest.mark.parametrize(
        ("strategy", "steps", "folders"),
        [
            ("checkpoint", [20], {"last-checkpoint": 20}),
            ("all_checkpoints", [20, 10], {"checkpoint-20": 20, "checkpoint-10": 10}),
        ],
    )
    def test_checkpoints_go_along(
        self,
        run: Run,
        hub: HubDouble,
        tmp_path: Path,
        strategy: str,
        steps: list[int],
        folders: dict[str, int],
    ) -> None:
        made = [tmp_path / "job" / "attempts" / "1" / "checkpoints" / str(step) for step in steps]
        for folder in made:
            with atomic_dir.writing(folder) as partial:
                (partial / "optimizer.pt").write_bytes(folder.name.encode())
        published = run(spec={"hub": HUB["hub"] | {"strategy": strategy}}, checkpoints=made)
        assert published.status == 0, published.log
        files = hub.repo("org/tiny-qa").commits[-1].files
        assert "model.safetensors" in files
        pushed = {name: files[name] for name in files if "/" in name}
        assert {name for name in pushed if name.endswith("manifest.json")} == {
            f"{folder}/manifest.json" for folder in folders
        }
        assert {n: c for n, c in pushed.items() if n.endswith(".pt")} == {
            f"{folder}/optimizer.pt": str(step).encode() for folder, step in folders.items()
        }

    def test_checkpoints_that_training_had_no_time_to_push(
        self, run: Run, hub: HubDouble, tmp_path: Path
    ) -> None:
        """Each in a commit of its own before the model's; not again after a kill."""
        first = tmp_path / "job" / "attempts" / "1"
        (first / "hub").mkdir(parents=True)
        (first / "hub" / "config.json").write_text("{}")
        made = [first / "checkpoints" / str(step) for step in (5, 10)]
        for folder in made:
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_bytes(folder.name.encode())
        target = HUB["hub"] | {"strategy": "every_save", "always_push": True}
        titles = ["Training in progress, step 5", "Training in progress, step 10"]
        hub.add_repo("org/tiny-qa", {})
        repo = hub.repo("org/tiny-qa")
        repo.commit("main", titles[0], {})  # another job's
        for _ in range(2):
            published = run(spec={"hub": target}, left_over=made)
            assert published.status == 0, published.log
        assert [commit.title for commit in repo.commits[2:]] == [
            titles[0],
            *titles,
            "Fine-tuned model of job-1",
        ]
        assert [commit.files["model.safetensors"] for commit in repo.commits[3:5]] == [b"5", b"10"]

    def test_a_retry_makes_no_second_commit(self, run: Run, hub: HubDouble) -> None:
        first = run(spec=HUB, epoch=2)
        second = run(spec=HUB, epoch=3)
        assert second.status == 0, second.log
        assert first.result["hub_commit"] == second.result["hub_commit"]
        assert len(hub.repo("org/tiny-qa").commits) == 2

    def test_a_commit_whose_answer_was_lost_is_found_by_the_retry(
        self, run: Run, hub: HubDouble
    ) -> None:
        hub.fail("/commit/", drop_after=True, times=1)
        assert run(spec=HUB, epoch=2).failure.code == "network"
        assert (
            run(spec=HUB, epoch=3).result["hub_commit"] == hub.repo("org/tiny-qa").commits[-1].sha
        )
        assert len(hub.repo("org/tiny-qa").commits) == 2

    def test_public_branch_and_message_as_asked(self, run: Run, hub: HubDouble) -> None:
        options = {"private": False, "revision": "squad-v2", "commit_message": "Second try"}
        published = run(spec={"hub": HUB["hub"] | options})
        repo = hub.repo("org/tiny-qa")
        assert repo.private is False
        assert repo.branches["squad-v2"] == published.result["hub_commit"]
        assert "config.json" not in repo.commits[0].files
        assert repo.branches["main"] == repo.commits[0].sha
        assert repo.commits[-1].title == "Second try"

    def test_a_name_alone_is_pushed_to_where_prepare_found_room(
        self, run: Run, hub: HubDouble, tmp_path: Path
    ) -> None:
        hub.tokens[TOKEN] = {"org", "team"}
        spec = {"hub": HUB["hub"] | {"model_id": "tiny-qa"}}
        found = PREPARED.model_copy(update={"hub_model_id": "team/tiny-qa"})
        for prepared, model_id in ((found, "team/tiny-qa"), (PREPARED, "org/tiny-qa")):
            published = run(spec=spec, prepared=prepared)
            assert published.result["hub_url"] == f"{hub.endpoint}/{model_id}"
            assert published.result["hub_commit"] == hub.repo(model_id).commits[-1].sha
            card = tmp_path / "job" / published.artifacts["model/README.md"].path
            assert f'"{prepared.hub_model_id or "tiny-qa"}"' in card.read_text()

    def test_files_that_others_put_there_stay(self, run: Run, hub: HubDouble) -> None:
        hub.add_repo("org/tiny-qa", {"notes.txt": b"mine"})
        assert run(spec=HUB).status == 0
        assert hub.repo("org/tiny-qa").commits[-1].files["notes.txt"] == b"mine"

    def test_pushed_files_that_the_model_lacks_are_removed(
        self, run: Run, hub: HubDouble, tmp_path: Path
    ) -> None:
        """For example if checkpoints were adapters and the finished model is not."""
        pushed = ["adapter_config.json", "README.md", "config.json"]
        there = [*pushed, "adapter_model.safetensors", "notes.txt", "last-checkpoint/scaler.pt"]
        hub.add_repo("org/tiny-qa", dict.fromkeys(there, b"earlier"))
        settings = tmp_path / "job" / "attempts" / "1" / "hub"
        settings.mkdir()
        for name in pushed:
            (settings / name).write_text("earlier")
        for strategy, deleted in (("end", set()), ("every_save", set(there[:1] + there[3:4]))):
            published = run(spec={"hub": HUB["hub"] | {"strategy": strategy}})
            assert published.status == 0, published.log
            files = hub.repo("org/tiny-qa").commits[-1].files
            assert set(there) - set(files) == deleted
            assert files["config.json"] != b"earlier"

    def test_without_a_hub_section_nothing_is_asked(self, run: Run, hub: HubDouble) -> None:
        published = run(token=None)
        assert published.status == 0, published.log
        assert published.result["hub_url"] is None
        assert hub.requests == []

    def test_the_token_appears_nowhere(self, run: Run, hub: HubDouble, tmp_path: Path) -> None:
        good = run(spec=HUB, epoch=2)
        hub.fail("/commit/", 403, message=f"token {TOKEN} may not")
        (tmp_path / "job/attempts/1").mkdir(exist_ok=True)
        hub.create("model", "org/tiny-qa", private=True)
        bad = run(spec=HUB, epoch=3)
        assert bad.failure.code == "hub_forbidden"
        assert {f"Bearer {TOKEN}"} == {request.authorization for request in hub.requests} - {None}
        for text in (str(good.events), good.log, str(bad.events)):
            assert TOKEN not in text
        written = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
        assert written
        assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
        assert all(
            TOKEN.encode() not in content
            for commit in hub.repo("org/tiny-qa").commits
            for content in commit.files.values()
        )


class TestFailures:
    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("/repos/create", 401, "hub_unauthorized"),
            ("/repos/create", 403, "hub_forbidden"),
            ("/repos/create", 400, "hub_rejected"),
            ("/repos/create", 429, "hub_rate_limited"),
            ("/repos/create", 503, "hub_unavailable"),
            ("/validate-yaml", 422, "hub_rejected"),
            ("/commit/", 409, "hub_conflict"),
            ("/commit/", 412, "hub_conflict"),
            ("/commit/", 429, "hub_rate_limited"),
            ("/commit/", 500, "hub_unavailable"),
        ],
    )
    def test_each_answer_has_its_code(
        self, run: Run, hub: HubDouble, path: str, status: int, code: str
    ) -> None:
        hub.fail(path, status)
        published = run(spec=HUB)
        assert published.status == 1
        assert published.failure.code == code, published.log

    def test_an_upload_that_breaks_inside_the_client(self, run: Run, hub: HubDouble) -> None:
        hub.fail("/lfs/", 403, method="PUT")
        assert run(spec=HUB).failure.code == "hub_forbidden"

    def test_no_token_and_a_wrong_one(self, run: Run) -> None:
        failure = run(token=None, spec=HUB).failure
        assert (failure.code, failure.message) == ("hub_unauthorized", "No Hub token is set.")
        assert run(token="hf_someoneElse", spec=HUB).failure.code == "hub_unauthorized"

    def test_another_ones_namespace(self, run: Run) -> None:
        spec = {"hub": {"model_id": "strangers/tiny-qa"}}
        assert run(spec=spec).failure.code == "hub_forbidden"

    def test_a_slow_hub_is_waited_for(self, run: Run, hub: HubDouble) -> None:
        hub.fail("/commit/", delay=3.0)
        assert run(spec=HUB).status == 0


class TestMlflow:
    @pytest.fixture
    def run_id(self, mlflow_uri: str, tmp_path: Path) -> str:
        tracker = MlflowTracker(mlflow_uri)
        tags = {JOB_ID_TAG: str(tmp_path)}
        tracker.create(NewRun("publish", "publish", tags, datetime.now(UTC)))
        (found,) = tracker.find("publish", tags)
        return found.run_id

    def test_the_model_lies_under_model(
        self, run: Run, mlflow_uri: str, run_id: str, tiny_qa_model: Path, tmp_path: Path
    ) -> None:
        published = run(mlflow_uri=mlflow_uri, mlflow_run_id=run_id)
        assert published.status == 0, published.log
        sizes = MlflowTracker(mlflow_uri).sizes(run_id)
        local = {f"model/{path.name}": path.stat().st_size for path in tiny_qa_model.iterdir()}
        card = published.artifacts["model/README.md"]
        assert sizes == local | {"model/README.md": card.bytes}
        assert card.path == "attempts/2/README.md"
        content = (tmp_path / "job" / card.path).read_bytes()
        assert (card.bytes, card.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        uri = MlflowClient(mlflow_uri).get_run(run_id).info.artifact_uri
        assert published.result["mlflow_artifact_uri"] == f"{uri}/model"
        assert phases(published) == ["writing_model_card", "logging_artifacts"]

    def test_not_if_it_is_switched_off(self, run: Run, mlflow_uri: str, run_id: str) -> None:
        spec = {"tracking": {"log_model": False}}
        published = run(spec=spec, mlflow_uri=mlflow_uri, mlflow_run_id=run_id)
        assert published.result["mlflow_artifact_uri"] is None
        assert MlflowTracker(mlflow_uri).sizes(run_id) == {}

    @pytest.mark.parametrize("run_id_given", ["e" * 32, None])
    def test_an_unreachable_mlflow_is_a_notice(self, run: Run, run_id_given: Any) -> None:
        uri = f"http://127.0.0.1:{free_port()}"
        published = run(mlflow_uri=uri, mlflow_run_id=run_id_given)
        assert published.status == 0, published.log
        assert "when MLflow is reachable again" in published.notices[0]
        assert published.result["mlflow_artifact_uri"] is None
