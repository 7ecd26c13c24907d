"""`python -m service.cli`: how `finetune up` starts its parts, wherever the script lies."""

from service import own_packages
from service.cli import main

own_packages.come_first()
main()
