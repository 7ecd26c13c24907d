import subprocess
import sys
from pathlib import Path

import pytest

from service.contract.states import Stage
from service.settings import Settings
from worker.processes.stage_command import push_environment, stage_environment


class TestStageEnvironment:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(home=tmp_path)

    def test_downloads_lie_with_our_caches(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HF_HOME", raising=False)
        home = stage_environment(settings, Stage.PREPARE)["HF_HOME"]
        assert home == str(settings.cache_dir / "huggingface")

    def test_unless_the_operator_keeps_one_for_all(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HOME", "elsewhere")
        assert stage_environment(settings, Stage.PREPARE)["HF_HOME"] == "elsewhere"

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
            push_environment(settings),
        ):
            assert none["CUDA_VISIBLE_DEVICES"] == ""

    def test_variables_that_libraries_set_in_a_worker_change_no_stage(
        self, settings: Settings
    ) -> None:
        """Every stage gets the environment that the fork server started with."""
        code = (
            "import sys\n"
            "from pathlib import Path\n"
            "from service.contract.states import Stage\n"
            "from service.settings import Settings\n"
            "from worker.processes.stage_command import stage_environment\n"
            "settings = Settings(home=Path(sys.argv[1]))\n"
            "before = stage_environment(settings, Stage.TRAIN)\n"
            "import mlflow, os\n"
            "os.environ['MLFLOW_TRACKING_URI'] = 'http://127.0.0.1:1'\n"
            "os.environ['_MLFLOW_TELEMETRY_SESSION_ID'] = '1'\n"
            "mlflow.MlflowClient()\n"
            "assert stage_environment(settings, Stage.TRAIN) == before\n"
        )
        subprocess.run([sys.executable, "-c", code, str(settings.home)], check=True)
