"""`finetune serve-command`, and `finetune download --checkpoint`, which it prints."""

import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save
from sqlalchemy import delete

from service.cli import serve_command
from service.cli.exit_codes import UsageError
from service.contract.failures import Failure, FailureCode
from service.store.database import Database
from service.store.models import ArtifactRow, JobRow
from tests.cli.conftest import Cli
from tests.cli.job_files import add_artifacts, add_checkpoint, content
from tests.cli.job_rows import end
from tests.support.job_rows import TRAINED

FOLDER = Path("my model/model")
WHOLE = {"model/config.json", "model/chat_template.jinja"}
ADAPTER = {"model/adapter_config.json"}


def job(task: str = "chat", peft: Any = None, **model: Any) -> dict[str, Any]:
    return {
        "id": "job-1",
        "state": "succeeded",
        "result": {"model_revision": "abc"},
        "spec": {
            "name": "rivers",
            "task": {"type": task},
            "model": {"name_or_path": "org/base", "dtype": "float32", **model},
            "training": {"bf16": False},
            "peft": peft,
        },
    }


def test_a_whole_model() -> None:
    name = "ft:base:default:rivers:job-1"
    found = serve_command.arguments(job(), name, WHOLE, FOLDER)
    assert shlex.join(found) == (
        "vllm serve 'my model/model' --served-model-name ft:base:default:rivers:job-1 "
        "--dtype float32 --chat-template 'my model/model/chat_template.jinja'"
    )


@pytest.mark.parametrize(("rank", "allowed"), [(4, "8"), (16, "16"), (100, "128")])
def test_an_adapter(rank: int, allowed: str) -> None:
    found = serve_command.arguments(
        job(peft={"method": "lora", "r": rank}, dtype="bfloat16"), "ft:a", ADAPTER, FOLDER
    )
    assert found == [
        *("vllm", "serve", "org/base", "--revision", "abc", "--tokenizer", str(FOLDER)),
        *("--enable-lora", "--max-lora-rank", allowed, "--lora-modules"),
        '{"name": "ft:a", "path": "my model/model", "base_model_name": "org/base"}',
        *("--dtype", "bfloat16"),
    ]


@pytest.mark.parametrize(
    ("peft", "words"),
    [
        ({"method": "ia3"}, "`peft.method: ia3`"),
        ({"method": "lora", "use_dora": True}, "`peft.use_dora`"),
        ({"method": "lora", "bias": "all"}, "`peft.bias`"),
        ({"method": "lora", "r": 600}, "`peft.r` above 512"),
    ],
)
def test_adapters_that_vllm_does_not_load(peft: Any, words: str) -> None:
    with pytest.raises(UsageError, match="does not load the adapter") as raised:
        serve_command.arguments(job(peft=peft), "ft:a", ADAPTER, FOLDER)
    assert words in str(raised.value)
    assert "peft.merge: true" in str(raised.value)


@pytest.fixture
def chat(store: Database, home: Path, http: httpx.Client, job_id: str) -> str:
    """A finished chat job that began with the model of `job_id`, and has two checkpoints."""
    return _finished(store, home, http, {"job": job_id})


def _finished(
    store: Database, home: Path, http: httpx.Client, model: dict[str, Any], **spec: Any
) -> str:
    body = {"name": "rivers", "task": "chat", "dataset": {"source": "hub", "name": "org/data"}}
    created = http.post("/v1/jobs", json=body | {"model": {"name_or_path": "org/base"}} | spec)
    made = str(created.raise_for_status().json()["id"])
    with store.write() as session:
        row = session.get_one(JobRow, made)
        row.spec = row.spec | {"model": row.spec["model"] | {"name_or_path": None} | model}
    kind = "adapter_config" if spec else "config"
    files = {f"{kind}.json": b"{}", "model-1-of-2.safetensors": b"finished", "README.md": b"card"}
    add_artifacts(store, home, made, {f"model/{name}": content for name, content in files.items()})
    end(store, made, "succeeded", results={"train": TRAINED})
    add_checkpoint(store, home, made, 10)
    add_checkpoint(store, home, made, 20)
    return made


class TestCommand:
    def test_has_the_name_of_openais_api(self, cli: Cli, chat: str) -> None:
        """What the job began with is known by what that job began with."""
        fetch, serve = cli("serve-command", chat).out.splitlines()
        assert fetch == f"finetune download {chat} --to rivers"
        assert serve == (
            f"vllm serve rivers/model --served-model-name ft:model:default:rivers:{chat} "
            "--dtype float32"
        )

    @pytest.mark.parametrize(("wanted", "step"), [("best", 10), ("last", 20), ("10", 10)])
    def test_a_checkpoint(self, cli: Cli, chat: str, wanted: str, step: int) -> None:
        found = cli("serve-command", chat, "--checkpoint", wanted, "--json").json()
        name, folder = (
            f"ft:model:default:rivers:{chat}:ckpt-step-{step}",
            f"rivers-checkpoint-{step}",
        )
        assert found["model"] == name
        assert found["download"] == [
            *("finetune", "download", chat, "--checkpoint", str(step), "--to", folder),
        ]
        assert found["serve"][:5] == [
            "vllm",
            "serve",
            f"{folder}/model",
            "--served-model-name",
            name,
        ]

    def test_the_name_of_a_model_or_of_a_checkpoint(self, cli: Cli, chat: str) -> None:
        name = f"ft:model:default:rivers:{chat}"
        assert cli("serve-command", name, "--json").json()["model"] == name
        name += ":ckpt-step-20"
        for given in ((), ("--checkpoint", "20")):
            found = cli("serve-command", name, *given, "--json").json()
            assert found["model"] == name
            assert found["download"][2:5] == [chat, "--checkpoint", "20"]
        for other in ("10", "last"):
            refused = cli("serve-command", name, "--checkpoint", other)
            assert (refused.status, refused.out) == (2, "")
            assert f"at step 20, and the step given is {other}: give one of them" in refused.err

    def test_a_checkpoint_that_does_not_exist(self, cli: Cli, chat: str) -> None:
        for wanted in ("30", "newest"):
            found = cli("serve-command", chat, "--checkpoint", wanted)
            assert (found.status, found.out) == (2, "")
            assert f"no checkpoint '{wanted}'" in found.err
            assert "it has 10, 20" in found.err

    def test_a_checkpoint_of_a_merged_adapter(
        self, cli: Cli, store: Database, http: httpx.Client, chat: str
    ) -> None:
        """Only the promoted model has its base model merged."""
        with store.write() as session:
            row = session.get_one(JobRow, chat)
            row.spec = row.spec | {"peft": {"method": "lora", "merge": True}}
        assert cli("serve-command", chat).status == 0
        found = cli("serve-command", chat, "--checkpoint", "last")
        assert (found.status, found.out) == (2, "")
        assert f"finetune promote {chat} 20" in found.err

    def test_a_checkpoint_of_an_adapter_that_cannot_be_merged(
        self, cli: Cli, store: Database, chat: str, tmp_path: Path
    ) -> None:
        """Its training or its promotion has ended with a message that says what to do."""
        message = "`peft.merge` cannot be true: … Submit the job with `peft.merge: false`"
        failure = Failure.of(FailureCode.INVALID_OPTION, message, option="peft.merge")
        with store.write() as session:
            session.execute(delete(ArtifactRow).where(ArtifactRow.job_id == chat))
            row = session.get_one(JobRow, chat)
            row.spec = row.spec | {"peft": {"method": "lora", "merge": True}}
            row.failure = failure.model_dump(mode="json")
        found = cli("download", chat, "--checkpoint", "20", "--to", str(tmp_path / "model"))
        assert (found.status, found.out) == (2, "")
        assert f"{chat} has no finished model: {message}" in found.err
        assert "finetune promote" not in found.err

    def test_a_job_without_a_model(self, cli: Cli, store: Database, chat: str) -> None:
        with store.write() as session:
            session.execute(delete(ArtifactRow).where(ArtifactRow.job_id == chat))
        found = cli("serve-command", chat)
        assert (found.status, found.out) == (2, "")
        assert "no finished model" in found.err
        assert f"finetune promote {chat} STEP" in found.err

    def test_a_model_that_writes_no_text(self, cli: Cli, job_id: str) -> None:
        found = cli("serve-command", job_id)
        assert (found.status, found.out) == (2, "")
        assert f"POST /v1/jobs/{job_id}/predict" in found.err


class TestDownload:
    def test_a_checkpoint_as_a_model(self, cli: Cli, chat: str, tmp_path: Path) -> None:
        target = tmp_path / "out"
        found = cli("download", chat, "--checkpoint", "best", "--to", str(target))
        assert found.status == 0, found.err
        assert content(target) == {
            "model/config.json": b"{}",
            "model/model.safetensors": b"weights",
        }
        assert "AutoModelForCausalLM" in found.out

    def test_by_its_name(
        self, cli: Cli, chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        name = f"ft:model:default:rivers:{chat}"
        assert cli("download", name, "--json").json()["path"] == "rivers"
        of_checkpoint = cli("download", f"{name}:ckpt-step-20", "--json").json()
        assert of_checkpoint["path"] == "rivers-checkpoint-20"
        refused = cli("download", f"{name}:ckpt-step-20", "--checkpoint", "10")
        assert (refused.status, refused.out) == (2, "")

    def test_an_adapter_as_peft_loads_it(
        self, cli: Cli, store: Database, home: Path, http: httpx.Client, tmp_path: Path
    ) -> None:
        made = _finished(store, home, http, {"name_or_path": "org/base"}, peft={"method": "lora"})
        lora = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        held = {
            "base_model.model.norm.running_mean": torch.ones(5),
            "base_model.model.default.lora_A.default.weight": lora,
            "base_model.model.default.lora_B.default.weight": torch.ones(3, 2),
        }
        add_checkpoint(store, home, made, 30, save(held))
        target = tmp_path / "out"
        found = cli("download", made, "--checkpoint", "30", "--to", str(target))
        assert found.status == 0, found.err
        assert set(content(target)) == {
            "model/adapter_config.json",
            "model/adapter_model.safetensors",
        }
        loaded = load_file(target / "model/adapter_model.safetensors")
        assert set(loaded) == {f"base_model.model.default.lora_{each}.weight" for each in "AB"}
        assert torch.equal(loaded["base_model.model.default.lora_A.weight"], lora)

    def test_names_and_a_checkpoint(self, cli: Cli, chat: str) -> None:
        found = cli("download", chat, "model/config.json", "--checkpoint", "10")
        assert (found.status, found.out) == (2, "")
        assert "either names of artifacts or --checkpoint" in found.err
