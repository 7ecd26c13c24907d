"""The embedded stack of `finetune up`: its components, processes, locks and addresses."""
