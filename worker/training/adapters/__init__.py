"""Adapters of peft (LoRA, IA3, prompt and prefix tuning), and quantized base weights."""
