"""Test how the fleet draws tasks by the weights of their families."""

from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

from stepstream.services.fleet.task_mix import TaskMix, family_of


def tasks(*families: str) -> Iterator[str]:
    return (f"{families[number % len(families)]}/{number}" for number in count())


def drawn(mix: TaskMix, *families: str) -> Counter[str]:
    return Counter(map(family_of, islice(mix.draw(tasks(*families)), 3000)))


def test_without_weights_every_task_is_kept() -> None:
    mix = TaskMix(1)
    assert list(islice(mix.draw(tasks("a", "b")), 300)) == list(islice(tasks("a", "b"), 300))
    assert not mix.has_collapsed


def test_families_are_drawn_by_weight_and_one_without_has_weight_1() -> None:
    mix = TaskMix(1)
    mix.set_weights({"middle": 4.0, "hard": 2.0})
    shares = drawn(mix, "easy", "middle", "hard")
    assert abs(shares["middle"] / shares["easy"] - 4) < 0.6
    assert abs(shares["hard"] / shares["easy"] - 2) < 0.4


def test_no_family_disappears_and_a_collapsed_mix_is_found() -> None:
    mix = TaskMix(1)
    mix.set_weights({"easy": 0.0})
    assert 90 < drawn(mix, "easy", "hard")["easy"] < 210
    assert mix.has_collapsed
    mix.set_weights({})
    drawn(mix, "easy", "hard")
    assert not mix.has_collapsed


def test_a_single_family_is_no_collapse() -> None:
    mix = TaskMix(1)
    drawn(mix, "only")
    assert not mix.has_collapsed


def test_the_family_is_the_id_without_its_last_part() -> None:
    assert [family_of(task) for task in ("sums/train/7", "web#3", "a:b", "plain")] == [
        "sums/train",
        "web",
        "a",
        "plain",
    ]
