"""Real exceptions of the real libraries wherever they can be provoked."""

import errno
import json
import os
import signal
import ssl
import subprocess
import sys
from itertools import islice
from pathlib import Path

import httpx2
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub import errors as hub
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    hf_raise_for_status,
    validate_repo_id,
)
from torch.distributed import DistBackendError

from service.contract.failures import Failure, FailureCode
from worker import failures
from worker.stages import rank_env

TOKEN = "hf_" + "a" * 34


def code(error: BaseException) -> FailureCode:
    return failures.from_exception(error).code


def raised(from_cause: BaseException) -> BaseException:
    """A wrapper around `from_cause`, as libraries raise them."""
    try:
        raise ValueError("could not be loaded") from from_cause
    except ValueError as error:
        return error


def hub_error(status: int, hub_code: str | None = None) -> hub.HfHubHTTPError:
    """The client's own error for an answer."""
    request = httpx2.Request("GET", "https://hub.test/api/models/a/b")
    headers = {"X-Error-Code": hub_code} if hub_code else {}
    response = httpx2.Response(status, headers=headers, request=request)
    with pytest.raises(hub.HfHubHTTPError) as caught:
        hf_raise_for_status(response)
    return caught.value


class TestDisk:
    def test_a_write_to_a_full_device(self) -> None:
        with pytest.raises(OSError, match="No space left") as caught:
            Path("/dev/full").write_text("x")
        assert code(caught.value) is FailureCode.DISK_FULL

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_by_number_also_when_wrapped(self, number: int) -> None:
        error = OSError(number, os.strerror(number))
        assert code(error) is code(raised(error)) is FailureCode.DISK_FULL

    def test_messages_of_rust_and_cpp(self) -> None:
        error = RuntimeError("I/O error: No space left on device (os error 28)")
        assert code(error) is FailureCode.DISK_FULL


class TestMemory:
    def test_the_cpu_allocator(self) -> None:
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**55)
        assert code(caught.value) is FailureCode.OUT_OF_MEMORY

    def test_the_interpreter(self) -> None:
        with pytest.raises(MemoryError) as caught:
            bytearray(2**60)
        assert code(caught.value) is FailureCode.OUT_OF_MEMORY

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`"),
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            torch.AcceleratorError("CUDA error: out of memory", 2),
            RuntimeError(
                'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/'
                'CUDACachingAllocator.cpp":1016, please report a bug to PyTorch.'
            ),
        ],
    )
    def test_the_devices_libraries(self, error: RuntimeError) -> None:
        assert code(error) is FailureCode.OUT_OF_MEMORY


def nccl_error(kind: str, last: str) -> DistBackendError:
    """In torch's wording."""
    return DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
        f"(run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\n{kind}\nLast error:\n{last}"
        "\nException raised from getNCCLComm (most recent call first):\nframe #0: c10::Error"
    )


SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed"
USAGE = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
CUDA = "ncclUnhandledCudaError: Call to CUDA function failed."
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process"


class TestNccl:
    @pytest.mark.parametrize(
        ("kind", "last", "expected"),
        [
            (
                SYSTEM,
                "Error while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384), "
                "error: No space left on device (28)",
                FailureCode.SHARED_MEMORY_FULL,
            ),
            (
                USAGE,
                "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
                FailureCode.GPU_USED_TWICE,
            ),
            (CUDA, "Cuda failure 2 'out of memory'", FailureCode.OUT_OF_MEMORY),
            (CUDA, "Failed to CUDA calloc async 4 bytes", FailureCode.OUT_OF_MEMORY),
            (CUDA, "Cuda failure 1 'invalid argument'", FailureCode.DEVICE_ERROR),
        ],
    )
    def test_causes_of_their_own(self, kind: str, last: str, expected: FailureCode) -> None:
        error = nccl_error(kind, last)
        assert not rank_env.is_peer_lost(error)
        failure = failures.from_exception(error)
        assert failure.code is expected
        assert failure.message.endswith(f"DistBackendError: {last}")

    @pytest.mark.parametrize(
        ("kind", "last"),
        [
            (REMOTE, "NET/IB : Got completion from peer 10.0.0.7<38> with error 12"),
            (SYSTEM, "socketProgress: Connection closed by remote peer node2<51159>"),
            ("ncclInternalError: Internal check failed.", "Socket recv failed while polling"),
            (SYSTEM, "Call to recv from 10.0.0.7<58355> failed : Broken pipe"),
        ],
    )
    def test_a_lost_process_is_not_the_reason(self, kind: str, last: str) -> None:
        assert rank_env.is_peer_lost(nccl_error(kind, last))
        assert rank_env.is_peer_lost(raised(nccl_error(kind, last)))

    def test_memory_is_the_reason_also_in_an_error_of_the_connection(self) -> None:
        assert not rank_env.is_peer_lost(nccl_error(REMOTE, "Cuda failure 2 'out of memory'"))

    def test_the_watchdogs_words(self) -> None:
        words = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran"
        assert rank_env.is_peer_lost(RuntimeError(words))

    def test_other_errors_than_nccls(self) -> None:
        assert code(OSError(errno.ENOSPC, "nccl: No space left")) is FailureCode.DISK_FULL
        assert rank_env.is_peer_lost(RuntimeError("[gloo] Connection closed by peer [127.0.0.1]"))


class TestDevice:
    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("CUDA error: device-side assert triggered"),
            RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
            torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
        ],
    )
    def test_errors_of_the_driver(self, error: Exception) -> None:
        assert code(error) is FailureCode.DEVICE_ERROR

    def test_the_words_in_another_kind_of_error_mean_nothing(self) -> None:
        assert code(ValueError("CUDA error")) is FailureCode.INTERNAL


class TestHub:
    @pytest.mark.parametrize(
        ("status", "hub_code", "expected"),
        [
            (401, None, FailureCode.HUB_UNAUTHORIZED),
            (403, None, FailureCode.HUB_FORBIDDEN),
            (403, "GatedRepo", FailureCode.HUB_FORBIDDEN),
            (404, "RepoNotFound", FailureCode.HUB_REJECTED),
            (401, "RepoNotFound", FailureCode.HUB_UNAUTHORIZED),
            (404, "RevisionNotFound", FailureCode.HUB_REJECTED),
            (404, "EntryNotFound", FailureCode.HUB_REJECTED),
            (400, None, FailureCode.HUB_REJECTED),
            (409, None, FailureCode.HUB_CONFLICT),
            (412, None, FailureCode.HUB_CONFLICT),
            (429, None, FailureCode.HUB_RATE_LIMITED),
            (500, None, FailureCode.HUB_UNAVAILABLE),
            (503, None, FailureCode.HUB_UNAVAILABLE),
        ],
    )
    def test_answers(self, status: int, hub_code: str | None, expected: FailureCode) -> None:
        error = hub_error(status, hub_code)
        assert code(error) is code(raised(error)) is expected

    def test_refusals_of_the_client_itself(self) -> None:
        with pytest.raises(hub.HFValidationError) as caught:
            validate_repo_id("not/a/name")
        assert code(caught.value) is code(raised(caught.value)) is FailureCode.HUB_REJECTED

    def test_an_answer_that_is_not_json(self) -> None:
        with pytest.raises(json.JSONDecodeError) as caught:
            httpx2.Response(200, text='{"sha": "0123').json()
        assert code(caught.value) is code(raised(caught.value)) is FailureCode.HUB_UNAVAILABLE

    def test_a_file_that_is_not_json(self) -> None:
        with pytest.raises(json.JSONDecodeError) as caught:
            json.loads('{"sha": "0123')
        assert code(caught.value) is FailureCode.INTERNAL


class TestNetwork:
    def test_a_refused_connection(self) -> None:
        with pytest.raises(httpx2.ConnectError) as caught:
            httpx2.get("http://127.0.0.1:9", timeout=5)
        assert code(caught.value) is FailureCode.NETWORK

    @pytest.mark.parametrize(
        "error",
        [
            httpx2.ReadTimeout("timed out"),
            hub.LocalEntryNotFoundError("not in the cache and no network"),
            hub.OfflineModeIsEnabled("offline"),
            ConnectionResetError("reset"),
            TimeoutError("timed out"),
        ],
    )
    def test_other_ways_not_to_reach_it(self, error: Exception) -> None:
        assert code(error) is FailureCode.NETWORK

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("http://127.0.0.1:9/api/models/org/name", "127.0.0.1:9 for org/name"),
            ("http://127.0.0.1:9/api/models/gpt2/revision/main", "127.0.0.1:9 for gpt2"),
            ("http://127.0.0.1:9/api/datasets/org/data/tree/a", "127.0.0.1:9 for org/data"),
            ("http://127.0.0.1:9/datasets/org/data/resolve/a/x", "127.0.0.1:9 for org/data"),
            ("http://127.0.0.1:9/org/name/resolve/main/x.json", "127.0.0.1:9 for org/name"),
            ("http://127.0.0.1:9/gpt2/resolve/main/x.json", "127.0.0.1:9 for gpt2"),
            ("http://127.0.0.1:9/api/whoami-v2", "127.0.0.1:9"),
            ("http://127.0.0.1:9/", "127.0.0.1:9"),
        ],
    )
    def test_names_the_host_and_what_it_was_asked_for(self, url: str, message: str) -> None:
        with pytest.raises(httpx2.ConnectError) as caught:
            httpx2.get(url, timeout=5)
        for error in (caught.value, raised(caught.value)):
            failure = failures.from_exception(error)
            assert failure.message == f"Could not reach {message}: connection refused."

    def test_a_download_of_the_hubs_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        api = HfApi(endpoint="http://finetune.invalid")
        with pytest.raises(httpx2.ConnectError) as caught:
            api.model_info("org/name")
        assert failures.from_exception(caught.value).message == (
            "Could not reach finetune.invalid for org/name: name not found."
        )

    def test_a_certificate_that_is_not_trusted(self) -> None:
        untrusted = ssl.SSLCertVerificationError(
            1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
        )
        request = httpx2.Request("GET", "https://hub.test/api/models/org/name")
        error = httpx2.ConnectError(str(untrusted), request=request)
        error.__cause__ = untrusted
        assert failures.from_exception(error).message == (
            "Could not reach hub.test for org/name: its certificate is not trusted."
        )

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (httpx2.ReadTimeout("timed out"), "the network: timed out."),
            (httpx2.ProxyError("407"), "the network: the proxy refused."),
            (httpx2.ReadTimeout("proxy.corp: timed out"), "the network: timed out."),
            (TimeoutError(), "the network: timed out."),
            (
                ConnectionResetError(104, "Connection reset by peer"),
                "the network: connection closed.",
            ),
            (
                ConnectionError("Couldn't reach 'org/data' on the Hub (LocalEntryNotFoundError)"),
                "the Hub for org/data: ConnectionError: Couldn't reach 'org/data' on the Hub "
                "(LocalEntryNotFoundError).",
            ),
            (hub.OfflineModeIsEnabled("offline"), "the Hub: HF_HUB_OFFLINE is set."),
        ],
    )
    def test_without_a_request(self, error: Exception, message: str) -> None:
        assert failures.from_exception(error).message == f"Could not reach {message}"

    def test_a_broken_pipe_is_not_the_network(self) -> None:
        assert code(BrokenPipeError("pipe")) is FailureCode.INTERNAL


def named(name: str, module: str = "elsewhere", text: str = "") -> Exception:
    """An error of a library that is not installed here, or that cannot be provoked."""
    error: Exception = type(name, (Exception,), {"__module__": module})(text)
    return error


class TestNames:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (named("TransportError", "httpx"), FailureCode.NETWORK),
            (named("TimeoutException", "httpx"), FailureCode.NETWORK),
            (named("NetworkError", "httpcore"), FailureCode.NETWORK),
            (named("ConnectionError", "requests.exceptions"), FailureCode.NETWORK),
            (named("Timeout", "requests.exceptions"), FailureCode.NETWORK),
            (named("HTTPError", "urllib3.exceptions"), FailureCode.NETWORK),
            (named("ClientError", "aiohttp.client_exceptions"), FailureCode.NETWORK),
            (named("LocalEntryNotFoundError"), FailureCode.NETWORK),
            (named("OfflineModeIsEnabled"), FailureCode.NETWORK),
            (named("gaierror"), FailureCode.NETWORK),
            (named("HTTPError"), FailureCode.INTERNAL),
            (named("Unknown", "httpx"), FailureCode.INTERNAL),
            (named("GatedRepoError"), FailureCode.HUB_FORBIDDEN),
            (named("DisabledRepoError"), FailureCode.HUB_FORBIDDEN),
            (named("HfHubHTTPError"), FailureCode.HUB_UNAVAILABLE),
            (named("LocalTokenNotFoundError"), FailureCode.HUB_UNAUTHORIZED),
            (named("HFValidationError"), FailureCode.HUB_REJECTED),
            (named("EntryNotFoundError"), FailureCode.HUB_REJECTED),
            (named("RevisionNotFoundError"), FailureCode.HUB_REJECTED),
            (named("MemoryError"), FailureCode.OUT_OF_MEMORY),
            (named("OutOfMemoryError"), FailureCode.OUT_OF_MEMORY),
            (OSError(errno.ENOMEM, "x"), FailureCode.OUT_OF_MEMORY),
            (named("AcceleratorError"), FailureCode.DEVICE_ERROR),
            (OSError(errno.EFBIG, "x"), FailureCode.DISK_LIMIT),
            (BlockingIOError(errno.EAGAIN, "x"), FailureCode.PROCESS_LIMIT),
            (RuntimeError("can't start new thread"), FailureCode.PROCESS_LIMIT),
            (OSError(errno.EMFILE, "x"), FailureCode.INSUFFICIENT_RESOURCES),
            (OSError(errno.ENFILE, "x"), FailureCode.INSUFFICIENT_RESOURCES),
            (RuntimeError("Too many open files"), FailureCode.INSUFFICIENT_RESOURCES),
            (ValueError("Too many open files"), FailureCode.INTERNAL),
        ],
        ids=lambda value: getattr(value, "value", type(value).__name__),
    )
    def test_the_code(self, error: Exception, expected: FailureCode) -> None:
        assert code(error) is code(raised(error)) is expected

    def test_causes_that_go_round(self) -> None:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        assert list(islice(failures.causes(first), 9)) == [first, second]

    def test_a_panic(self) -> None:
        assert failures.is_panic(named("PanicException", "pyo3_runtime"))
        assert not failures.is_panic(named("Exception"))


class TestMessage:
    def test_holds_type_and_first_line(self) -> None:
        failure = failures.from_exception(KeyError("what\nTraceback: secret"))
        assert failure.message == "The stage ended with KeyError: 'what\\nTraceback: secret'"
        failure = failures.from_exception(RuntimeError("first\nsecond"))
        assert failure.message == "The stage ended with RuntimeError: first"
        assert failures.from_exception(AssertionError()).message.endswith("AssertionError")

    def test_masks_secrets(self) -> None:
        assert failures.describe(RuntimeError(f"no {TOKEN}")) == "RuntimeError: no ***"

    def test_is_cut(self) -> None:
        assert len(failures.describe(RuntimeError("x" * 10_000))) < 600


class TestSmall:
    def test_fits_the_pipe(self) -> None:
        long = Failure.from_code(
            FailureCode.INTERNAL, f"{TOKEN} " + "m" * 4_000, action="a" * 4_001, rows="r" * 63_988
        )
        small = failures.small(long)
        assert (small.message, small.action) == ("*** " + "m" * 3_996, "a" * 4_000)
        assert (small.code, small.details) == (FailureCode.INTERNAL, long.details)
        larger = long.model_copy(update={"details": {"rows": "r" * 63_989}})
        assert failures.small(larger).details == {}


def test_an_invalid_option() -> None:
    failure = failures.invalid_option("training.fp16", "needs a GPU", given=True).failure
    assert (failure.code, failure.message, failure.details) == (
        FailureCode.INVALID_OPTION,
        "`training.fp16` needs a GPU",
        {"option": "training.fp16", "given": True},
    )


STOPPED = "The stage was stopped from outside ({})"
CRASHED = "The stage crashed in native code ({})"


class TestFromExit:
    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(
        ("number", "expected", "message"),
        [
            (signal.SIGKILL, FailureCode.WORKER_LOST, STOPPED),
            (signal.SIGTERM, FailureCode.WORKER_LOST, STOPPED),
            (signal.SIGSEGV, FailureCode.DEVICE_ERROR, CRASHED),
            (signal.SIGBUS, FailureCode.DEVICE_ERROR, CRASHED),
            (signal.SIGABRT, FailureCode.DEVICE_ERROR, CRASHED),
            (signal.SIGILL, FailureCode.INTERNAL, "The stage was ended by {}"),
        ],
    )
    def test_signals_of_a_real_child(
        self, number: int, expected: FailureCode, message: str
    ) -> None:
        name = signal.Signals(number).name
        program = f"import os; os.kill(os.getpid(), {int(number)})"
        child = subprocess.run([sys.executable, "-c", program], check=False)
        failure = failures.from_exit(child.returncode)
        assert failure.code is failures.from_exit(128 + number).code is expected
        assert failure.message == message.format(name)
        assert failure.details == {"signal": name}

    def test_a_file_larger_than_the_limit(self) -> None:
        """Python ignores the signal; other programs do not."""
        failure = failures.from_exit(-signal.SIGXFSZ)
        assert (failure.code, failure.message) == (
            FailureCode.DISK_LIMIT,
            "The stage wrote a file larger than FINETUNE_STAGE_FILE_BYTES allows",
        )

    def test_a_kill_by_the_kernel_for_want_of_memory(self) -> None:
        failure = failures.from_exit(-signal.SIGKILL, oom_killed=True)
        assert (failure.code, failure.message, failure.details) == (
            FailureCode.OUT_OF_MEMORY,
            "The stage was killed (SIGKILL) when the host ran out of memory",
            {"signal": "SIGKILL"},
        )
        assert failures.from_exit(-signal.SIGTERM, oom_killed=True).message == (
            STOPPED.format("SIGTERM")
        )
        assert failures.from_exit(3, oom_killed=True).code is FailureCode.INTERNAL

    @pytest.mark.parametrize("status", [1, 3, 127, 128, 255])
    def test_a_plain_exit_status(self, status: int) -> None:
        failure = failures.from_exit(status)
        assert failure.code is FailureCode.INTERNAL
        assert failure.message == f"The stage exited with status {status} and reported no reason"
        assert failure.details == {"exit_status": status}

    @pytest.mark.parametrize("status", [-1, 129])
    def test_the_lowest_signal(self, status: int) -> None:
        assert failures.from_exit(status).details == {"signal": "SIGHUP"}


@pytest.mark.usefixtures("processes")
class TestImports:
    def test_needs_no_library(self) -> None:
        program = (
            "import sys, worker.failures;"
            "print(sorted({'torch', 'transformers', 'datasets', 'huggingface_hub', 'httpx2', "
            "'numpy'} & set(sys.modules)))"
        )
        output = subprocess.check_output([sys.executable, "-c", program], text=True)
        assert output == "[]\n"
