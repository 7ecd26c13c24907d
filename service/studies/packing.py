"""Arrays as text, bit for bit: a database may write a JSON number in another way, and has none for
infinity."""

import base64

import numpy as np


def pack(array: np.ndarray, dtype: str = "<f8") -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode()


def unpack(text: str, dtype: str = "<f8") -> np.ndarray:
    """One dimension; writable."""
    return np.frombuffer(base64.b64decode(text), dtype).astype(np.dtype(dtype).newbyteorder("="))
