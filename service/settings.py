"""Typed settings, parsed once from FINETUNE_* variables. Secrets are SecretStr."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.contract.fields import patterns
from service.system import inherited_secrets
from service.webhooks.addresses import Allowed


def _split_paths(value: object) -> object:
    """`a:b` as in PATH, or a JSON list; an empty string means no paths."""
    parts = _listed(value, ":")
    return [part for part in parts if part] if isinstance(parts, list) else parts


def _split_names(value: object) -> object:
    """`A,B`, with or without blanks, or a JSON list."""
    parts = _listed(value, ",")
    if not isinstance(parts, list):
        return parts
    names = [part.strip() if isinstance(part, str) else part for part in parts]
    return [name for name in names if name != ""]


def _listed(value: object, separator: str) -> object:
    """The parts of a text. `[` alone does not make it JSON: an IPv6 address begins so, too."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text != "[]" and not re.match(r'\[\s*"', text):
        return value.split(separator)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(
            f'begins like a JSON list but is none ({error}). Write `A{separator}B` or `["A", "B"]`'
        ) from None


Auth = Literal["required", "off"]
Names = Annotated[list[str], NoDecode, BeforeValidator(_split_names)]
_Absolute = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
Roots = Annotated[list[_Absolute], NoDecode, BeforeValidator(_split_paths)]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="FINETUNE_",
        extra="ignore",
        env_ignore_empty=True,  # `FINETUNE_HUB_TOKEN=` in a compose file means none
    )

    home: Path = Field(Path("~/.finetune"), description="Database, uploads, workspaces, caches.")
    database_url: SecretStr | None = Field(
        None,
        description="`postgresql://…` for more than one machine; without it SQLite under the home. "
        "A pooler in transaction mode passes no `LISTEN`: behind it live streams are half a "
        "second late.",
    )
    redis_url: SecretStr | None = Field(
        None, description="The broker; `finetune up` starts Valkey without it."
    )
    mlflow_uri: str | None = Field(
        None,
        description="Where workers reach MLflow. `finetune up` starts a server without it; "
        "elsewhere nothing is tracked.",
    )
    mlflow_token_file: Path | None = Field(
        None,
        description="A file with the token of the MLflow server; `up` and compose make it. With it "
        "the API serves MLflow at `/mlflow/` to whoever has a key.",
    )
    mlflow_on_delete: Literal["keep_metrics", "delete_run", "keep"] = Field(
        "keep_metrics",
        description="What deleting a job or search does to its run, and retention to the runs of "
        "the jobs whose files it removes. `keep_metrics` removes the files, the model among them; "
        "metrics and parameters stay. `delete_run` also deletes the run of a deleted job (`mlflow "
        "gc` then frees its metrics). `keep` leaves everything. Workers read it.",
    )
    mlflow_public_uri: str | None = Field(
        None,
        description="Where users reach MLflow, for links; without it `/mlflow/` of the API, or "
        "`FINETUNE_MLFLOW_URI`.",
    )
    public_url: str | None = Field(
        None, description="Where users reach the API, for links in MLflow; `up` fills it in."
    )
    published_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="The port of this machine that leads to a container's API; compose fills it "
        "in. With it `FINETUNE_PUBLIC_URL` is `http://127.0.0.1` and the port, unless it is set.",
    )
    hub_token: SecretStr | None = Field(None, description="A token with write access to the Hub.")
    secrets_key_file: Path | None = Field(
        None,
        description="The keys that seal the projects' secrets; without it `secrets.key` under the "
        "home. API and workers need the same file.",
    )
    hub_endpoint: str | None = Field(None, description="Another Hub than huggingface.co.")
    data_roots: Roots = Field(
        default_factory=list,
        description="Folders that specs may name, separated by colons or as a JSON list. None may "
        "contain `FINETUNE_HOME`.",
    )
    model_roots: Roots = Field(default_factory=list, description="The same for models.")

    host: str = Field("127.0.0.1", description="Where the API listens.")
    port: int = Field(8000, ge=0, le=65535, description="Its port; 0: any free one.")
    allowed_hosts: Names = Field(
        default_factory=list,
        description="Names under which browsers may reach the API besides localhost, addresses, "
        "`FINETUNE_HOST`, this machine's name and that of `FINETUNE_PUBLIC_URL`, separated by "
        "commas or as a JSON list; `*`: any.",
    )
    cors_origins: Names = Field(
        default_factory=list,
        description="Sites whose pages may use the API, such as `https://app.example.org`.",
    )
    trusted_proxies: Names = Field(
        default_factory=list,
        description="Addresses or networks of proxies whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are trusted.",
    )
    auth: Auth = Field(
        "required",
        description="`required`: every request needs an API key. `off`: no request needs one and "
        "everybody is the operator; refused unless the API listens on a loopback address.",
    )
    max_upload_bytes: int = Field(5 * 1024**3, ge=1, description="Size of an uploaded file.")
    max_connections: int = Field(
        1000,
        ge=8,
        description="Connections at once. Where the process may open few files (`ulimit -n`), half "
        "of what is left after its own 100. A new connection closes the one that has waited "
        "longest without a request. Three quarters of them may be live streams.",
    )
    max_prepared_bytes: int = Field(
        100 * 1024**3,
        ge=1,
        description="Size of the prepared rows of one split on the disk; a job with more ends with "
        "`data_too_large`.",
    )

    webhook_allow: Names = Field(
        default_factory=list,
        description="Receivers of webhooks besides public addresses over https: host names, "
        "addresses and networks, separated by commas, such as "
        "`hooks.example.internal,10.0.0.0/8`. API and reconciler need the same.",
    )

    lease_seconds: float = Field(60, gt=0, description="How long a claim is valid.")
    beat_seconds: float = Field(10, gt=0, description="How often a claim is renewed.")
    poll_seconds: float = Field(
        2, gt=0, description="How often a supervisor checks for cancel and pause."
    )
    kill_seconds: float = Field(
        45,
        gt=0,
        description="After this long without a renewal a worker ends its stage. Beat < kill < "
        "lease, otherwise nothing starts.",
    )
    drain_grace_seconds: float = Field(
        60,
        ge=0,
        description="On a pause or a worker's SIGTERM: time for a stage to finish its optimizer "
        "step and write a checkpoint, before it gets SIGTERM. A second signal to the worker skips "
        "it.",
    )
    stop_grace_seconds: float = Field(
        10,
        gt=0,
        description="From SIGTERM to SIGKILL of a stage. A worker that is still running 10 s after "
        "both periods exits, and its hanging processes are ended with it.",
    )
    hung_seconds: float = Field(
        600,
        gt=0,
        description="A training is ended as hung after this long, and after 20 times its median "
        "step, without an optimizer step; another stage after this long without output or "
        "processor time.",
    )
    default_timeout_seconds: float | None = Field(
        None,
        gt=0,
        description="Running time of all stages together, in jobs that set no `timeout_seconds`; "
        "unset: no limit.",
    )
    longest_timeout_seconds: float | None = Field(
        None,
        gt=0,
        description="The most that a job may run; one that asks for more is refused. Unset: no "
        "limit.",
    )
    republish_seconds: float = Field(30, gt=0, description="When a message is sent again.")
    crash_limit: int = Field(
        3,
        ge=1,
        description="Consecutive crashes (a lost worker, a killed or hung stage) without progress "
        "that end a job: no new step, and no more of the reference of `preference` on disk.",
    )
    retry_backoff_seconds: float = Field(
        10, gt=0, description="First wait before a retry; it doubles, up to 10 min."
    )

    retention_sweep_seconds: float = Field(300, gt=0, description="Interval between sweeps.")
    retention_workspace_days: float | None = Field(
        None, gt=0, description="Files of ended jobs: days since the end; unset: they are kept."
    )
    retention_workspace_bytes: int | None = Field(
        None,
        ge=0,
        description="Files of ended jobs: their size together; the oldest are removed first.",
    )
    retention_upload_days: float | None = Field(
        None,
        gt=0,
        description="Uploads: days since the last job that uses them; unset: they are kept.",
    )
    retention_upload_bytes: int | None = Field(
        None, ge=0, description="Uploads: their size together."
    )
    retention_prepared_days: float | None = Field(
        30,
        gt=0,
        description="Prepared data, the output of `torch_compile`, and the reference of "
        "`preference` with what killed jobs have computed of it: days since the last use.",
    )
    retention_prepared_bytes: int | None = Field(
        None, ge=0, description="The same: their size together."
    )

    audit_days: int = Field(365, ge=30, description="Entries of the audit log: days since then.")

    stage_memory_bytes: int | None = Field(
        None,
        ge=64 * 1024**2,
        description="Memory of all processes of a stage; pages that they share count once, cached "
        "pages of files do not count. Unset: 90 % of the machine's or container's memory, less 1 "
        "GiB, at least half. The job ends as `out_of_memory`.",
    )
    stage_processes: int = Field(
        4096,
        ge=16,
        description="Processes and threads of a stage. The job ends as `process_limit`.",
    )
    stage_disk_bytes: int | None = Field(
        None,
        ge=1024**2,
        description="What one attempt writes into its folder and its temporary folder; unset: what "
        "the disk has, less the part that is kept free. The job ends as `disk_limit`.",
    )
    stage_file_bytes: int | None = Field(
        None,
        ge=1024**2,
        description="Size of one file that a stage writes; unset: as the above. The job ends as "
        "`disk_limit`.",
    )

    gpus_per_worker: int | None = Field(
        None,
        ge=1,
        le=64,
        description="GPUs of each worker that `finetune up` starts; unset: one worker has them "
        "all. No job can have more.",
    )
    prediction_cpu_bytes: int = Field(
        0,
        ge=0,
        description="Models up to this size answer on the CPU, with a low priority, while "
        "trainings use or wait for the GPUs, or without any the CPU; larger ones wait.",
    )
    predictions_first: bool = Field(
        default=False,
        description="A model that answers predictions keeps its device although a training waits.",
    )
    warm_start: bool = Field(
        default=True,
        description="Fork stages from a process that has imported torch (Linux). Off saves about "
        "0.6 GB for each process of a worker and makes each stage 3 to 6 s slower.",
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
    stage_env: Names = Field(
        default_factory=list,
        description="Names of environment variables, separated by commas, that stages receive from "
        "the worker besides those that libraries need.",
    )
    sandbox: Literal["auto", "require", "off"] = Field(
        "auto",
        description="Confine stages: `auto` as far as this machine can, and say what is missing; "
        "`require`: refuse to start where something is missing; `off`: not at all.",
    )
    sandbox_layers: str = Field(
        "landlock,namespaces",
        pattern=patterns.SANDBOX_LAYERS,
        description="Which mechanisms may be used, for machines where one of them is in the way.",
    )
    sandbox_read: Roots = Field(
        default_factory=list,
        description="More folders that every stage may read, such as a CUDA toolkit's, separated "
        "by colons.",
    )
    system_metrics_seconds: float = Field(
        10, gt=0, description="Between two samples of a running stage's CPU, memory, disk and GPUs."
    )

    allow_debuggers: bool = Field(
        default=False,
        description="Let other processes of the same user read the memory and the environment of "
        "API, reconciler and workers, as py-spy and gdb do. Root always can.",
    )
    log_format: str = Field(
        "console",
        pattern=patterns.LOG_FORMAT,
        description="`console`, or `json`: a document per line.",
    )
    log_level: str = Field("INFO", description="`DEBUG`, `INFO`, `WARNING` or `ERROR`.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        passed_on = inherited_secrets.of_files(cls.secrets()) | inherited_secrets.settings()
        return init_settings, env_settings, InitSettingsSource(settings_cls, passed_on)

    @classmethod
    def secrets(cls) -> list[str]:
        """The settings that are secrets: they may also come from a pipe or a file."""
        fields = cls.model_fields.items()
        return [name for name, field in fields if SecretStr in get_args(field.annotation)]

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

    @model_validator(mode="after")
    def _specs_cannot_name_the_services_own_files(self) -> Self:
        for root in (*self.data_roots, *self.model_roots):
            if self.home.is_relative_to(root):
                raise ValueError(
                    f"FINETUNE_DATA_ROOTS or FINETUNE_MODEL_ROOTS is {root}, which contains "
                    f"FINETUNE_HOME ({self.home}): specs could name the database, keys and other "
                    "projects' files. Name only folders with data and models, or move the home"
                )
        return self

    @model_validator(mode="after")
    def _users_of_a_container_come_through_its_published_port(self) -> Self:
        if self.public_url is None and self.published_port is not None:
            self.public_url = f"http://127.0.0.1:{self.published_port}"
        return self

    @field_validator("webhook_allow", mode="after")
    @classmethod
    def _allows_hosts_and_networks(cls, value: list[str]) -> list[str]:
        Allowed.parse(value)
        return value

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
    def mlflow_token(self) -> SecretStr | None:
        if self.mlflow_token_file is None:
            return None
        return SecretStr(self.mlflow_token_file.read_text("utf-8").strip())

    @property
    def mlflow_users_url(self) -> str | None:
        """Where users find MLflow, without a slash at the end."""
        if self.mlflow_public_uri is None and self.mlflow_token_file and self.public_url:
            return f"{self.public_url.rstrip('/')}/mlflow"
        found = self.mlflow_public_uri or self.mlflow_uri
        return found.rstrip("/") if found else None

    @property
    def alive_seconds(self) -> float:
        """A worker that has missed three heartbeats does not count as alive."""
        return 3 * self.beat_seconds

    @property
    def outage_retry_seconds(self) -> float:
        """Between two tries to write while the database is unreachable."""
        return min(self.beat_seconds, 2.0)

    @property
    def uploads_dir(self) -> Path:
        """Parts of uploads that are not complete yet."""
        return self.home / "uploads"

    @property
    def files_dir(self) -> Path:
        return self.home / "files"

    @property
    def secrets_file(self) -> Path:
        return self.secrets_key_file or self.home / "secrets.key"

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
