"""What a sampler of Optuna remembers from one suggestion to the next, as JSON.

That is: where its random numbers are, which fields all trials so far had in common, and the last
fit of the Gaussian process. Everything else it derives from the trials and their notes.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler, GPSampler
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.search_space import IntersectionSearchSpace
from optuna.search_space.group_decomposed import _GroupDecomposedSearchSpace

from service.studies.packing import pack, unpack
from service.studies.parameters import Parameter


def save(sampler: BaseSampler) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for path, part in _parts(sampler):
        match part:
            case LazyRandomState():
                state[path] = _save_random(part.rng)
            case IntersectionSearchSpace():
                state[path] = _save_common_fields(part)
            case _GroupDecomposedSearchSpace():
                groups = part._search_space.search_spaces
                state[path] = [sorted(group) for group in groups]
    if isinstance(sampler, GPSampler):
        state["kernels"] = [_save_kernel(each) for each in sampler._gprs_cache_list or ()]
    return state


def restore(
    sampler: BaseSampler, state: Mapping[str, Any], parameters: Mapping[str, Parameter]
) -> None:
    for path, part in _parts(sampler):
        match part:
            case LazyRandomState():
                _restore_random(part.rng, state[path])
            case IntersectionSearchSpace():
                _restore_common_fields(part, state[path], parameters)
            case _GroupDecomposedSearchSpace():
                part._search_space._search_spaces = [
                    _distributions(group, parameters) for group in state[path]
                ]
    if isinstance(sampler, GPSampler) and state["kernels"]:
        sampler._gprs_cache_list = [_restore_kernel(each) for each in state["kernels"]]


def look_again_from(sampler: BaseSampler, number: int) -> None:
    """Makes a sampler read the fields of this trial and of later ones again.

    It reads each trial once, when it is over; one that was paused is over a second time.
    """
    for _, part in _parts(sampler):
        if isinstance(part, IntersectionSearchSpace):
            part._cached_trial_number = min(part._cached_trial_number, number)


def _parts(sampler: BaseSampler, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The sampler's own attributes, and those of samplers within it."""
    for name, value in vars(sampler).items():
        if isinstance(value, BaseSampler):
            yield from _parts(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _save_random(random: np.random.RandomState) -> dict[str, Any]:
    state = random.get_state(legacy=False)
    assert isinstance(state, dict)
    return {
        "key": pack(state["state"]["key"], "<u4"),
        "pos": int(state["state"]["pos"]),
        # The second number of a pair that a normal distribution gave.
        "gauss": pack(np.array([state["gauss"]])) if state["has_gauss"] else None,
    }


def _restore_random(random: np.random.RandomState, state: Mapping[str, Any]) -> None:
    gauss = state["gauss"]
    random.set_state(
        (
            "MT19937",
            unpack(state["key"], "<u4"),
            state["pos"],
            int(gauss is not None),
            0.0 if gauss is None else float(unpack(gauss)[0]),
        )
    )


def _save_common_fields(space: IntersectionSearchSpace) -> dict[str, Any]:
    fields = space._search_space
    return {
        "read": space._cached_trial_number,
        "fields": None if fields is None else sorted(fields),
    }


def _restore_common_fields(
    space: IntersectionSearchSpace, state: Mapping[str, Any], parameters: Mapping[str, Parameter]
) -> None:
    fields = state["fields"]
    space._cached_trial_number = state["read"]
    space._search_space = None if fields is None else _distributions(fields, parameters)


def _distributions(paths: list[str], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    return {path: parameters[path].distribution for path in paths}


def _save_kernel(fitted: Any) -> str:
    scales = fitted.inverse_squared_lengthscales.detach().cpu().numpy()
    return pack(np.array([*scales, fitted.kernel_scale.item(), fitted.noise_var.item()]))


def _restore_kernel(text: str) -> Any:
    """What the next fit begins with; it looks at these three attributes only."""
    # Loads torch, which this sampler needs anyway.
    regression: Any = import_module("optuna._gp.gp")
    numbers = regression.torch.from_numpy(unpack(text))
    return SimpleNamespace(
        inverse_squared_lengthscales=numbers[:-2], kernel_scale=numbers[-2], noise_var=numbers[-1]
    )
