import pytest
import torch
from torch.utils import _triton
from transformers.utils import import_utils

from worker.stages import fork_server


class TestForgetDevices:
    def test_the_caches_of_transformers_and_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fork server sees no GPU, but the stages that it forks may."""
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "is_available", lambda: False)
            fork_server._forget_devices()
            assert not import_utils.is_torch_cuda_available()
            assert not _triton._device_supports_tma()
            patched.setattr(torch.cuda, "is_available", lambda: True)
            assert not import_utils.is_torch_cuda_available()
            fork_server._forget_devices()
            assert import_utils.is_torch_cuda_available()
            assert _triton._device_supports_tma.cache_info().currsize == 0
        fork_server._forget_devices()
