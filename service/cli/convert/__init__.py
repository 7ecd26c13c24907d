"""`finetune convert`: from a command line of a reference script, or dumped TrainingArguments, to a
spec.

`shell` finds the commands in a text, `flags` reads a script's arguments, `sections` and `training`
write the parts of the spec, `command` is the command itself.
"""
