"""`finetune convert`: real command lines become equivalent, valid specs."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml

from service.api.faults.collect import collect
from service.cli.convert.check import check
from tests.cli.conftest import Cli, Outcome

CASES = yaml.safe_load(Path(__file__).with_name("command_lines.yaml").read_text())


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def convert(cli: Cli, command: str, *options: str) -> Outcome:
    return cli("convert", *options, "--", *shlex.split(command))


class TestCommandLines:
    @pytest.mark.parametrize("case", CASES)
    def test_become_a_spec(self, cli: Cli, case: str) -> None:
        outcome = convert(cli, CASES[case]["command"], "--json")
        assert outcome.status == 0, outcome.err
        answer = outcome.json()
        spec = CASES[case]["spec"]
        assert (answer["spec"], answer["errors"]) == (spec, [])
        assert check(spec) == (spec, [])
        if spec["dataset"]["source"] == "hub":
            assert collect(spec).faults == []

    @pytest.mark.usefixtures("processes")
    def test_in_a_script_of_the_users_shell(self) -> None:
        """Variables, quotes, continued lines and loops are the shell's."""
        finetune = Path(sys.executable).with_name("finetune")
        Path("train.sh").write_text(f"""
            export CUDA_VISIBLE_DEVICES=0,1
            DATA="data set"
            for task in run_qa run_clm; do
                {finetune} convert -o $task.yaml -- torchrun --nproc_per_node ${{GPUS:-2}} \\
                    examples/$task.py --model_name_or_path org/m \\
                    --train_file "$DATA/train.json" --do_train 2>/dev/null
            done
            """)
        subprocess.run(["sh", "train.sh"], check=True)
        for script, task in (("run_qa", "question-answering"), ("run_clm", "causal-lm")):
            spec = yaml.safe_load(Path(f"{script}.yaml").read_text())
            assert (spec["task"], spec["resources"]) == (task, {"gpus": 2})
            assert spec["dataset"]["train"] == "./data set/train.json"

    @pytest.mark.parametrize(
        ("launched", "resources", "note"),
        [
            ("deepspeed", None, "by its own configuration"),
            ("accelerate launch --config_file x.yaml", None, "by its own configuration"),
            ("torchrun --nproc_per_node=gpu", None, "starts `gpu` processes"),
            ("torchrun --nnodes 2 --nproc_per_node 4 --master_port 1", {"gpus": 4}, ""),
            ("CUDA_VISIBLE_DEVICES=2,3 python", {"gpus": 2}, ""),
            ("CUDA_VISIBLE_DEVICES= python", {"gpus": 0}, ""),
            ("accelerate launch --cpu --num_processes 2", {"gpus": 0, "num_processes": 2}, ""),
        ],
    )
    def test_resources_follow_from_the_launcher(
        self, cli: Cli, launched: str, resources: dict[str, int] | None, note: str
    ) -> None:
        command = f"{launched} run_qa.py {TestLeftOut.BASE.partition('.py')[2]}"
        answer = convert(cli, command, "--json").json()
        assert answer["spec"].get("resources") == resources
        assert note in "".join(answer["notes"])

    def test_of_a_file_of_arguments(self, cli: Cli) -> None:
        arguments = {
            "model_name_or_path": "org/m",
            "dataset_name": "squad",
            "do_train": True,
            "max_seq_length": 256,
            "learning_rate": 1e-4,
            "use_fast_tokenizer": False,
        }
        Path("args.json").write_text(json.dumps(arguments))
        for source in (
            ["args.json", "--script", "run_qa"],
            ["--", "python", "run_qa.py", "args.json"],
        ):
            spec = yaml.safe_load(cli("convert", *source).out)
            assert spec["task"] == {"type": "question-answering", "max_seq_length": 256}
            assert spec["training"]["learning_rate"] == 1e-4
        Path("flax.json").write_text(json.dumps(arguments | {"dtype": "bfloat16"}))
        outcome = cli("convert", "flax.json", "--script", "run_flax_qa", "--json").json()
        assert (outcome["spec"]["training"]["precision"], outcome["errors"]) == ("bf16", [])
        assert any("Flax trains on all devices" in note for note in outcome["notes"])
        outcome = cli("convert", "args.json")
        assert (outcome.status, outcome.out) == (2, "")
        assert "say which script reads args.json" in outcome.err

    def test_columns_of_a_local_file_are_those_that_the_script_takes(self, cli: Cli) -> None:
        Path("a.csv").write_text("premise,claim,label\nx,y,1\n")
        command = "python run_glue.py --model_name_or_path o/m --do_train --train_file a.csv"
        spec = yaml.safe_load(convert(cli, command).out)
        assert spec["dataset"]["columns"] == {"text": "premise", "text_pair": "claim"}
        Path("a.json").write_text('{"sentence2": "x", "sentence1": "y", "label": 1}\n')
        spec = yaml.safe_load(convert(cli, command.replace("csv", "json")).out)
        assert spec["dataset"]["columns"] == {"text": "sentence1", "text_pair": "sentence2"}


class TestTRL:
    CONFIG = """
        model_name_or_path: org/m
        datasets:
          - path: json
            data_files: rows.jsonl
        chat_template_path: chat.jinja
        completion_only_loss: true
        learning_rate: 1.0e-4
        fp16: true
    """

    def test_its_yaml_file(self, cli: Cli) -> None:
        Path("sft.yaml").write_text(self.CONFIG)
        Path("rows.jsonl").touch()
        Path("chat.jinja").write_text("{{ messages }}")
        for source in (["sft.yaml", "--script", "sft"], ["--", "trl", "sft", "--config=sft.yaml"]):
            spec = yaml.safe_load(cli("convert", *source).out)
            assert spec == {
                "task": {
                    "type": "chat",
                    "max_length": 1024,
                    "chat_template": "{{ messages }}",
                    "train_on": "completion",
                },
                "model": {"name_or_path": "org/m"},
                "dataset": {"source": "upload", "train": "./rows.jsonl"},
                "training": {"learning_rate": 1e-4, "precision": "fp16"},
            }
        given = ("trl", "sft", "--config", "sft.yaml", "--learning_rate", "3e-4")
        assert yaml.safe_load(cli("convert", "--", *given).out)["training"]["learning_rate"] == 3e-4

    @pytest.mark.parametrize(
        ("given", "dataset"),
        [
            (
                "{path: json, data_files: [a.jsonl, ./b.jsonl]}",
                {"source": "upload", "train": ["./a.jsonl", "./b.jsonl"]},
            ),
            (
                "{path: json, data_files: {train: a.jsonl, test: b.jsonl}}",
                {"source": "upload", "train": "./a.jsonl"},
            ),
            (
                "{path: org/d, name: de, split: 'train[:10%]'}",
                {"source": "hub", "name": "org/d", "config": "de", "train": "train[:10%]"},
            ),
        ],
    )
    def test_data_sets_of_its_yaml_file(
        self, cli: Cli, given: str, dataset: dict[str, Any]
    ) -> None:
        Path("sft.yaml").write_text(f"model_name_or_path: o/m\ndatasets: [{given}]\n")
        spec = yaml.safe_load(cli("convert", "sft.yaml", "--script", "sft").out)
        assert spec["dataset"] == dataset

    def test_processes_of_its_yaml_file(self, cli: Cli) -> None:
        config = "model_name_or_path: o/m\ndataset_name: d/d\nnum_processes: 4\n"
        Path("sft.yaml").write_text(config)
        for source in (["sft.yaml", "--script", "sft"], ["--", "trl", "sft", "--config=sft.yaml"]):
            spec = yaml.safe_load(cli("convert", *source).out)
            assert spec["resources"] == {"gpus": 4}

    def test_a_job_has_one_loss(self, cli: Cli) -> None:
        command = "trl dpo --model_name_or_path o/m --dataset_name d/d --loss_type sigmoid sft"
        answer = convert(cli, command, "--json").json()
        assert answer["spec"]["task"] == {"type": "preference", "max_length": 1024}
        [left] = answer["left_out"]
        assert (left["option"], left["reason"]) == (
            "loss_type",
            "a job has one loss: `task.loss_type: sigmoid` was taken",
        )

    def test_what_has_no_place_is_named(self, cli: Cli) -> None:
        command = (
            "trl sft --model_name_or_path o/m --dataset_name d/d --pad_token x --use_peft "
            "--lora_target_modules q_proj --dataset_num_proc 4 --chat_template_path o/other"
        )
        answer = convert(cli, command, "--json").json()
        left = {each["option"] for each in answer["left_out"]}
        assert left == {"pad_token", "dataset_num_proc", "chat_template_path"}
        assert answer["spec"]["peft"]["target_modules"] == ["q_proj"]
        assert any("`train_on: all`" in note for note in answer["notes"])

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--", "trl", "grpo", "--x", "1"], "`grpo.py` is none of the scripts"),
            (["--", "trl", "sft", "--config", "missing.yaml"], "missing.yaml cannot be read"),
            (["list.yaml", "--script", "sft"], "list.yaml must hold one mapping of options"),
        ],
    )
    def test_what_cannot_be_read(self, cli: Cli, arguments: list[str], words: str) -> None:
        Path("list.yaml").write_text("- a\n")
        outcome = cli("convert", *arguments)
        assert outcome.status == 2
        assert words in outcome.err


class TestTrackers:
    BASE = "python run_qa.py --model_name_or_path o/m --dataset_name d/d "

    @pytest.mark.parametrize(
        ("flags", "tracking", "left"),
        [
            ("--do_train --report_to tensorboard", {"tensorboard": True}, None),
            ("--do_train --report_to tensorboard mlflow", {"tensorboard": True}, None),
            ("--do_train --report_to tensorboard wandb", {"tensorboard": True}, "wandb"),
            (
                "--do_train --run_name x --report_to tensorboard",
                {"run_name": "x", "tensorboard": True},
                None,
            ),
            ("--do_train --report_to wandb", None, "wandb"),
            ("--do_eval --report_to tensorboard", None, "tensorboard"),
        ],
    )
    def test_tensorboard_is_an_option_of_the_job(
        self, cli: Cli, flags: str, tracking: Any, left: Any
    ) -> None:
        answer = convert(cli, self.BASE + flags, "--json").json()
        assert answer["spec"].get("tracking") == tracking
        assert {o["option"]: o["given"] for o in answer["left_out"]}.get("report_to") == left


class TestLeftOut:
    def left_out(self, cli: Cli, command: str) -> dict[str, str]:
        answer = convert(cli, command, "--json").json()
        return {item["option"]: item["reason"] for item in answer["left_out"]}

    BASE = "python run_qa.py --model_name_or_path o/m --dataset_name d/d --do_train "

    @pytest.mark.parametrize(
        ("flags", "option", "reason"),
        [
            ("--cache_dir /x", "cache_dir", "the operator's cache"),
            ("--blocksize 5", "blocksize", "unknown option; did you mean `block_size`?"),
            ("--block_size 5", "block_size", "this task does not have it"),
            ("--past_index 2", "past_index", "no task here trains on the hidden states"),
            ("--report_to wandb", "report_to", "every job reports to MLflow"),
            ("--resume_from_checkpoint x", "resume_from_checkpoint", "job"),
            ("--preprocessing_num_workers 8", "preprocessing_num_workers", "the worker chooses"),
            ("--deepspeed none.json", "deepspeed", "its file cannot be read here"),
            ("--test_file t.json", "test_file", "the script reads --dataset_name instead"),
            ("--validation_split_percentage 5", "validation_split_percentage", "without a split"),
        ],
    )
    def test_has_its_reason(self, cli: Cli, flags: str, option: str, reason: str) -> None:
        assert reason in self.left_out(cli, self.BASE + flags)[option]

    def test_leaves_out_defaults(self, cli: Cli) -> None:
        flags = (
            "--overwrite_output_dir False --past_index -1 --save_safetensors --fp16_opt_level O1"
        )
        assert self.left_out(cli, self.BASE + flags) == {}

    def test_is_reported_on_stderr(self, cli: Cli) -> None:
        outcome = convert(cli, self.BASE + "--cache_dir /x --max_query_length 64")
        assert "left out --cache_dir /x: downloads are kept" in outcome.err
        assert "left out --max_query_length 64: questions are never cut" in outcome.err
        assert "left out" not in outcome.out

    def test_never_shows_a_secret(self, cli: Cli) -> None:
        secret = "hf_abcdefghijklmnop"
        flags = f"--token {secret} --hub_token={secret} --use_auth_token {secret}"
        for more in ([], ["--json"]):
            outcome = convert(cli, self.BASE + flags, *more)
            assert "hf_abc" not in outcome.out + outcome.err


class TestDumpedArguments:
    def test_of_the_installed_version(self, cli: Cli) -> None:
        arguments = transformers.Seq2SeqTrainingArguments(
            output_dir="runs/best",
            use_cpu=True,
            learning_rate=2e-4,
            eval_strategy="epoch",
            bf16=True,
            predict_with_generate=True,
        )
        Path("training_args.json").write_text(arguments.to_json_string())
        outcome = cli("convert", "training_args.json")
        assert yaml.safe_load(outcome.out) == {
            "name": "best",
            "training": {
                "learning_rate": 2e-4,
                "precision": "bf16",
                "use_cpu": True,
                "dataloader_pin_memory": False,
                "eval_strategy": "epoch",
            },
            "resources": {"gpus": 0},
        }
        assert outcome.status == 0
        assert "left out" not in outcome.err
        assert "add `task`, `model`, `dataset`" in outcome.err
        assert "`predict_with_generate: True`" in outcome.err

    def test_of_4x(self, cli: Cli) -> None:
        dumps = Path(__file__).parents[2] / "contract" / "training_arguments_dumps.json"
        for dump in json.loads(dumps.read_text()).values():
            Path("dump.json").write_text(json.dumps(dump))
            answer = cli("convert", "dump.json", "--json").json()
            assert (answer["left_out"], answer["errors"]) == ([], [])
            assert answer["spec"].keys() == {"name", "training"}

    @pytest.mark.parametrize("content", [b"PK\x03\x04x", b"\x80\x04x", b"text"])
    def test_a_pickle_is_refused_unread(self, cli: Cli, content: bytes) -> None:
        Path("training_args.bin").write_bytes(content)
        outcome = cli("convert", "training_args.bin")
        assert (outcome.status, outcome.out) == (2, "")
        assert "is a pickle, which can run code" in outcome.err


class TestFaults:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("train --x 1", "there is none of the scripts that can be converted"),
            ("python train.py --x 1", "`train.py` is none of the scripts that can be converted"),
            ("python t.py --task_name sst2 --block_size 8", "no options of only one of them"),
            ("python run_t5_mlm_flax.py --x 1", "`run_t5_mlm` is not converted: it trains a model"),
            ("python t.py --mean_noise_span_length 3", "`run_t5_mlm` is not converted"),
            ("python run_swag.py --x 1", "`run_swag.py` is none of the scripts"),
            ("python run_qa.py stray --x", "`stray` is not an option"),
            ("python run_qa.py missing.json", "missing.json cannot be read"),
        ],
    )
    def test_has_a_sentence_and_status_2(self, cli: Cli, text: str, message: str) -> None:
        outcome = convert(cli, text)
        assert (outcome.status, outcome.out) == (2, "")
        assert message in outcome.err

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("python run_qa.py\n", "write `finetune convert --` in front of its command"),
            ("{1}", "cannot be read"),
        ],
    )
    def test_of_a_file(self, cli: Cli, content: str, message: str) -> None:
        Path("train.sh").write_text(content)
        outcome = cli("convert", "train.sh")
        assert (outcome.status, outcome.out) == (2, "")
        assert message in outcome.err

    def test_of_the_spec_are_named_and_the_spec_is_written(self, cli: Cli) -> None:
        command = TestLeftOut.BASE + "--optim galore_adamw --learning_rate fast"
        outcome = convert(cli, command, "-o", "job.yaml")
        assert (outcome.status, outcome.out) == (2, "")
        assert "training.optim: `galore_adamw` is refused" in outcome.err
        assert "training.learning_rate: must be a number" in outcome.err
        assert yaml.safe_load(Path("job.yaml").read_text())["training"]["optim"] == "galore_adamw"


class TestPaths:
    def test_are_relative_to_the_spec(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "specs").mkdir()
        Path("train.json").write_text("[]")
        files = f"--train_file train.json --validation_file {tmp_path}/specs/dev.json --do_eval"
        command = f"python run_qa.py --model_name_or_path o/m --do_train {files}"
        out = tmp_path / "specs" / "job.yaml"
        assert convert(cli, command, "-o", str(out)).status == 0
        dataset: dict[str, Any] = yaml.safe_load(out.read_text())["dataset"]
        assert dataset["train"] == "../work/train.json"
        assert dataset["validation"] == "./dev.json"
