"""`python -m service.cli`: how `finetune up` starts its parts, wherever the script lies."""

from service.cli import main

main()
