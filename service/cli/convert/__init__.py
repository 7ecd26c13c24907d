"""`finetune convert`: from a command line of a reference script, or dumped TrainingArguments, to a
spec.

`launcher` takes the command line apart, `flags` reads the script's arguments, the other modules
write the parts of the spec, `command` is the command itself.
"""
