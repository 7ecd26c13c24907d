"""Vetted copies of model folders: what an attacker puts there, and what a job gets."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from worker.base_model import config_bounds, files
from worker.base_model.safe_copy import Vetting, is_followed, is_setting

SECRET = "the operator's secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return tmp_path


def copied(root: Path, *names: str) -> tuple[Path, list[Notice]]:
    notices: list[Notice] = []
    vetting = Vetting("m", root / "models" / "m", root / "job", root, notices.append)
    vetting.copy_settings(names)
    return root / "job", notices


def located(root: Path) -> files.ModelSource:
    folder = root / "models" / "m"
    return files.locate(str(folder), None, roots=[root / "models"], setting="model", cache_dir=root)


class TestLinks:
    @pytest.mark.parametrize(
        "name", ["chat_template.jinja", "vocab.txt", "tokenizer.model", "generation_config.json"]
    )
    def test_a_link_out_of_the_folder_is_not_a_file_of_the_model(
        self, root: Path, name: str
    ) -> None:
        (root / "models" / "m" / name).symlink_to(root / "secret")
        found = located(root)
        assert found.settings() == ["config.json"]
        assert found.links == (name,)
        with pytest.raises(StageError, match="is a link to another folder") as caught:
            copied(root, name)
        assert caught.value.failure.code is FailureCode.INVALID_MODEL
        assert not (root / "job" / name).exists()

    def test_also_if_it_stays_under_the_roots(self, root: Path) -> None:
        (root / "models" / "other.txt").write_text("another user's file")
        (root / "models" / "m" / "vocab.txt").symlink_to(root / "models" / "other.txt")
        assert located(root).settings() == ["config.json"]

    def test_a_file_that_becomes_a_link_after_it_was_found(self, root: Path) -> None:
        template = root / "models" / "m" / "chat_template.jinja"
        template.write_text("{{ messages }}")
        found = located(root)
        template.unlink()
        template.symlink_to(root / "secret")
        with pytest.raises(StageError, match="is a link"):
            copied(root, *found.settings())

    def test_weights_that_are_a_link_are_named(self, root: Path) -> None:
        (root / "models" / "m" / "model.safetensors").symlink_to(root / "secret")
        with pytest.raises(StageError) as caught:
            located(root).weights()
        assert caught.value.failure.code is FailureCode.MODEL_NOT_FOUND
        assert "put the file itself in place of model.safetensors" in caught.value.failure.message

    def test_the_hubs_cache_consists_of_links_to_the_same_repository(self, root: Path) -> None:
        repository = root / "models--org--m"
        (repository / "blobs").mkdir(parents=True)
        (repository / "blobs" / "abc").write_text("{}")
        snapshot = repository / "snapshots" / "main"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to("../../blobs/abc")
        (snapshot / "vocab.txt").symlink_to("../../../models/m/config.json")
        assert is_followed(snapshot / "config.json")
        assert not is_followed(snapshot / "vocab.txt")

    @pytest.mark.parametrize("kind", ["loop", "dangling", "folder", "pipe"])
    def test_what_is_not_a_file(self, root: Path, kind: str) -> None:
        path = root / "models" / "m" / "vocab.txt"
        match kind:
            case "loop":
                path.symlink_to(path)
            case "dangling":
                path.symlink_to(root / "nothing")
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
        assert located(root).settings() == ["config.json"]


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            *("modeling_x.py", "tokenization_x.py", "pytorch_model.bin", "training_args.bin"),
            *("adapter_config.json", "adapter_model.safetensors", "x.pkl", "notes.txt", ".env"),
            *("special.json", "../config.json", "a/config.json", "config.json.py", "README.md"),
        ],
    )
    def test_other_files_are_not_copied(self, root: Path, name: str) -> None:
        assert not is_setting(name)

    @pytest.mark.parametrize(
        "name",
        [
            *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
            *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
            *("source.spm", "entity_vocab.json", "vocab-src.json", "added_tokens.json"),
            *("chat_template.jinja", "generation_config.json", "model.safetensors.index.json"),
        ],
    )
    def test_files_of_known_tokenizers_are(self, name: str) -> None:
        assert is_setting(name)


class TestKeys:
    @pytest.mark.parametrize(
        ("file", "content", "kept", "dropped"),
        [
            ("config.json", {"auto_map": {"AutoConfig": "x.C"}}, {}, ["auto_map"]),
            (
                "config.json",
                {"text_config": {"_attn_implementation": "evil/kernel", "n_layer": 2}},
                {"text_config": {"n_layer": 2}},
                ["text_config._attn_implementation"],
            ),
            ("config.json", {"attn_implementation": {"": "a/b"}}, {}, ["attn_implementation"]),
            ("config.json", {"_attn_implementation": "sdpa"}, {}, None),
            ("config.json", {"_name_or_path": "/home/x", "a": 1}, {"a": 1}, None),
            ("config.json", {"use_kernels": True}, {}, ["use_kernels"]),
            ("generation_config.json", {"custom_generate": "x/y"}, {}, ["custom_generate"]),
            (
                "tokenizer_config.json",
                {"vocab_file": "/etc/passwd", "tokenizer_class": "BertTokenizer"},
                {"tokenizer_class": "BertTokenizer"},
                ["vocab_file"],
            ),
            ("tokenizer_config.json", {"auto_map": ["x.T", None]}, {}, ["auto_map"]),
        ],
    )
    def test_that_load_code_or_files_are_dropped(
        self, root: Path, file: str, content: Any, kept: Any, dropped: list[str] | None
    ) -> None:
        (root / "models" / "m" / file).write_text(json.dumps(content))
        folder, notices = copied(root, file)
        assert json.loads((folder / file).read_text()) == kept
        assert [notice.data["dropped"] for notice in notices] == ([dropped] if dropped else [])

    def test_a_file_without_such_keys_is_copied_as_it_is(self, root: Path) -> None:
        content = b'{\n "a": 1.0,  "b": "\\u00e9"}\n'
        (root / "models" / "m" / "config.json").write_bytes(content)
        folder, notices = copied(root, "config.json")
        assert ((folder / "config.json").read_bytes(), notices) == (content, [])


class TestBounds:
    @pytest.mark.heavy  # changes with transformers alone
    def test_no_type_of_transformers_has_defaults_beyond_them(self) -> None:
        from transformers import CONFIG_MAPPING

        kinds = ("bert", "gpt2", "llama", "qwen3", "t5", "deepseek_v3", "mamba", "xlnet", "canine")
        for kind in kinds:
            saved = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
            config_bounds.check(saved, "config.json", kind)

    @pytest.mark.parametrize(
        ("key", "bound"),
        [
            ("max_position_embeddings", 2**25),
            ("n_positions", 2**25),
            ("num_hidden_layers", 1024),
            ("n_layer", 1024),
            ("decoder_layers", 1024),
            ("vocab_size", 2**26),
            ("hidden_size", 2**24),
            ("d_model", 2**24),
            ("num_attention_heads", 2**14),
            ("num_local_experts", 2**16),
            ("num_labels", 100_000),
            ("pad_token_id", 2**53),
        ],
    )
    def test_of_names(self, key: str, bound: int) -> None:
        assert config_bounds.bound_of(key) == bound
        config_bounds.check({key: bound}, "config.json", "m")
        with pytest.raises(StageError, match=f"{key}`"):
            config_bounds.check({"text_config": {"x": [{key: bound + 1}]}}, "config.json", "m")
