"""How long it takes is decided by what was typed."""

from minillm.compare.plan import Options
from minillm.compare.schedule import make_schedule


def test_windows_have_ten_steps_and_a_second_at_least() -> None:
    assert make_schedule(Options(), [1000, 3000], 10, True).steps == 10
    assert make_schedule(Options(), [50, 20], 10, True).steps == 50


def test_without_a_wish_there_are_six_rounds() -> None:
    schedule = make_schedule(Options(), [100, 200], 10, True)
    assert (schedule.rounds, schedule.sweeps) == (6, 2)
    assert schedule.seconds == 6 * (10 + 3 * 0.3 + 2 * 10 * 0.3)


def test_minutes_buy_rounds_and_never_fewer_than_four() -> None:
    in_ten = make_schedule(Options(minutes=10), [100, 200], 10, True)
    assert in_ten.sweeps == 2 and 0.9 * 600 < in_ten.seconds <= 600
    assert make_schedule(Options(minutes=0.1), [100, 200], 10, True).rounds == 4


def test_with_the_rounds_given_minutes_buy_windows() -> None:
    schedule = make_schedule(Options(minutes=10, rounds=5), [100, 200], 10, True)
    assert schedule.rounds == 5 and schedule.sweeps % 2 == 0
    assert 0.9 * 600 < schedule.seconds <= 600


def test_processes_that_alternate_start_for_every_window() -> None:
    alone = make_schedule(Options(), [100, 200], 10, False)
    assert alone.seconds == 6 * 2 * (10 + 3 * 0.3 + 10 * 0.3)
