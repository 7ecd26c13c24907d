"""A stand-in for torch, to simulate a library that starts CUDA when it is imported.

STUB_CUDA: `started`, which torch shows at once; `counted`, which it shows after a fork only.
"""

import os
import sys
from types import ModuleType, SimpleNamespace

_state = SimpleNamespace(in_bad_fork=False)
torch = ModuleType("torch")
torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
    is_initialized=lambda: os.environ["STUB_CUDA"] == "started",
    _is_in_bad_fork=lambda: _state.in_bad_fork,
)
sys.modules["torch"] = torch
os.register_at_fork(after_in_child=lambda: setattr(_state, "in_bad_fork", True))
