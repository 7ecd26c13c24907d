"""`python -m service.cli`: how `finetune up` starts its parts, wherever the script lies."""

from service.system import own_packages, quick_imports

with quick_imports.without_collections():
    from service.cli.app import main

own_packages.come_first()
main()
