"""`prepare` on files and on local models."""

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertConfig, CanineTokenizer, GPT2Config, RobertaConfig

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Progress
from service.contract.stage.stages import PrepareResult
from tests.data.squad_sample import squad_file, squad_rows
from tests.stages.support import OFFLINE, Forks, Run, phases, request, spec
from tests.support.models import minilm_dir
from worker.base_model import files
from worker.tasks.base import load_splits


class TestFiles:
    def test_prepares_all_splits_and_reports_its_phases(
        self, tmp_path: Path, forks: Forks, models: Path
    ) -> None:
        body = spec(
            models / "tiny",
            validation=str(squad_file("validation")),
            test=str(squad_file("validation")),
            max_predict_samples=5,
        )
        ended = forks.run(request(tmp_path, body), OFFLINE)
        assert ended.status == 0, ended.log
        assert phases(ended) == ["resolving", "downloading", "checking", "tokenizing"]
        result = PrepareResult.model_validate(ended.result)
        assert (result.model_revision, result.dataset_revision) == (None, None)
        assert result.model_dir == result.tokenizer_dir == tmp_path / "job" / "base_model"
        weights = result.model_dir / "model.safetensors"
        assert weights.readlink() == models / "tiny" / "model.safetensors"
        counts = {split: numbers["examples"] for split, numbers in result.splits.items()}
        assert counts == {"train": 52, "validation": 128, "test": 5}
        assert Progress(step=52, of=52) in ended.events
        splits = load_splits(result.prepared_dir)
        assert splits["validation"].examples.to_list() == squad_rows("validation")
        for split, numbers in result.splits.items():
            assert len(splits[split].features) == numbers["features"] >= numbers["examples"]
        assert ended.log == ""

    def test_a_second_job_finds_the_prepared_data(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        """Also if its settings differ in what only matters after tokenising; other data or settings
        have another address."""
        shared = {"cache_dir": tmp_path / "cache"}
        first = run(spec(models / "tiny"), **shared)
        assert not [n for n in first.notices if n.startswith("Reusing the prepared data")]
        again = run(spec(models / "tiny"), **shared)
        assert again.result == first.result
        assert phases(again) == ["resolving", "downloading"]
        assert [n for n in again.notices if n.startswith("Reusing the prepared data")]
        also = run(spec(models / "tiny", task={"n_best_size": 3}), **shared)
        assert also.result == first.result
        changes: list[dict[str, Any]] = [
            {"task": {"max_seq_length": 96}},
            {"task": {"doc_stride": 16}},
            {"max_train_samples": 10},
            {"train": str(squad_file("validation"))},
        ]
        for change in changes:
            other = run(spec(models / "tiny", **change), **shared)
            assert first.result["data_fingerprint"] != other.result["data_fingerprint"], change
            assert phases(other)[-1] == "tokenizing"

    def test_two_jobs_at_once_tokenise_once(
        self, tmp_path: Path, forks: Forks, models: Path
    ) -> None:
        more = {"model_roots": [models], "cache_dir": tmp_path / "cache"}
        paths = [request(tmp_path / name, spec(models / "tiny"), **more) for name in ("1", "2")]
        both = [forks.start(path, OFFLINE) for path in paths]
        ended = [forks.wait(child, path) for child, path in zip(both, paths, strict=True)]
        assert [end.status for end in ended] == [0, 0]
        assert sorted("tokenizing" in phases(end) for end in ended) == [False, True]
        one, other = (PrepareResult.model_validate(end.result) for end in ended)
        assert one.prepared_dir == other.prepared_dir
        assert one.splits == other.splits

    def test_uploads_are_known_by_their_names(self, tmp_path: Path, run: Run, models: Path) -> None:
        stored = tmp_path / "blob"
        rows = squad_rows("train")[:3]
        stored.write_text("".join(json.dumps({"text": "x", **row}) + "\n" for row in rows))
        body = spec(models / "tiny", source="upload", train=["file-1"])
        ended = run(body, files={"file-1": stored})
        assert ended.result["splits"]["train"]["examples"] == 3
        stored.write_text(stored.read_text() + '{"question": 1}\n')
        failure = run(body, files={"file-1": stored}, file_names={"file-1": "a.jsonl"}).failure
        assert failure.code is FailureCode.UNREADABLE_ROW
        assert failure.message == "a.jsonl, line 4: has no 'context', 'answers'"
        assert failure.action == (
            "Fix or remove line 4 of a.jsonl (train), then submit again; or leave such rows out "
            "with `dataset.on_bad_row: skip`."
        )

    def test_csv_with_other_column_names(self, tmp_path: Path, run: Run, models: Path) -> None:
        rows = squad_rows("train")[:2]
        lines = ["frage,text,answers"]
        for row in rows:
            cells = (row["question"], row["context"], json.dumps(row["answers"]))
            lines.append(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
        (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
        columns = {"question": "frage", "context": "text"}
        body = spec(models / "tiny", train=str(tmp_path / "d.csv"), columns=columns)
        result = run(body).result
        examples = load_splits(Path(result["prepared_dir"]))["train"].examples
        assert [row["question"] for row in examples] == [row["question"] for row in rows]
        assert [row["id"] for row in examples] == ["0", "1"]

    def test_long_questions_are_reported(self, tmp_path: Path, run: Run, models: Path) -> None:
        row = squad_rows("train")[0] | {"question": "why " * 200}
        (tmp_path / "d.json").write_text(json.dumps([row]))
        ended = run(spec(models / "tiny", train=str(tmp_path / "d.json")))
        assert any(n.startswith("1 questions of the train split were cut") for n in ended.notices)

    def test_weights_next_to_another_config(self, run: Run, models: Path) -> None:
        other = models / "other"
        other.mkdir()
        config = json.loads((models / "tiny" / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.25}))
        body = spec(models / "tiny")
        body["model"]["config_name"] = str(other)
        folder = Path(run(body).result["model_dir"])
        assert json.loads((folder / "config.json").read_text())["hidden_dropout_prob"] == 0.25
        weights = folder / "model.safetensors"
        assert weights.read_bytes() == (models / "tiny" / "model.safetensors").read_bytes()


class TestDataFailures:
    @pytest.mark.parametrize(
        ("name", "content", "code", "message"),
        [
            (
                "d.json",
                '[{"question": "q", "contexts": "c", "url": "u", "answers": []}]',
                FailureCode.MISSING_COLUMN,
                "Missing column 'context' (d.json, row 1). Columns found: 'question', 'contexts', "
                "'url', 'answers'. Did you mean 'contexts' for 'context'?",
            ),
            (
                "d.csv",
                "question,context,answers\nq,c,\nq,c\n",
                FailureCode.UNREADABLE_ROW,
                "d.csv, line 3: 2 fields, but the header has 3",
            ),
            ("d.json", "[]", FailureCode.EMPTY_DATASET, "The train split has no rows"),
            (
                "d.json",
                '{\n"rows": 1}',
                FailureCode.UNSUPPORTED_FORMAT,
                "d.json: must be a JSON array",
            ),
        ],
    )
    def test_one_of_each_kind_is_named(
        self,
        tmp_path: Path,
        run: Run,
        models: Path,
        name: str,
        content: str,
        code: FailureCode,
        message: str,
    ) -> None:
        (tmp_path / name).write_text(content)
        ended = run(spec(models / "tiny", train=str(tmp_path / name)))
        assert (ended.status, ended.failure.code) == (1, code)
        assert ended.failure.message.startswith(message)
        prepared = tmp_path / "job" / "cache" / "prepared"
        assert [path.suffix for path in prepared.iterdir()] == [".lock"]

    def test_v2_data_without_the_option(self, run: Run, models: Path) -> None:
        body = spec(models / "tiny", task={"version_2_with_negative": False})
        failure = run(body).failure
        assert failure.code is FailureCode.INVALID_OPTION
        assert "`task.version_2_with_negative` is false" in failure.message
        assert failure.message.startswith("15 of 52 rows of the train split cannot be used")
        assert len(failure.details["bad_rows"]) == 15
        assert failure.action.startswith("Change the option that the message names")
        assert failure.details["place"].startswith("train-v2.0.json, question ")

    @pytest.mark.parametrize("kind", ["missing", "outside", "link", "folder", "pipe"])
    def test_paths_that_may_not_or_cannot_be_read(
        self, tmp_path: Path, run: Run, models: Path, kind: str
    ) -> None:
        root = tmp_path / "root"
        root.mkdir()
        (tmp_path / "secret.json").write_text("[]")
        (root / "link").symlink_to(tmp_path / "secret.json")
        (root / "folder").mkdir()
        os.mkfifo(root / "pipe")
        path = tmp_path / "secret.json" if kind == "outside" else root / kind
        ended = run(spec(models / "tiny", train=str(path)), data_roots=[root])
        assert ended.failure.code is FailureCode.DATASET_NOT_FOUND
        assert kind == "outside" or kind in ended.failure.message

    def test_a_removed_upload(self, run: Run, models: Path) -> None:
        body = spec(models / "tiny", source="upload", train=["file-1"])
        assert run(body).failure.code is FailureCode.DATASET_NOT_FOUND


def fails(run: Run, body: Mapping[str, Any], **more: Any) -> tuple[FailureCode, str]:
    failure = run(body, **more).failure
    return failure.code, failure.message


def _locate(folder: Path) -> tuple[str, str]:
    with pytest.raises(StageError) as caught:
        files.locate(str(folder), None, roots=[folder.parent], setting="", cache_dir=folder.parent)
    return caught.value.failure.code, caught.value.failure.message


def _without_privileges(call: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """What `call` returns in a process that file permissions apply to: root may read all."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        writer.send(call())

    child = context.Process(target=run)
    child.start()
    child.join(30)
    assert reader.poll(), child.exitcode
    code, message = reader.recv()
    return code, message


class TestModelFailures:
    def test_outside_the_roots(self, tmp_path: Path, run: Run, model: Path) -> None:
        code, message = fails(run, spec(model), model_roots=[tmp_path])
        assert code is FailureCode.MODEL_NOT_FOUND
        assert "FINETUNE_MODEL_ROOTS" in message

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize("closed", ["model.safetensors", "config.json", "."])
    def test_files_that_the_workers_user_may_not_read(self, closed: str) -> None:
        with tempfile.TemporaryDirectory() as root:  # only this user may enter pytest's own
            folder = Path(root) / "tiny"
            folder.mkdir()
            Path(root).chmod(0o755)
            for name in ("config.json", "model.safetensors"):
                (folder / name).touch()
            (folder / closed).chmod(0)
            code, message = _without_privileges(lambda: _locate(folder))
            folder.chmod(0o755)
        what = "its folder" if closed == "." else closed
        assert code == FailureCode.MODEL_ACCESS_DENIED
        assert message == f"The worker's user may not read {what} of the model {str(folder)!r}"

    def test_weights_only_as_pickle_and_the_command_that_converts_them(
        self, run: Run, models: Path
    ) -> None:
        folder = models / "tiny"
        weights = load_file(folder / "model.safetensors")
        name = next(name for name in weights if name.endswith("word_embeddings.weight"))
        tied = {**weights, "tied.weight": weights[name]}  # of one memory, as in a real .bin
        (folder / "model.safetensors").unlink()
        torch.save(tied, folder / "pytorch_model.bin")
        failure = run(spec(folder)).failure
        assert failure.code is FailureCode.UNSAFE_WEIGHTS
        assert "only as pytorch_model.bin: pickles, which can run code" in failure.message
        command = failure.details["command"]
        assert command in failure.message
        python = f"{shlex.quote(sys.executable)} -c"
        subprocess.run(command.replace("python -c", python), shell=True, check=True)
        converted = load_file(folder / "model.safetensors")
        assert converted.keys() == tied.keys()
        assert all(torch.equal(converted[key], tied[key]) for key in tied)
        assert run(spec(folder)).status == 0

    @pytest.mark.parametrize(
        ("file", "nature", "option"),
        [
            ("flax_model.msgpack", "Flax's format, which holds no code", "from_flax=True"),
            ("tf_model.h5", "TensorFlow's format", "from_tf=True"),
        ],
    )
    def test_weights_of_another_library(
        self, run: Run, models: Path, file: str, nature: str, option: str
    ) -> None:
        folder = models / "tiny"
        (folder / "model.safetensors").rename(folder / file)
        (folder / "training_args.bin").touch()
        code, message = fails(run, spec(folder))
        assert code is FailureCode.UNSAFE_WEIGHTS
        assert f"only as {file}: {nature}" in message
        assert option in message
        assert "can run code" not in message

    def test_no_weights(self, run: Run, models: Path) -> None:
        (models / "tiny" / "model.safetensors").unlink()
        assert fails(run, spec(models / "tiny"))[0] is FailureCode.MODEL_NOT_FOUND

    def test_weights_linked_from_outside_the_roots_do_not_count(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        weights = models / "tiny" / "model.safetensors"
        weights.rename(tmp_path / "elsewhere")
        weights.symlink_to(tmp_path / "elsewhere")
        code, _ = fails(run, spec(models / "tiny"), model_roots=[models])
        assert code is FailureCode.MODEL_NOT_FOUND

    def test_architecture_without_a_head(self, run: Run, models: Path) -> None:
        config = {"model_type": "vit", "architectures": ["ViTModel"]}
        (models / "tiny" / "config.json").write_text(json.dumps(config))
        code, message = fails(run, spec(models / "tiny"))
        assert code is FailureCode.UNSUPPORTED_ARCHITECTURE
        assert message == "A model of type 'vit' has no head for question-answering"

    def test_a_metric_that_no_evaluation_of_the_rows_reports(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        """Also where an earlier job has prepared the rows."""
        answered = [row for row in squad_rows("validation") if row["answers"]["text"]][:2]
        (tmp_path / "v.json").write_text(json.dumps(answered))
        body = spec(models / "tiny", validation=str(tmp_path / "v.json"), max_train_samples=3)
        body["training"] = {"eval_strategy": "epoch", "metric_for_best_model": "NoAns_f1"}
        for _ in range(2):
            code, message = fails(run, body, cache_dir=tmp_path / "cache")
            assert code is FailureCode.INVALID_OPTION
            assert message.startswith(
                "`training.metric_for_best_model` is `NoAns_f1`, but the evaluation reports only: "
                "HasAns_exact, HasAns_f1, HasAns_total, best_exact"
            )

    def test_a_missing_head_is_found_before_weights_and_rows_are_read(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        (models / "tiny" / "model.safetensors").write_bytes(b"no weights")
        (tmp_path / "d.json").write_text("no rows")
        body = spec(models / "tiny", task={"head": "beam-search"}, train=str(tmp_path / "d.json"))
        ended = run(body)
        assert phases(ended) == ["resolving", "downloading"]
        failure = ended.failure
        assert failure.code is FailureCode.UNSUPPORTED_ARCHITECTURE
        assert failure.message == (
            "A model of type 'bert' has no head for question-answering/beam-search"
        )
        assert failure.action == (
            "Set `task.head` to `span`, or choose a model of type `xlnet`, then submit again."
        )

    def test_unknown_architecture_and_its_code_is_not_run(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        config = {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config"}}
        (models / "tiny" / "config.json").write_text(json.dumps(config))
        marker = tmp_path / "ran"
        (models / "tiny" / "code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: ...\n")
        code, _ = fails(run, spec(models / "tiny"))
        assert code is FailureCode.UNSUPPORTED_ARCHITECTURE
        assert not marker.exists()

    def test_slow_tokenizer(self, run: Run, models: Path) -> None:
        CanineTokenizer().save_pretrained(models / "slow")
        body = spec(models / "tiny")
        body["model"]["tokenizer_name"] = str(models / "slow")
        code, message = fails(run, body)
        assert code is FailureCode.SLOW_TOKENIZER
        assert "CanineTokenizer" in message

    def test_no_tokenizer(self, run: Run, models: Path) -> None:
        for path in (models / "tiny").glob("*token*"):
            path.unlink()
        assert fails(run, spec(models / "tiny"))[0] is FailureCode.SLOW_TOKENIZER

    def test_no_pad_token(self, run: Run, models: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(models / "tiny")
        tokenizer.pad_token = None
        tokenizer.save_pretrained(models / "tiny")
        GPT2Config(n_layer=1).save_pretrained(models / "tiny")
        code, message = fails(run, spec(models / "tiny"))
        assert (code, "has no pad token" in message) == (FailureCode.NO_PAD_TOKEN, True)

    def test_longer_than_the_position_table(self, run: Run, models: Path) -> None:
        code, message = fails(run, spec(models / "tiny", task={"max_seq_length": 513}))
        assert code is FailureCode.SEQUENCE_TOO_LONG
        assert message == "`max_seq_length` is 513, but the model's position table holds 512"

    def test_roberta_needs_two_rows_of_its_table_for_itself(self, run: Run, models: Path) -> None:
        vocabulary = len(AutoTokenizer.from_pretrained(models / "tiny"))
        config = RobertaConfig(vocab_size=vocabulary, max_position_embeddings=130, pad_token_id=1)
        config.save_pretrained(models / "tiny")
        code, message = fails(run, spec(models / "tiny", task={"max_seq_length": 129}))
        assert code is FailureCode.SEQUENCE_TOO_LONG
        assert message.endswith("holds 128")
        assert run(spec(models / "tiny", task={"max_seq_length": 128})).status == 0

    def test_a_tokenizer_with_more_tokens_than_the_model_embeds(
        self, run: Run, models: Path
    ) -> None:
        BertConfig(vocab_size=100).save_pretrained(models / "tiny")
        code, message = fails(run, spec(models / "tiny"))
        assert code is FailureCode.INVALID_OPTION
        assert "`model.tokenizer_name`" in message


class TestRealModel:
    def test_minilm_and_its_tokenizer(self, run: Run) -> None:
        ended = run(spec(minilm_dir()), model_roots=[minilm_dir().resolve()])
        assert ended.status == 0, ended.log
        assert ended.result["splits"]["train"]["examples"] == 52
