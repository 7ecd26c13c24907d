"""A finished training in the format that `transformers.TrainerState.load_from_json` reads."""

import math
from pathlib import Path
from typing import Any

from worker.training.checkpointing.state import State

Best = tuple[int | None, float | None]
"""Step and value of the best evaluation."""


def trainer_state(state: State, best: Best, total_flos: float) -> dict[str, Any]:
    """Paths are relative to the job's workspace, intervals are whole steps, as in Trainer."""
    plan, spec, progress = state.plan, state.plan.spec, state.progress
    seen = {"no": 0, "all": progress.padded_tokens, "non_padding": progress.tokens}
    (best_step, best_metric), saved = best, progress.best_checkpoint
    return {
        "best_global_step": best_step,
        "best_metric": best_metric,
        "best_model_checkpoint": saved if saved and Path(saved).name == str(best_step) else None,
        "epoch": plan.epoch_after(progress.step),
        "eval_steps": plan.interval(
            spec.eval_steps if spec.eval_steps is not None else spec.logging_steps
        ),
        "global_step": progress.step,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": state.history.for_trainer_state(),
        "logging_steps": plan.interval(spec.logging_steps),
        "max_steps": plan.total_steps,
        "num_input_tokens_seen": seen[spec.include_num_input_tokens_seen],
        "num_train_epochs": math.ceil(plan.total_steps / plan.steps_per_epoch),
        "save_steps": plan.interval(spec.save_steps),
        "stateful_callbacks": {},
        "total_flos": total_flos,
        "train_batch_size": spec.per_device_train_batch_size,
        "trial_name": None,
        "trial_params": None,
    }
