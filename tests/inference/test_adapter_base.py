"""The base model of an adapter, from downloads of earlier jobs."""

import json
from pathlib import Path

import pytest

from service.contract.inference import BaseModelSource
from worker.inference import adapter_base

COMMIT = "c" * 40
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Of an earlier download, as the Hub's client leaves it."""
    folder = tmp_path / "hub" / "models--org--base" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def cached(tmp_path: Path) -> Path | None:
    source = BaseModelSource(name_or_path="org/base", revision=COMMIT)
    return adapter_base._cached(source, tmp_path)


def test_whole_weights_need_no_network(snapshot: Path, tmp_path: Path) -> None:
    assert cached(tmp_path) is None
    (snapshot / "model.safetensors").touch()
    assert cached(tmp_path) == snapshot


def test_an_interrupted_download_is_not_the_model(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / SHARDS[0]).touch()
    assert cached(tmp_path) is None
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    assert cached(tmp_path) is None
    (snapshot / SHARDS[1]).touch()
    assert cached(tmp_path) == snapshot
