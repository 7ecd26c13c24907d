"""`finetune`: the commands of the service's users and operators.

Exit statuses: 0 ok, 1 the job failed or was cancelled, 2 wrong usage or spec, 3 the service cannot
be reached, 130 interrupted.

Nothing is imported here: who needs one module would wait for those of all commands.
"""
