"""The largest values that a spec may have.

Far above real trainings, and small enough for the columns of the database and for every product
that is made of them.
"""

from typing import Final

MOST_STEPS: Final = 2**31 - 1
"""What a column holds. Also of epochs, evaluations and checkpoints."""
MOST_TOKENS: Final = 2**24
"""Of one text or example."""
MOST_EXAMPLES: Final = 1_000_000
"""Of one batch; also batches of one step."""
MOST_ROWS: Final = 10**12
"""Of a data set; also bytes and elements of a buffer."""
LARGEST: Final = 10**12
"""Of a rate, a factor, a threshold, or an interval that shall never be reached."""
HIGHEST_LEARNING_RATE: Final = 1e40
"""Above what float32 holds. Such a training ends as `non_finite_loss`, or goes back with a lower
rate if `on_non_finite` says so."""
MOST_LAYERS: Final = 100_000
WIDEST: Final = 1_000_000
"""Of a layer, of an adapter's scale."""
