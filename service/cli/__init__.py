"""`finetune`: the commands of the service's users and operators.

Exit statuses: 0 ok, 1 the job failed or was cancelled, 2 wrong usage or spec, 3 the service cannot
be reached, 130 interrupted.
"""

from service.cli.app import main

__all__ = ["main"]
