"""All that is wrong with a job spec, at once, found in one pass.

`shorten` drops the excess of a spec with too many faults, `collect` validates the rest and checks
the rules between valid fields, `walk` finds where in the client's own input an error of pydantic
lies, `describe` words it, and `semantic` adds what only this server knows: uploaded files, other
jobs and allowed folders.
"""
