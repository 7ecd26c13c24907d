"""The command `finetune`, installed as `finetune_service.service.launch`: `service` is the name of
our package only when our packages come first."""

from .system import own_packages, quick_imports


def main() -> None:
    own_packages.come_first()
    with quick_imports.without_collections():
        from service.cli.app import main as run

    run()
