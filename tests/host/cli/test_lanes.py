"""Lanes keep the order in a lane, and bound what goes on at once."""

import asyncio
import random

import pytest

from aalis_host.cli.lanes import Lanes, LetNext

Item = tuple[str, int]


def nobody(_: Item) -> bool:
    return False


async def test_one_after_another_in_a_lane_and_lanes_side_by_side() -> None:
    """An item begins when the one before it in its lane has ended; another lane doesn't wait."""
    running: dict[str, int] = {}
    done: list[Item] = []
    most = 0

    async def work(item: Item, let_next: LetNext) -> None:
        nonlocal most
        lane, _ = item
        running[lane] = running.get(lane, 0) + 1
        assert running[lane] == 1
        most = max(most, sum(running.values()))
        await asyncio.sleep(0)
        running[lane] -= 1
        done.append(item)

    async with Lanes(work, nobody, at_once=2, waiting=50) as lanes:
        for number in range(30):
            for lane in "abc":
                await lanes.put(lane, (lane, number))
    for lane in "abc":
        assert [number for name, number in done if name == lane] == list(range(30))
    assert most == 2


async def test_the_next_may_begin_early() -> None:
    """Behind `let_next` the lane goes on while the item is still under way, in order of beginning."""
    begun: list[int] = []
    gate = asyncio.Event()

    async def work(item: Item, let_next: LetNext) -> None:
        begun.append(item[1])
        let_next()
        await gate.wait()

    async with Lanes(work, nobody, at_once=1, waiting=50) as lanes:
        for number in range(20):
            await lanes.put("a", ("a", number))
        while len(begun) < 20:
            await asyncio.sleep(0)
        gate.set()
    assert begun == list(range(20))


async def test_alone_waits_for_all_before_and_holds_all_behind() -> None:
    """An item that is alone sees the lane's earlier ones ended, and no later one begun."""
    events: list[str] = []

    async def work(item: Item, let_next: LetNext) -> None:
        events.append(f"begin {item[1]}")
        if item[1] != 3:
            let_next()
        await asyncio.sleep(random.random() / 100)
        events.append(f"end {item[1]}")

    async with Lanes(work, lambda item: item[1] == 3, at_once=5, waiting=50) as lanes:
        for number in range(7):
            await lanes.put("a", ("a", number))
    middle = events.index("begin 3")
    assert events[middle + 1] == "end 3"
    assert sorted(events[:middle]) == sorted(f"{what} {n}" for what in ("begin", "end") for n in range(3))
    assert sorted(events[middle + 2 :]) == sorted(f"{what} {n}" for what in ("begin", "end") for n in range(4, 7))


async def test_putting_waits_while_too_much_is_under_way() -> None:
    """No more than `waiting` items are held, begun or not."""
    gate = asyncio.Event()

    async def work(item: Item, let_next: LetNext) -> None:
        let_next()
        await gate.wait()

    async with Lanes(work, nobody, at_once=5, waiting=3) as lanes:
        for number in range(3):
            await lanes.put("a", ("a", number))
        fourth = asyncio.create_task(lanes.put("b", ("b", 3)))
        await asyncio.sleep(0.02)
        assert not fourth.done()
        gate.set()
        await fourth


async def test_an_error_ends_everything() -> None:
    """What the work raises reaches whoever fills the lanes; the other lanes are stopped."""
    stopped = asyncio.Event()

    async def work(item: Item, let_next: LetNext) -> None:
        if item[0] == "bad":
            raise LookupError("bad")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.RaisesGroup(LookupError):
        async with Lanes(work, nobody, at_once=5, waiting=9) as lanes:
            await lanes.put("a", ("a", 1))
            await asyncio.sleep(0)
            await lanes.put("bad", ("bad", 1))
    assert stopped.is_set()


async def test_lanes_come_and_go() -> None:
    """A lane that ran empty is begun anew, still behind what it has under way."""
    order: list[int] = []

    async def work(item: Item, let_next: LetNext) -> None:
        let_next()
        await asyncio.sleep(0.001 * (item[1] % 3))
        order.append(item[1])

    async with Lanes(work, lambda item: item[1] % 5 == 0, at_once=2, waiting=9) as lanes:
        for number in range(60):
            await lanes.put("a", ("a", number))
            if number % 7 == 0:
                await asyncio.sleep(0.004)
    for alone in range(0, 60, 5):
        assert set(range(alone)) <= set(order[: order.index(alone)])
