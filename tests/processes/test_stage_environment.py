import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.contract.states import Stage
from service.settings import Settings
from service.system import own_packages
from worker.processes.stage_environment import stage_environment, stage_secrets


class TestStageEnvironment:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(home=tmp_path)

    @pytest.mark.usefixtures("processes")
    def test_downloads_lie_with_our_caches(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HF_HOME", raising=False)
        home = stage_environment(settings, Stage.PREPARE)["HF_HOME"]
        assert home == str(settings.cache_dir / "huggingface")

    @pytest.mark.usefixtures("processes")
    def test_unless_the_operator_keeps_one_for_all(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HOME", "elsewhere")
        assert stage_environment(settings, Stage.PREPARE)["HF_HOME"] == "elsewhere"

    @pytest.mark.usefixtures("processes")
    def test_other_projects_have_their_own_all_the_same(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HOME", "elsewhere")
        home = stage_environment(settings, Stage.PREPARE, project_id="other")["HF_HOME"]
        assert home == str(settings.cache_dir / "projects" / "other" / "huggingface")

    @pytest.mark.usefixtures("processes")
    def test_of_the_search_path_it_has_the_folders_that_it_may_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind ours: what depends on the current folder, and what the sandbox hides, is not."""
        ours, shown = str(own_packages.FOLDER), tmp_path / "shown"
        (tmp_path / "link").symlink_to(shown)
        given = f":{tmp_path / 'hidden'}:relative:{sys.prefix}/lib/more:{tmp_path / 'link'}:"
        monkeypatch.setenv("PYTHONPATH", given)
        settings = Settings(home=tmp_path, sandbox_read=[shown])
        environment = stage_environment(settings, Stage.TRAIN)
        assert environment["PYTHONSAFEPATH"] == "1"
        found = environment["PYTHONPATH"].split(":")
        assert found == [ours, f"{sys.prefix}/lib/more", str(tmp_path / "link")]
        unconfined = stage_environment(Settings(home=tmp_path, sandbox="off"), Stage.TRAIN)
        assert str(tmp_path / "hidden") in unconfined["PYTHONPATH"]

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(
        ("own", "expected"),
        [
            ({}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "GOMP_SPINCOUNT": "10000"}),
            (
                {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "GOMP_SPINCOUNT": "300000"},
                {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "GOMP_SPINCOUNT": "300000"},
            ),
            # libgomp ignores the policy where there is a count.
            (
                {"OMP_WAIT_POLICY": "PASSIVE"},
                {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "OMP_WAIT_POLICY": "PASSIVE"},
            ),
        ],
    )
    def test_defaults_that_keep_memory_and_cores_free_unless_the_operator_sets_them(
        self,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        own: dict[str, str],
        expected: dict[str, str],
    ) -> None:
        names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
        for name in names:
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        given = stage_environment(settings, Stage.TRAIN)
        assert {name: given[name] for name in names if name in given} == expected

    @pytest.mark.usefixtures("processes")
    def test_a_stage_sees_the_gpus_that_it_was_given_and_no_other(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
        given = stage_environment(settings, Stage.TRAIN, ["GPU-b", "GPU-a"])
        assert given["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
        assert given["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        for none in (
            stage_environment(settings, Stage.TRAIN),
            stage_environment(settings, Stage.PREPARE),
            stage_environment(settings, Stage.PUBLISH),
        ):
            assert none["CUDA_VISIBLE_DEVICES"] == ""

    @pytest.mark.usefixtures("processes")
    def test_of_the_workers_variables_a_stage_receives_the_listed_ones(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The attack: a training printed its environment and found the worker's."""
        private = (
            *("WANDB_API_KEY", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"),
            *("PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "OPENAI_API_KEY", "PIP_INDEX_URL"),
            *("FINETUNE_HUB_TOKEN", "FINETUNE_DATABASE_URL", "HF_TOKEN", "HF_API_KEY"),
            *("HUGGING_FACE_HUB_TOKEN", "DBUS_SESSION_BUS_ADDRESS", "ANYTHING_ELSE"),
        )
        needed = {
            "PATH": "/usr/bin",
            "LC_ALL": "C.UTF-8",
            "NCCL_DEBUG": "INFO",
            "CUDA_HOME": "/usr/local/cuda",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_ETAG_TIMEOUT": "3",
        }
        for name in private:
            monkeypatch.setenv(name, "secret")
        for name, value in needed.items():
            monkeypatch.setenv(name, value)
        for stage in Stage:
            given = stage_environment(settings, stage)
            assert not set(private) & given.keys()
            assert "secret" not in given.values()
            assert needed.items() <= given.items()

    @pytest.mark.usefixtures("processes")
    def test_the_operator_adds_variables_by_name(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_STAGE_ENV", "MY_PLUGIN, MY_KEY,")
        for name in ("MY_PLUGIN", "MY_KEY", "MY_OTHER"):
            monkeypatch.setenv(name, "1")
        settings = Settings(home=settings.home)
        given = stage_environment(settings, Stage.TRAIN)
        assert {name for name in given if name.startswith("MY_")} == {"MY_PLUGIN"}
        assert stage_secrets(settings, Stage.TRAIN) == {"MY_KEY": "1"}

    @pytest.mark.usefixtures("processes")
    def test_only_prepare_and_publish_reach_the_network_through_a_proxy(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        open_proxy = {"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost"}
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (open_proxy | {"HTTP_PROXY": "http://joe:pw@proxy:3128"}).items():
            monkeypatch.setenv(name, value)
        settings = settings.model_copy(update={"hub_token": SecretStr("hf_x")})
        for stage in (Stage.PREPARE, Stage.PUBLISH):
            given = stage_environment(settings, stage)
            assert open_proxy.items() <= given.items()
            assert "HTTP_PROXY" not in given
            assert stage_secrets(settings, stage) == {
                "HTTP_PROXY": "http://joe:pw@proxy:3128",
                "HF_TOKEN": "hf_x",
            }
        assert not any("PROXY" in n.upper() for n in stage_environment(settings, Stage.TRAIN))
        assert stage_secrets(settings, Stage.TRAIN) == {}

    def test_publish_alone_receives_the_token_of_mlflow(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        (tmp_path / "token").write_text("t-1\n")
        settings = settings.model_copy(update={"mlflow_token_file": tmp_path / "token"})
        given = {stage: stage_secrets(settings, stage) for stage in Stage}
        assert given == {
            Stage.PREPARE: {},
            Stage.TRAIN: {},
            Stage.PUBLISH: {"MLFLOW_TRACKING_TOKEN": "t-1"},
        }

    @pytest.mark.usefixtures("processes")
    def test_its_home_and_its_temporary_files_are_its_own(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        """No `.netrc`, no login of the worker's user, no file of another stage."""
        given = stage_environment(settings, Stage.TRAIN, private=tmp_path)
        assert (given["HOME"], given["TMPDIR"]) == (str(tmp_path), str(tmp_path))

    @pytest.mark.usefixtures("processes")
    def test_variables_that_libraries_set_in_a_worker_change_no_stage(
        self, settings: Settings
    ) -> None:
        """Every stage gets the environment that the fork server started with."""
        code = (
            "import sys\n"
            "from pathlib import Path\n"
            "from service.contract.states import Stage\n"
            "from service.settings import Settings\n"
            "from worker.processes.stage_environment import stage_environment\n"
            "settings = Settings(home=Path(sys.argv[1]))\n"
            "before = stage_environment(settings, Stage.TRAIN)\n"
            "import mlflow, os\n"
            "os.environ['MLFLOW_TRACKING_URI'] = 'http://127.0.0.1:1'\n"
            "os.environ['_MLFLOW_TELEMETRY_SESSION_ID'] = '1'\n"
            "mlflow.MlflowClient()\n"
            "assert stage_environment(settings, Stage.TRAIN) == before\n"
        )
        subprocess.run([sys.executable, "-c", code, str(settings.home)], check=True)
