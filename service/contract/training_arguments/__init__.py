"""How `training` relates to `transformers.TrainingArguments`: aliases, refusals, other places."""
