"""`aalis sessions`: looking changes nothing, changing is durable, and mistakes are one line."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.host.cli.conftest import Run, Terminal, contents, put, query, record

ROOM, OTHER, PEER = "onebot:10:group:700", "onebot:10:group:701", "onebot:10:private:42"


def listed(run: Run, db: Path, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("sessions", "list", "--db", db, "--json", *options).stdout)
    return found


def subtask(run: Run, db: Path) -> str:
    (found,) = [session["id"] for session in listed(run, db, "--kind", "task")]
    return str(found)


def test_list_as_json(run: Run, db: Path) -> None:
    """Every session with the documents' names, its label and its place."""
    sessions = {session["id"]: session for session in listed(run, db)}
    assert set(sessions) == {ROOM, OTHER, PEER, subtask(run, db)}
    room = sessions[ROOM]
    assert (room["kind"], room["originPlatform"]) == ("room", "onebot")
    assert room["originChat"] == {"type": "group", "multiParty": True, "targetId": "700", "selfId": "10"}
    assert sessions[PEER]["originChat"]["multiParty"] is False
    assert room["label"] == "厨房 👩‍🍳"
    assert room["place"] == {"kind": "window", "key": "onebot:group:700"}
    assert room["lastTurn"]["outcome"] == "replied"
    assert room["tokens"]["input"] > 0
    assert "tokens" not in sessions[OTHER]
    assert sessions[subtask(run, db)]["parentId"] == ROOM


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (("--kind", "room"), {ROOM, OTHER, PEER}),
        (("--status", "active", "--kind", "room"), {OTHER}),
        (("--platform", "telegram"), set()),
        (("--platform", "onebot", "--kind", "room"), {ROOM, OTHER, PEER}),
        (("--since", "1h", "--kind", "room"), {ROOM, OTHER, PEER}),
        (("--since", "2999-01-01"), set()),
    ],
)
def test_filters(run: Run, db: Path, options: tuple[str, ...], ids: set[str]) -> None:
    """Filters are conditions that all count."""
    assert {session["id"] for session in listed(run, db, *options)} == ids


def test_a_subtask_has_its_roots_platform(run: Run, db: Path) -> None:
    """The filter by platform finds a room's subtasks too."""
    assert subtask(run, db) in {session["id"] for session in listed(run, db, "--platform", "onebot")}


def test_table(run: Run, db: Path) -> None:
    """For another program a row is a line, nothing cut, coloured or taken as markup."""
    lines = run("sessions", "list", "--db", db).stdout.splitlines()
    assert lines[0].split() == ["session", "label", "kind", "place", "status", "last", "turn", "tokens", "age"]
    assert len(lines) == 5
    (room,) = [line for line in lines if line.startswith(ROOM)]
    assert "厨房 👩‍🍳" in room
    assert "completed" in room
    assert "replied" in room
    assert any("[red]other[/red]" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_nothing_to_list(run: Run, db: Path) -> None:
    """An empty listing is an empty list for a program, and words on standard error for a person."""
    result = run("sessions", "list", "--db", db, "--platform", "telegram")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing to show\n")
    assert run("sessions", "list", "--db", db, "--platform", "telegram", "--json").stdout.strip() == "[]"


def test_tree(run: Run, db: Path) -> None:
    """Subtasks stand below their session; one session's tree can be asked for."""
    lines = run("sessions", "tree", "--db", db).stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if ROOM in line)
    assert "count the eggs" in lines[at + 1]
    assert subtask(run, db) in lines[at + 1]
    (top,) = json.loads(run("sessions", "tree", ROOM, "--db", db, "--json").stdout)
    assert top["session"]["id"] == ROOM
    assert [below["session"]["name"] for below in top["below"]] == ["count the eggs"]
    assert len(json.loads(run("sessions", "tree", "--db", db, "--json").stdout)) == 3


def test_show(run: Run, db: Path) -> None:
    """All that is known of one session."""
    shown = run("sessions", "show", ROOM, "--db", db).stdout
    for words in (ROOM, "onebot group 700 (several people)", "served by", subtask(run, db), " in, "):
        assert words in shown
    assert json.loads(run("sessions", "show", ROOM, "--db", db, "--json").stdout)["id"] == ROOM


def test_create_title_delete(run: Run, db: Path) -> None:
    """A session is made, titled and deleted; each is there for the next command."""
    made = run("sessions", "create", "--name", "plans", "--db", db).stdout.strip()
    session = json.loads(run("sessions", "show", made, "--db", db, "--json").stdout)
    assert (session["name"], session["createdFrom"], session["kind"]) == ("plans", "cli", "owner")
    assert run("sessions", "title", made, "旅行 🧳", "--db", db).exit_code == 0
    assert json.loads(run("sessions", "show", made, "--db", db, "--json").stdout)["label"] == "旅行 🧳"
    assert run("sessions", "delete", made, "--db", db).stdout == f"deleted {made}, with 0 below it\n"
    assert run("sessions", "show", made, "--db", db).exit_code == 2


def test_delete_takes_all_below(run: Run, db: Path) -> None:
    """A session goes with its subtasks and messages; others stay."""
    child = subtask(run, db)
    assert run("sessions", "delete", ROOM, "--db", db).stdout == f"deleted {ROOM}, with 1 below it\n"
    assert {session["id"] for session in listed(run, db)} == {OTHER, PEER}
    assert query(db, f"SELECT count(*) FROM messages WHERE session_id IN ('{ROOM}', '{child}')") == [(0,)]
    assert query(db, f"SELECT count(*) FROM messages WHERE session_id = '{PEER}'") == [(2,)]


@pytest.mark.parametrize(
    ("language", "session_id", "question"),
    [
        ("en", ROOM, "Delete 厨房 👩‍🍳 (onebot:10:group:700), what is below it (1) and their messages? [y/N]"),
        ("en", OTHER, "Delete [red]other[/red] (onebot:10:group:701) and its messages? [y/N]"),
        ("zh_CN", OTHER, "要删除 [red]other[/red](onebot:10:group:701)及其全部消息吗? [y/N]"),
    ],
)
def test_delete_asks(
    db: Path, monkeypatch: pytest.MonkeyPatch, run: Run, language: str, session_id: str, question: str
) -> None:
    """On a terminal it is asked first, and what isn't there isn't spoken of."""
    monkeypatch.setenv("AALIS_LANGUAGE", language)
    terminal = Terminal("sessions", "delete", session_id, "--db", str(db))
    try:
        terminal.wait_for(question)
        terminal.type("n\r")
        assert terminal.process.wait(20) == 1
    finally:
        terminal.close()
    assert run("sessions", "show", session_id, "--db", db).exit_code == 0


def test_create_below(run: Run, db: Path) -> None:
    """A subtask is made below its parent; a parent that isn't there is a mistake."""
    made = json.loads(run("sessions", "create", "--parent", PEER, "--db", db, "--json").stdout)
    assert (made["kind"], made["parentId"]) == ("task", PEER)
    assert run("sessions", "create", "--parent", "nobody", "--db", db).stderr == "aalis: no session nobody\n"


def test_history(run: Run, db: Path) -> None:
    """The newest page first; each page's cursor gives the next, without a gap or a repetition."""
    texts: list[str] = []
    cursor: tuple[str, ...] = ()
    while True:
        page = json.loads(run("sessions", "history", ROOM, "--db", db, "--limit", "10", "--json", *cursor).stdout)
        texts = [message["content"] for message in page["messages"]] + texts
        if "olderCursor" not in page:
            break
        cursor = ("--cursor", page["olderCursor"])
    assert texts[:25] == [f"said {number}" for number in range(1, 26)]
    assert len(texts) == 27


def test_history_for_a_person(run: Run, db: Path) -> None:
    """Who said it, and how to get the next page, which is said on standard error."""
    result = run("sessions", "history", ROOM, "--db", db, "--limit", "3")
    assert "Mia\n  said 25\n" in result.stdout
    words, _, command = result.stderr.partition(": ")
    assert words == "24 older"
    aalis, *arguments = shlex.split(command)
    assert aalis == "aalis"
    assert "said 22" in run(*arguments).stdout
    assert run("sessions", "history", ROOM, "--db", db, "--since", "2999-01-01").stderr == "nothing to show\n"
    assert run("sessions", "history", ROOM, "--db", db, "--cursor", "x").exit_code == 2


def test_history_since(run: Run, db: Path) -> None:
    """What the help says: without a time the last ones, since a time the first ones of it; at most maxLimit."""

    def said(*options: str) -> list[str]:
        page = json.loads(run("sessions", "history", ROOM, "--db", db, "--json", *options).stdout)
        return [message["content"] for message in page["messages"]]

    everything = said("--limit", "100000")
    assert len(everything) == 27
    assert said("--limit", "3") == everything[-3:]
    assert said("--limit", "3", "--since", "1h") == everything[:3]
    assert said("--limit", "3", "--until", "2999-01-01") == everything[:3]
    Path("aalis.toml").write_text("[plugins.aalis-plugin-tool-session]\nmaxLimit = 5\ndefaultLimit = 2\n")
    assert (len(said("--limit", "100000")), len(said())) == (5, 2)
    words = " ".join(run("sessions", "history", "--help").stdout.split())
    assert "The last ones; with --since or --until the first ones of that time." in words
    assert "at most the session tools' maxLimit (100); else their defaultLimit (20)" in words


def test_export(run: Run, db: Path, tmp_path: Path) -> None:
    """One JSON value with the session, all its messages, and all below it."""
    value = json.loads(run("sessions", "export", ROOM, "--db", db).stdout)
    assert value["session"]["id"] == ROOM
    assert [message["content"] for message in value["messages"]][:2] == ["said 1", "said 2"]
    assert len(value["messages"]) == 27
    assert [below["session"]["name"] for below in value["below"]] == ["count the eggs"]
    assert value["below"][0]["messages"] == []
    run("sessions", "export", ROOM, "--db", db, "--output", "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == value


@pytest.mark.rule("TAKE-3", "TAKE-5", "TAKE-7")
@pytest.mark.parametrize(
    ("pair", "principal", "ok", "rules", "settings"),
    [
        ((ROOM, ROOM), None, True, ["TAKE-2"], None),
        ((PEER, ROOM), None, False, ["TAKE-5"], ["takeOtherGroups = true"]),
        ((ROOM, PEER), None, False, ["TAKE-5"], ["takeOtherPrivates = true"]),
        ((ROOM, PEER), "onebot:7", False, ["TAKE-5"], ["takeOtherPrivates = true"]),
        ((ROOM, PEER), "onebot:42", True, ["TAKE-4", "TAKE-5"], None),
        ((ROOM, "bare"), "onebot:42", False, ["TAKE-3"], None),
    ],
)
def test_can_take(
    run: Run,
    db: Path,
    pair: tuple[str, str],
    principal: str | None,
    ok: bool,
    rules: list[str],
    settings: list[str] | None,
) -> None:
    """Allowed or refused, by which rule, and which settings would change it; an answer is no error."""
    put(db, "bare", record("bare"))
    who = () if principal is None else ("--as", principal)
    result = run("sessions", "can-take", *pair, *who, "--db", db, "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (answer["ok"], answer["rules"], answer.get("settings")) == (ok, rules, settings)
    words = run("sessions", "can-take", *pair, *who, "--db", db).stdout
    assert words.startswith("allowed (" if ok else "refused (")
    assert all(setting in words for setting in settings or ())


@pytest.mark.rule("TAKE-2")
def test_can_take_in_one_tree(run: Run, db: Path) -> None:
    """A room and its subtask are one tree."""
    assert run("sessions", "can-take", ROOM, subtask(run, db), "--db", db).stdout == "allowed (TAKE-2)\n"


@pytest.mark.parametrize(
    "command",
    [
        ("sessions", "list"),
        ("sessions", "tree"),
        ("sessions", "show", ROOM),
        ("sessions", "history", ROOM),
        ("sessions", "export", ROOM),
        ("sessions", "can-take", ROOM, OTHER),
        ("sessions", "check"),
        ("tools",),
        ("tools", "call", "list_known_sessions", "--session", ROOM),
        ("tools", "call", "session_get_history", json.dumps({"session_id": ROOM}), "--session", ROOM),
        ("plugins",),
        ("config",),
        ("config", "check"),
    ],
)
def test_looking_changes_nothing(run: Run, db: Path, command: tuple[str, ...]) -> None:
    """What only looks leaves the file, byte for byte, and puts nothing beside it."""
    before = contents(db)
    assert run(*command, "--db", db).exit_code == 0
    assert contents(db) == before


@pytest.mark.rule("TURN-6")
def test_looking_closes_no_turn(run: Run, db: Path) -> None:
    """A turn that a crash cut off is closed by whoever runs next, never by somebody who only looks."""
    lease = {"turnId": "cut-off", "sessionId": OTHER, "source": None, "host": "gone", "expiresAt": 1}
    put(db, "cut-off", lease, namespace="turns")
    before = contents(db)
    for command in (("list",), ("show", OTHER), ("history", OTHER)):
        assert run("sessions", *command, "--db", db).exit_code == 0
    assert contents(db) == before
    assert run("sessions", "create", "--db", db).exit_code == 0
    (other,) = [session for session in listed(run, db) if session["id"] == OTHER]
    assert other["lastTurn"]["outcome"] == "aborted"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "--since", "tomorrow"), "--since: tomorrow is no time"),
        (("list", "--kind", "group"), "'group' is not one of"),
        (("show",), "Missing argument 'ID'"),
        (("show", "nobody"), "no session nobody"),
        (("tree", "nobody"), "no session nobody"),
        (("history", "nobody"), "no session nobody"),
        (("export", "nobody"), "no session nobody"),
        (("title", "nobody", "x"), "no session nobody"),
        (("delete", "nobody"), "no session nobody"),
        (("can-take", ROOM, OTHER, "--as", "mia"), "mia is no account"),
        (("frobnicate",), "No such command 'frobnicate'"),
        (("list", "--colour"), "No such option"),
    ],
)
def test_mistakes(run: Run, db: Path, arguments: tuple[str, ...], words: str) -> None:
    """A mistake is one clear line on standard error, exit status 2, nothing else."""
    options = () if arguments[0] in ("frobnicate", "show") and len(arguments) == 1 else ("--db", db)
    result = run("sessions", *arguments, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("aalis: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_database(run: Run, tmp_path: Path) -> None:
    """Looking into a database that isn't there is a mistake, and doesn't make one."""
    result = run("sessions", "list", "--db", "nope.db")
    assert result.exit_code == 2
    assert "nope.db" in result.stderr
    assert list(tmp_path.glob("nope*")) == []


def test_where_nobody_said_where(run: Run, tmp_path: Path) -> None:
    """Without a database named, one is made in the person's own folder; looking doesn't make it."""
    assert run("sessions", "list").exit_code == 2
    assert not (tmp_path / "XDG_DATA_HOME").exists()
    made = run("sessions", "create").stdout.strip()
    assert (tmp_path / "XDG_DATA_HOME" / "aalis" / "aalis.db").is_file()
    assert made in run("sessions", "list").stdout
    assert run("sessions", "create", "--db", "no/such/folder/x.db").exit_code == 2


def test_what_is_no_database(run: Run, tmp_path: Path) -> None:
    """A file of another kind is named, and stays as it is."""
    other = tmp_path / "notes.txt"
    other.write_text("dear diary\n" * 1000)
    for command in ("list", "create"):
        result = run("sessions", command, "--db", other)
        assert result.exit_code == 2
        assert "notes.txt" in result.stderr
        assert result.stderr.count("\n") == 1
    assert other.read_text() == "dear diary\n" * 1000


def test_an_address_that_cannot_be_read(run: Run) -> None:
    """One line, without the password."""
    for address in ("postgresql://[", "postgresql://me:geheim@["):
        result = run("sessions", "list", "--db", address)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert result.stderr.startswith("aalis: the database's URL can't be read")
        assert "geheim" not in result.stderr


def test_no_folder_for_the_database(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the person's own folder can't be made, that is said, with what to do."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    result = run("sessions", "create")
    words = f"aalis: {tmp_path}/file/aalis: Not a directory; say with --db where the database is to be\n"
    assert (result.exit_code, result.stderr) == (2, words)


def test_debug_shows_the_traceback(run: Run, db: Path) -> None:
    """Only when it is asked for."""
    result = run("sessions", "show", "nobody", "--db", db, "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "Traceback" not in run("sessions", "show", "nobody", "--db", db).stderr


@pytest.mark.rule("LABEL-2", "LABEL-3")
def test_in_the_readers_language(run: Run, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headings, labels and complaints are in the reader's language; JSON keeps its names."""
    run("sessions", "create", "--db", db)
    monkeypatch.setenv("AALIS_LANGUAGE", "zh_CN")
    shown = run("sessions", "list", "--db", db).stdout
    assert "会话" in shown
    assert "默认工作区" in shown
    assert run("sessions", "show", "nobody", "--db", db).stderr == "aalis: 没有会话 nobody\n"
    (made,) = listed(run, db, "--kind", "owner")
    assert made["label"].startswith("Session ")
