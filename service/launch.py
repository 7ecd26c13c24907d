"""The command `finetune`, installed as `finetune_service.service.launch`: `service` is the name of
our package only when our packages come first."""

from . import own_packages


def main() -> None:
    own_packages.come_first()
    from service.cli import main as run

    run()
