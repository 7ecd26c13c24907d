"""Turns off the progress bars of libraries."""


def quiet_libraries() -> None:
    """Turn off progress bars: they are for terminals. (The Hub client has a variable for this.)"""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
