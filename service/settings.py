"""Typed settings, parsed once from FINETUNE_* variables. Secrets are SecretStr."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.contract import patterns


def _split_paths(value: object) -> object:
    """`a:b` as in PATH; an empty string is no path at all."""
    if isinstance(value, str):
        return [part for part in value.split(":") if part]
    return value


def _absolute(paths: list[Path]) -> list[Path]:
    return [path.expanduser().resolve() for path in paths]


Roots = Annotated[list[Path], NoDecode, BeforeValidator(_split_paths), AfterValidator(_absolute)]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="FINETUNE_",
        extra="ignore",
        env_ignore_empty=True,  # `FINETUNE_HUB_TOKEN=` in a compose file means none
    )

    home: Path = Field(Path("~/.finetune"), description="Database, uploads, workspaces, caches.")
    database_url: SecretStr | None = Field(None, description="Default: SQLite under home.")
    redis_url: SecretStr | None = Field(None, description="The broker; `finetune up` starts one.")
    mlflow_uri: str | None = Field(None, description="Where workers reach the tracking server.")
    mlflow_public_uri: str | None = Field(
        None, description="Where users reach it; default: mlflow_uri."
    )
    public_url: str | None = Field(
        None, description="Where users reach the API, for links in MLflow; `up` fills it in."
    )
    hub_token: SecretStr | None = Field(None, description="Write access to the Hub.")
    hub_endpoint: str | None = Field(None, description="Another Hub; default: huggingface.co.")
    data_roots: Roots = Field(default_factory=list, description="Folders that specs may name.")
    model_roots: Roots = Field(default_factory=list, description="Likewise for models.")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    max_upload_bytes: int = Field(5 * 1024**3, ge=1)
    max_body_bytes: int = Field(1024**2, ge=1, description="Of any request except an upload.")

    lease_seconds: float = Field(60, gt=0)
    beat_seconds: float = Field(10, gt=0)
    poll_seconds: float = Field(
        2, gt=0, description="How often a supervisor checks for the user's requests."
    )
    kill_seconds: float = Field(
        45,
        gt=0,
        description="After this long without a successful heartbeat a supervisor ends its stage.",
    )
    drain_grace_seconds: float = Field(
        60,
        ge=0,
        description="From SIGUSR1, at a pause or a worker's shutdown, to SIGTERM of a stage.",
    )
    stop_grace_seconds: float = Field(10, gt=0, description="From SIGTERM to SIGKILL of a stage.")
    hung_seconds: float = Field(
        600, gt=0, description="A stage that reports nothing for this long is ended as hung."
    )
    republish_seconds: float = Field(30, gt=0)
    reconcile_seconds: float = Field(1, gt=0)
    crash_limit: int = Field(3, ge=1)
    retry_backoff_seconds: float = Field(
        10, gt=0, description="First wait; doubles, at most 10 min."
    )

    retention_sweep_seconds: float = Field(300, gt=0, description="How often retention runs.")
    retention_workspace_days: float | None = Field(
        None, gt=0, description="Time since the job ended; unset: its files are kept."
    )
    retention_workspace_bytes: int | None = Field(
        None,
        ge=0,
        description="Of all ended jobs' files together; the oldest are removed first.",
    )
    retention_upload_days: float | None = Field(
        None, gt=0, description="Since the last job that names the file; unset: it is kept."
    )
    retention_upload_bytes: int | None = Field(None, ge=0, description="Of all uploads together.")
    retention_prepared_days: float | None = Field(
        30, gt=0, description="Since the last use of prepared data, or of compiled code."
    )
    retention_prepared_bytes: int | None = Field(
        None, ge=0, description="Of all prepared data together, and of all compiled code."
    )

    gpus_per_worker: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Of each worker that `finetune up` starts; unset: one worker has them all. No "
        "job can have more.",
    )
    warm_start: bool = Field(
        default=True,
        description="Fork stages from a process that has imported torch already; Linux only.",
    )
    doctor_at_start: bool = Field(
        default=True,
        description="A worker runs the checks of `finetune doctor --quick` when it starts, in the "
        "background; GET /v1/workers shows what they found.",
    )
    malloc: str = Field(
        "auto",
        # The loader takes white space and colons for the end of a name.
        pattern=patterns.ALLOCATOR,
        description="The memory allocator of stages. `auto`, without a GPU: tcmalloc if found, "
        "else the C library's, configured to keep freed memory; `system`: the C library's with "
        "its defaults; or the path of a library to preload.",
    )
    system_metrics_seconds: float = Field(
        10, gt=0, description="Between two samples of a running stage's CPU, memory, disk and GPUs."
    )

    log_format: str = Field("console", pattern=patterns.LOG_FORMAT)
    log_level: str = "INFO"

    @model_validator(mode="after")
    def _an_old_attempt_ends_before_a_new_one_begins(self) -> Self:
        if not self.beat_seconds < self.kill_seconds < self.lease_seconds:
            raise ValueError(
                f"FINETUNE_BEAT_SECONDS ({self.beat_seconds:g}) must be less than "
                f"FINETUNE_KILL_SECONDS ({self.kill_seconds:g}), and that less than "
                f"FINETUNE_LEASE_SECONDS ({self.lease_seconds:g}): a worker must have ended a "
                "stage that it can no longer speak for before another one may begin it"
            )
        return self

    @field_validator("home", mode="after")
    @classmethod
    def _expand_home(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @property
    def sqlalchemy_url(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.home / 'finetune.db'}"

    @property
    def alive_seconds(self) -> float:
        """A worker that has missed three heartbeats does not count as alive."""
        return 3 * self.beat_seconds

    @property
    def outage_retry_seconds(self) -> float:
        """Between two tries to write while the database is unreachable."""
        return min(self.beat_seconds, 2.0)

    @property
    def files_dir(self) -> Path:
        return self.home / "files"

    @property
    def jobs_dir(self) -> Path:
        return self.home / "jobs"

    @property
    def cache_dir(self) -> Path:
        return self.home / "cache"

    @property
    def devices_dir(self) -> Path:
        """Locks on the devices that trainings are on."""
        return self.cache_dir / "devices"

    def workspace(self, job_id: str) -> Path:
        return self.jobs_dir / job_id


@lru_cache
def get_settings() -> Settings:
    return Settings()
