"""The Hub double against the real client, in child processes: they read HF_ENDPOINT at import."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hub import HubDouble

TOKEN = "hf_double_write"


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with HubDouble({TOKEN: {"org"}}) as hub:
        yield hub


def run(hub: HubDouble, home: Path, code: str, token: str | None = None) -> Any:
    """Run `code` with the client turned to `hub`; what it assigns to `out` comes back as JSON."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= hub.environment(home, token) | {"OMP_NUM_THREADS": "1"}
    program = f"import json\nfrom huggingface_hub import *\n{code}\nprint(json.dumps(out))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def error_of(call: str) -> str:
    return (
        "try:\n"
        f"    out = ['none', {call} and 0]\n"
        "except Exception as e:\n"
        "    out = [type(e).__name__, e.response.status_code]"
    )


class TestWriting:
    def test_a_folder_arrives_as_one_commit_and_is_read_back(
        self, hub: HubDouble, tmp_path: Path
    ) -> None:
        folder = tmp_path / "model"
        (folder / "sub").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(range(256)) * 99)
        (folder / "sub" / "notes.txt").write_text("deep")
        code = f"""
create_repo("org/m", private=True)
info = upload_folder(repo_id="org/m", folder_path={str(folder)!r}, commit_message="all")
again = upload_folder(repo_id="org/m", folder_path={str(folder)!r}, commit_message="all")
out = [info.oid, again.oid, snapshot_download("org/m"), model_info("org/m").private,
       [c.title for c in list_repo_commits("org/m")]]
"""
        first, second, path, private, titles = run(hub, tmp_path / "home", code, TOKEN)
        assert first == second == hub.repo("org/m").branches["main"]
        assert titles == ["all", "initial commit"]
        assert private is True
        for name in ("config.json", "model.safetensors", "sub/notes.txt"):
            assert Path(path, name).read_bytes() == (folder / name).read_bytes()

    def test_branches(self, hub: HubDouble, tmp_path: Path) -> None:
        code = """
create_repo("org/m")
create_branch("org/m", branch="dev/one", exist_ok=True)
create_branch("org/m", branch="dev/one", exist_ok=True)
upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="org/m", revision="dev/one")
out = [sorted(b.name for b in list_repo_refs("org/m").branches), list_repo_files("org/m"),
       list_repo_files("org/m", revision="dev/one")]
"""
        names, main, dev = run(hub, tmp_path, code, TOKEN)
        assert names == ["dev/one", "main"]
        assert main == [".gitattributes"]
        assert dev == [".gitattributes", "x.txt"]

    @pytest.mark.parametrize(
        ("token", "status"), [("hf_wrong", 401), (None, 401), ("hf_reader", 403)]
    )
    def test_tokens_decide(
        self, hub: HubDouble, tmp_path: Path, token: str | None, status: int
    ) -> None:
        hub.tokens["hf_reader"] = set()
        assert run(hub, tmp_path, error_of('create_repo("org/m")'), token)[1] == status

    def test_a_lost_answer_leaves_the_commit(self, hub: HubDouble, tmp_path: Path) -> None:
        hub.add_repo("org/m", {})
        hub.fail("/commit/", drop_after=True, times=1)
        code = """
try:
    upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="org/m")
except Exception as e:
    out = type(e).__name__
"""
        assert run(hub, tmp_path, code, TOKEN) == "RemoteProtocolError"
        assert hub.repo("org/m").commits[-1].files["x.txt"] == b"x"


class TestReading:
    def test_errors_have_the_clients_names(self, hub: HubDouble, tmp_path: Path) -> None:
        hub.add_repo("org/open", {"a.txt": b"a"})
        hub.add_repo("org/secret", {"a.txt": b"a"}, private=True)
        hub.add_repo("org/gate", {"a.txt": b"a"}, gated=True)
        calls = {
            'model_info("org/none")': ["RepositoryNotFoundError", 401],
            'model_info("org/secret")': ["RepositoryNotFoundError", 401],
            'model_info("org/open", revision="v9")': ["RevisionNotFoundError", 404],
            'hf_hub_download("org/open", "b.txt")': ["RemoteEntryNotFoundError", 404],
            'hf_hub_download("org/gate", "a.txt")': ["GatedRepoError", 401],
        }
        code = "\nfound = {}\n"
        code += "".join(f"{error_of(call)}\nfound[{call!r}] = out\n" for call in calls)
        assert run(hub, tmp_path, f"{code}out = found") == calls

    def test_a_dataset_loads(self, hub: HubDouble, tmp_path: Path) -> None:
        rows = b'{"question": "q1"}\n{"question": "q2"}\n'
        hub.add_repo("org/ds", {"train.jsonl": rows}, repo_type="dataset")
        code = """
import datasets
out = datasets.load_dataset("org/ds", split="train")["question"][:]
"""
        assert run(hub, tmp_path, code) == ["q1", "q2"]

    def test_a_model_loads(self, hub: HubDouble, tmp_path: Path) -> None:
        code = f"""
from transformers import AutoModel, BertConfig, BertModel
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
model = BertModel(BertConfig(vocab_size=16, **sizes))
model.save_pretrained({str(tmp_path / "m")!r})
create_repo("org/m")
upload_folder(repo_id="org/m", folder_path={str(tmp_path / "m")!r})
loaded = AutoModel.from_pretrained("org/m")
out = all(bool((a == b).all()) for a, b in zip(model.parameters(), loaded.parameters()))
"""
        assert run(hub, tmp_path / "home", code, TOKEN) is True

    def test_a_cut_off_download_is_an_error_or_is_completed(
        self, hub: HubDouble, tmp_path: Path
    ) -> None:
        hub.add_repo("org/m", {"big.txt": b"0123456789" * 1000})
        hub.fail("/resolve/", method="GET", truncate=5000, times=1)
        code = 'out = len(open(hf_hub_download("org/m", "big.txt")).read())'
        assert run(hub, tmp_path, code) == 10_000
