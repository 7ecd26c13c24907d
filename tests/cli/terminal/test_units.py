import pytest

from service.system import units


class TestNumber:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (1.23456, "1.23"),
            (0.00012345, "0.000123"),
            (12345.6, "12,346"),
            (999.6, "1,000"),
            (-1234.5, "-1,234"),
            (123456, "123,456"),
            (3.4e38, "3.4e+38"),
            (float("inf"), "inf"),
            ("nan", "nan"),
        ],
    )
    def test_digits_that_matter(self, value: object, shown: str) -> None:
        assert units.number(value) == shown


class TestClock:
    @pytest.mark.parametrize(
        ("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3675, "1:01:15")]
    )
    def test_minutes_and_hours(self, seconds: float, shown: str) -> None:
        assert units.clock(seconds) == shown


class TestSize:
    @pytest.mark.parametrize(
        ("count", "shown"),
        [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3.2 * 1024**3, "3.2 GiB")],
    )
    def test_units(self, count: float, shown: str) -> None:
        assert units.size(count) == shown


class TestDuration:
    @pytest.mark.parametrize(
        ("seconds", "shown", "brief"),
        [
            (0.2, "0 s", "0s"),
            (75, "1 min 15 s", "1m"),
            (7260, "2 h 1 min", "2h"),
            (90000, "1 d 1 h", "1d"),
        ],
    )
    def test_the_largest_units(self, seconds: float, shown: str, brief: str) -> None:
        assert (units.duration(seconds), units.brief(seconds)) == (shown, brief)
