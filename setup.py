"""The packages, all of them below `finetune_service` (docs/decisions/0028-one-name-of-our-own.md).

pyproject.toml has everything else; it can find packages, but not put them under another name.
"""

from setuptools import find_namespace_packages, setup

_OURS = ("service", "worker", "migrations")

setup(
    packages=[
        f"finetune_service.{name}"
        for name in find_namespace_packages(include=[f"{ours}*" for ours in _OURS])
    ],
    package_dir={"finetune_service": "."},
)
