"""Metadata: revisions, folds, changesets, generations, changes. On every back end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.memory import Changeset
from aalis_host.memory import Memory
from tests.host.memory.kit import HOUR, Clock, add, by_key, change, generation, put, text


async def test_a_record_is_stored_and_read(memory: Memory) -> None:
    """It comes back as it was given, with the revision that it was committed with."""
    data = {"z": 1, "a": {"ü": [None, True, 1.5, 2**63]}, "": ""}
    (outcome,) = await memory.commit_metadata([put("k", data)])
    (record,) = outcome.records
    assert (outcome.error, record.data) == (None, data)
    assert await memory.get_metadata("things", "k") == record
    assert await memory.get_metadata("things", "K") is None
    assert await memory.get_metadata("other", "k") is None
    assert list((await memory.get_metadata("things", "k") or record).data or {}) == ["z", "a", ""]


async def test_listing_in_slices(memory: Memory) -> None:
    """By key, in the order of code points, from behind a key; removed ones aren't listed."""
    keys = ["a", "B", "é", "10", "9", "_", "𝄞", "\ufffd"]
    await memory.commit_metadata([put(key, {"key": key}) for key in keys] + [put("gone", {})])
    await memory.commit_metadata([put("gone", None, fold=lambda _: None)])
    rows = await memory.list_metadata("things")
    assert [row.key for row in rows] == sorted(keys)
    first = await memory.list_metadata("things", limit=3)
    rest = await memory.list_metadata("things", after_key=first[-1].key)
    assert first + rest == rows
    assert await memory.list_metadata("nothing") == []


async def test_a_current_base_is_written_as_it_is(memory: Memory) -> None:
    """With the stored revision as its base the fold isn't needed."""
    (first,) = await memory.commit_metadata([put("k", {"n": 1})])
    (second,) = await memory.commit_metadata([put("k", {"n": 2}, base=first.records[0].revision)])
    assert second.error is None
    assert second.records[0].revision > first.records[0].revision


async def test_a_stale_base_is_folded_again(memory: Memory) -> None:
    """The fold gets the stored record, and the outcome tells what was committed."""
    await memory.commit_metadata([put("k", {"n": 1, "other": True})])
    (outcome,) = await memory.commit_metadata([put("k", {"n": 5}, base=0, fold=add(4))])
    assert outcome.records[0].data == {"n": 5, "other": True}
    (outcome,) = await memory.commit_metadata([put("new", {"n": 5}, base=77, fold=add(4))])
    assert outcome.records[0].data == {"n": 4}


async def test_changesets_of_one_commit_chain(memory: Memory) -> None:
    """The second sees the first's result, with a revision of its own."""
    outcomes = await memory.commit_metadata([put("k", {"n": 1}, fold=add()) for _ in range(50)])
    assert [outcome.records[0].data for outcome in outcomes] == [{"n": n} for n in range(1, 51)]
    revisions = [outcome.records[0].revision for outcome in outcomes]
    assert revisions == sorted(set(revisions))
    both = Changeset(changes=(change("k", {}, 0, add()), change("k", {}, 0, add())))
    (outcome,) = await memory.commit_metadata([both])
    assert [record.data for record in outcome.records] == [{"n": 51}, {"n": 52}]
    assert await memory.get_metadata("things", "k") == outcome.records[-1]


async def test_concurrent_callers_lose_nothing(memory: Memory, open_again: Callable[..., Memory]) -> None:
    """Two memories, many callers, one hot key."""
    async with open_again() as other:
        await asyncio.gather(
            *(each.commit_metadata([put("k", {"n": 1}, fold=add())]) for each in (memory, other) for _ in range(100))
        )
    assert by_key(await memory.list_metadata("things")) == {"k": {"n": 200}}


@pytest.mark.rule("STORE-3")
async def test_a_fold_that_raises_rejects_its_changeset_alone(memory: Memory) -> None:
    """All of its changes, and none of its neighbours; the error is the fold's own."""
    await memory.commit_metadata([put("k", {"n": 1})])
    complaint = ValueError("no")

    def refuse(_: Any) -> Any:
        raise complaint

    bad = Changeset(changes=(change("x", {}), change("k", {"n": 9}, 0, refuse)), generations={"s": 5})
    outcomes = await memory.commit_metadata([put("a", {"n": 1}), bad, put("b", {"n": 1}), put("k", {}, 0, add())])
    assert [outcome.error for outcome in outcomes] == [None, complaint, None, None]
    assert by_key(await memory.list_metadata("things")) == {"a": {"n": 1}, "b": {"n": 1}, "k": {"n": 2}}
    assert await memory.generations() == {}


@pytest.mark.rule("STORE-3")
@pytest.mark.parametrize("value", [object(), {1: 2}, 2**70, "\ud800"])
async def test_a_value_that_isnt_json_rejects_its_changeset_alone(memory: Memory, value: Any) -> None:
    """Its neighbours are stored."""
    outcomes = await memory.commit_metadata([put("a", {}), put("k", {"v": value}), put("b", {})])
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert set(by_key(await memory.list_metadata("things"))) == {"a", "b"}


@pytest.mark.rule("STORE-3")
async def test_what_the_database_refuses_rejects_its_changeset_alone(memory: Memory) -> None:
    """A key that no database takes is a StorageError; what shared its transaction is stored."""
    one, refused, saved, two = await asyncio.gather(
        memory.commit_metadata([put("a", {"n": 1}, fold=add()), put("\ud800", {}), put("b", {})]),
        memory.commit_metadata([put("\ud800", {})]),
        memory.save_message("s", text()),
        memory.commit_metadata([put("a", {"n": 1}, fold=add())]),
    )
    assert [type(outcome.error) for outcome in one] == [type(None), StorageError, type(None)]
    assert [type(outcome.error) for outcome in refused] == [StorageError]
    assert saved.status == "saved"
    assert two[0].error is None
    assert by_key(await memory.list_metadata("things")) == {"a": {"n": 2}, "b": {}}
    page = await memory.history("s", 5)
    assert (len(page.messages), page.older) == (1, 0)


async def test_removing(memory: Memory) -> None:
    """A record can be removed, by data or by fold, and made again on base 0; removing nothing is no change."""
    (made,) = await memory.commit_metadata([put("k", {"n": 1})])
    (removed,) = await memory.commit_metadata([put("k", None, base=made.records[0].revision)])
    assert (removed.error, removed.records[0].data) == (None, None)
    assert await memory.get_metadata("things", "k") is None
    (again,) = await memory.commit_metadata([put("k", {"n": 2})])
    assert again.error is None
    assert again.records[0].revision > removed.records[0].revision
    await memory.commit_metadata([put("k", {"n": 9}, base=5, fold=lambda _: None)])
    assert await memory.list_metadata("things") == []
    before = (await memory.changes(0)).revision
    (nothing,) = await memory.commit_metadata([put("never", None)])
    assert (nothing.error, (await memory.changes(0)).revision) == (None, before)


@pytest.mark.rule("GEN-1", "GEN-5")
async def test_generations_only_rise(memory: Memory) -> None:
    """To the higher of the given number and one more than stored; the outcome tells."""
    raised = [(await memory.commit_metadata([generation("s", number)]))[0].generations for number in (1, 7, 2)]
    assert raised == [{"s": 1}, {"s": 7}, {"s": 8}]
    outcomes = await memory.commit_metadata([Changeset(changes=(), generations={"s": 9, "t": 1}) for _ in range(2)])
    assert [outcome.generations for outcome in outcomes] == [{"s": 9, "t": 1}, {"s": 10, "t": 2}]
    assert await memory.generations() == {"s": 10, "t": 2}


async def test_changes_since_a_revision(memory: Memory) -> None:
    """In the order of revisions, with removals and generations; nothing at or below the given one."""
    await memory.commit_metadata([put("a", {"n": 1}), put("b", {"n": 1}), put("c", {"n": 1})])
    start = await memory.changes(0)
    assert [row.key for row in start.rows] == ["a", "b", "c"]
    assert start.complete
    assert start.revision == start.rows[-1].revision
    await memory.commit_metadata([put("c", {}, 0, add()), put("a", None, 0, lambda _: None)])
    await memory.commit_metadata([Changeset(changes=(change("d", {}),), generations={"a": 1})])
    news = await memory.changes(start.revision)
    assert [(row.key, row.data) for row in news.rows] == [("c", {"n": 2}), ("a", None), ("d", {})]
    assert news.generations == {"a": 1}
    assert (await memory.changes(news.revision)).rows == ()
    assert (await memory.changes(news.revision)).generations == {}


async def test_removals_are_forgotten_after_a_day(memory: Memory, clock: Clock) -> None:
    """Whoever was cut off longer is told to reload; whoever wasn't gets a complete answer."""
    (made,) = await memory.commit_metadata([put("a", {})])
    await memory.commit_metadata([put("a", None, 0, lambda _: None)])
    clock.now += 25 * HOUR
    assert (await memory.changes(made.records[0].revision)).complete
    await memory.commit_metadata([put("b", {})])
    known = (await memory.commit_metadata([put("b", None, 0, lambda _: None)]))[0].records[0].revision
    assert not (await memory.changes(made.records[0].revision)).complete
    assert (await memory.changes(known - 1)).complete
    assert [row.key for row in (await memory.changes(known - 1)).rows] == ["b"]


async def test_a_revision_from_the_future_means_reload(memory: Memory) -> None:
    """A database that was put back to an older copy can't tell what changed."""
    assert not (await memory.changes(10)).complete


async def test_waiting_for_changes(memory: Memory, open_again: Callable[..., Memory]) -> None:
    """Own commits and another's wake the waiter; without any it waits its time and says so."""
    assert not await memory.wait_for_changes(0, 0.01)
    waiting = asyncio.create_task(memory.wait_for_changes(0, 10))
    await asyncio.sleep(0.01)
    await memory.commit_metadata([put("a", {})])
    assert await asyncio.wait_for(waiting, 5)
    known = (await memory.changes(0)).revision
    assert await memory.wait_for_changes(known - 1, 0)
    async with open_again() as other:
        waiting = asyncio.create_task(memory.wait_for_changes(known, 10))
        await asyncio.sleep(0.01)
        await other.commit_metadata([put("b", {})])
        assert await asyncio.wait_for(waiting, 5)


async def test_one_memory_sees_the_others_commits(memory: Memory, open_again: Callable[..., Memory]) -> None:
    """At once, after the commit has returned, for reading and as the base of a change."""
    async with open_again() as other:
        (made,) = await other.commit_metadata([put("k", {"n": 1})])
        assert await memory.get_metadata("things", "k") == made.records[0]
        (changed,) = await memory.commit_metadata([put("k", {"n": 2}, base=made.records[0].revision)])
        assert changed.error is None


@pytest.mark.rule("STORE-3")
async def test_a_cancelled_caller_loses_only_its_waiting(memory: Memory) -> None:
    """What was queued is stored."""
    task = asyncio.create_task(memory.commit_metadata([put("k", {"n": 1})]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await memory.commit_metadata([put("after", {})])
    assert (await memory.get_metadata("things", "k")) is not None


async def test_a_closed_memory_refuses(open_again: Callable[..., Memory]) -> None:
    """Closing stores what is queued; afterwards every call is a StorageError."""
    memory = open_again()
    await memory.open()
    waiting = [asyncio.create_task(memory.commit_metadata([put(str(n), {})])) for n in range(20)]
    await asyncio.sleep(0)
    await memory.close()
    assert [(await task)[0].error for task in waiting] == [None] * 20
    with pytest.raises(StorageError):
        await memory.commit_metadata([put("k", {})])
    with pytest.raises(StorageError):
        await memory.get_metadata("things", "k")
    async with open_again() as again:
        assert len(await again.list_metadata("things")) == 20
