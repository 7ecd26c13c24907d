"""placeholder"""

from typing import Any


class Halving:
    def __init__(self, *a: Any) -> None: ...
