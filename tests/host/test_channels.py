"""One turn at a time per session and source, first come first served; a hold keeps all back."""

import asyncio

import pytest

from aalis_host.channels import Channels


class Bench:
    """Turns that write down when they begin, and end when they are told."""

    def __init__(self) -> None:
        self.channels = Channels()
        self.begun: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    def turn(self, name: str, session: str = "s", source: str | None = None) -> asyncio.Task[None]:
        self.go[name] = asyncio.Event()

        async def run() -> None:
            async with self.channels.turn(session, source):
                self.begun.append(name)
                await self.go[name].wait()

        return asyncio.create_task(run())

    async def end(self, name: str) -> None:
        self.go[name].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    """One at a time in a channel; other sources and sessions don't wait."""
    bench = Bench()
    tasks = [bench.turn("a"), bench.turn("b"), bench.turn("c"), bench.turn("x", source="other"), bench.turn("y", "t")]
    await settle()
    assert bench.begun == ["a", "x", "y"]
    await bench.end("a")
    await bench.end("c")
    assert bench.begun == ["a", "x", "y", "b"]
    await bench.end("b")
    assert bench.begun[-1] == "c"
    for name in "xy":
        await bench.end(name)
    await asyncio.gather(*tasks)
    assert len(bench.channels) == 0


async def test_giving_up() -> None:
    """One that is cancelled while it waits leaves the queue; one cancelled in the moment of its turn hands it on."""
    bench = Bench()
    tasks = [bench.turn(name) for name in "abcd"]
    await settle()
    tasks[1].cancel()
    await settle()
    bench.go["a"].set()
    await asyncio.sleep(0)
    tasks[2].cancel()
    await settle()
    assert bench.begun in (["a", "d"], ["a", "c", "d"])
    await bench.end("d")
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in done[1:3]] == [asyncio.CancelledError] * 2
    assert len(bench.channels) == 0


async def test_hold() -> None:
    """While a session is held nothing of it begins, whatever its source; then all go, in order. Holds nest."""
    bench = Bench()
    running = bench.turn("running")
    await settle()
    async with bench.channels.hold("s"):
        async with bench.channels.hold("s"):
            tasks = [bench.turn("a"), bench.turn("b"), bench.turn("x", source="other"), bench.turn("y", "t")]
            await settle()
            assert bench.begun == ["running", "y"]
            await bench.end("running")
        await settle()
        assert bench.begun == ["running", "y"]
    await settle()
    assert bench.begun == ["running", "y", "a", "x"]
    for name in "ayxb":
        await bench.end(name)
    await asyncio.gather(running, *tasks)
    assert len(bench.channels) == 0


async def test_a_failing_turn_frees_its_channel() -> None:
    """An error ends the turn like anything else."""
    channels = Channels()
    with pytest.raises(ValueError, match="broken"):
        async with channels.turn("s", None):
            raise ValueError("broken")
    assert len(channels) == 0


async def test_many_sessions_leave_nothing() -> None:
    """Channels of 1,000 sessions with three sources each are gone when they are idle."""
    bench = Bench()
    tasks = [bench.turn(f"{i}-{j}", str(i), str(j)) for i in range(1000) for j in range(3)]
    await settle()
    assert len(bench.channels) == 1000
    for event in bench.go.values():
        event.set()
    await asyncio.gather(*tasks)
    assert len(bench.channels) == 0
