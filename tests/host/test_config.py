"""The configuration: strict, nearest source first, and mistakes in one line."""

import os
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from aalis_api_session_manager.errors import ConfigError
from aalis_host.config import Settings, load_settings, plugin_rows, read_settings, setting_rows


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no variable of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in [name for name in os.environ if name.startswith("AALIS_")]:
        monkeypatch.delenv(name)


NO_DATABASE = (
    "",
    " ",
    ":memory:",
    "sqlite:///x.db",
    "mysql://me:geheim@host/x",
    "file:x.db?mode=ro",
    "postgresql:day",
    "postgres:/day",
    "day:1",
)


def written(folder: Path, text: str, name: str = "aalis.toml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def mistake(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(file))
    return text.removeprefix(f"{file}: ")


def test_defaults() -> None:
    """Without a file and variables everything has its default."""
    loaded = read_settings()
    assert loaded.file is None
    assert loaded.settings == Settings()
    assert loaded.settings.model.kind == "offline"
    assert loaded.settings.trigger == "mentioned"
    assert loaded.settings.authority.owners == ("cli:owner",)
    assert loaded.settings.db.endswith("aalis.db")
    assert {row.source for row in setting_rows(loaded)} == {"default"}


def test_a_whole_file(tmp_path: Path) -> None:
    """Sections, a float written as an integer, a list, and the plugins' own tables as they stand."""
    file = written(
        tmp_path,
        """
        db = "rooms.db"
        language = "zh_CN"
        trigger = "always"
        [model]
        kind = "openai"
        name = "qwen"
        base_url = "http://localhost:8000/v1"
        stream = false
        temperature = 1
        [agent]
        history_messages = 5
        [authority]
        owners = ["cli:owner", "onebot:10001"]
        [plugins.aalis-plugin-tool-session]
        maxLimit = 50
        """,
    )
    settings = load_settings(file)
    assert settings.db == str(tmp_path / "rooms.db")
    assert (settings.language, settings.trigger) == ("zh_CN", "always")
    assert (settings.model.kind, settings.model.stream, settings.model.temperature) == ("openai", False, 1.0)
    assert type(settings.model.temperature) is float
    assert settings.agent.history_messages == 5
    assert settings.authority.owners == ("cli:owner", "onebot:10001")
    assert settings.plugins == {"aalis-plugin-tool-session": {"maxLimit": 50}}


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line over environment over file over default; a password isn't shown."""
    file = written(tmp_path, 'db = "postgresql://me:secret@host/db"\n[model]\nname = "file"\nretries = 4\ntimeout = 9')
    monkeypatch.setenv("AALIS_MODEL_NAME", "environment")
    monkeypatch.setenv("AALIS_MODEL_RETRIES", "5")
    monkeypatch.setenv("AALIS_MODEL_STREAM", "false")
    monkeypatch.setenv("AALIS_AUTHORITY_OWNERS", "cli:owner, onebot:1")
    loaded = read_settings(file, {"model.name": "command line", "language": None})
    rows = {row.key: (row.value, row.source) for row in setting_rows(loaded)}
    assert rows["model.name"] == ("command line", "command line")
    assert rows["model.retries"] == (5, "environment")
    assert rows["model.stream"] == (False, "environment")
    assert rows["authority.owners"] == (("cli:owner", "onebot:1"), "environment")
    assert rows["model.timeout"] == (9.0, "file")
    assert rows["language"] == ("", "default")
    assert rows["db"] == ("postgresql://me:***@host/db", "file")
    assert loaded.settings.db == "postgresql://me:secret@host/db"
    assert all(row.help for row in setting_rows(loaded))


@pytest.mark.parametrize(
    ("db", "shown"),
    [
        ("postgresql://me:p@ss/w?rd@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql:///db?host=/run/pg&password=secret&user=me", "postgresql:///db?host=/run/pg&password=***&user=me"),
        ("rooms.db", "rooms.db"),
    ],
)
def test_passwords_are_not_shown(db: str, shown: str) -> None:
    """Wherever an address holds one."""
    (row,) = [row for row in setting_rows(read_settings(overrides={"db": db})) if row.key == "db"]
    assert row.value == shown


def test_the_persons_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is read in a file and in a variable."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert load_settings(written(tmp_path, 'db = "~/x.db"')).db == str(tmp_path / "me" / "x.db")
    monkeypatch.setenv("AALIS_DB", "~/y.db")
    assert load_settings().db == str(tmp_path / "me" / "y.db")


def test_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is named, else AALIS_CONFIG's, else the current folder's, else the person's."""
    person = written(tmp_path / "config" / "aalis", 'language = "de"')
    assert read_settings().file == person
    written(tmp_path, 'language = "fr"')
    assert load_settings().language == "fr"
    named = written(tmp_path, 'language = "it"', "other.toml")
    monkeypatch.setenv("AALIS_CONFIG", str(named))
    assert load_settings().language == "it"
    assert load_settings(written(tmp_path, 'language = "es"', "third.toml")).language == "es"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[model]\nkinds = "openai"', "model.kinds: no such setting; did you mean 'model.kind'?"),
        ('databse = "x"\nkind = "openai"', "databse: no such setting"),
        ('kind = "openai"', "kind: no such setting; did you mean 'model.kind'?"),
        ('[modle]\nkind = "openai"', "modle: no such setting; did you mean 'model'?"),
        ("[plugin.x]\ny = 1", "plugin: no such setting; did you mean 'plugins'?"),
        ('[model]\nkind = "openia"', "model.kind: must be 'offline' or 'openai', not 'openia'"),
        ('[model]\nretries = "2"', "model.retries: must be a whole number, not '2'"),
        ("[model]\nretries = 2.0", "model.retries: must be a whole number, not 2.0"),
        ("[model]\nretries = true", "model.retries: must be a whole number, not True"),
        ('[model]\nstream = "false"', "model.stream: must be true or false, not 'false'"),
        ("[model]\ntemperature = true", "model.temperature: must be a number, not True"),
        ("db = 3", "db: must be text, not 3"),
        ('[authority]\nowners = "cli:owner"', "authority.owners: must be a list of text, not 'cli:owner'"),
        ("[authority]\nowners = [1]", "authority.owners: must be a list of text, not [1]"),
        (
            '[authority]\nowners = ["owner"]',
            "authority.owners: must be platform:user, such as onebot:10001, not 'owner'",
        ),
        ("[model]\nretries = -1", "model.retries: must be at least 0, not -1"),
        ("[agent]\nhistory_messages = 0", "agent.history_messages: must be at least 1, not 0"),
        ('[model]\nbase_url = "localhost"', "model.base_url: must begin with http:// or https://, not 'localhost'"),
        ("[model]\ntimeout = 0", "model.timeout: must be above 0, not 0"),
        ("[model]\ntimeout = nan", "model.timeout: must be above 0, not nan"),
        ("[model]\ntemperature = -0.5", "model.temperature: must be at least 0, not -0.5"),
        *(
            (f'db = "{db}"', "db: must be the path of a file (./name where the name has a colon), or an address")
            for db in NO_DATABASE
        ),
        ("model = 3", "model must be a table: [model]"),
        ("plugins = 3", "plugins must hold tables, such as [plugins.aalis-plugin-session-manager]"),
        ("[plugins]\nx = 3", "plugins.x must be a table: [plugins.x]"),
        ("db = ", "Invalid value (at "),
    ],
)
def test_mistakes(tmp_path: Path, text: str, expected: str) -> None:
    """One line: the file, the key's path, what is wrong, and what is allowed or near."""
    assert mistake(written(tmp_path, text)).startswith(expected)


def test_no_near_name(tmp_path: Path) -> None:
    """A name that is like none lists those that exist."""
    assert "there are agent, agent.history_messages" in mistake(written(tmp_path, "zzzz = 1"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder and one that isn't UTF-8 are mistakes that name the file."""
    assert mistake(tmp_path / "nothing.toml") == "No such file or directory"
    assert mistake(tmp_path) == "Is a directory"
    file = tmp_path / "latin.toml"
    file.write_bytes(b'db = "\xff"')
    assert "utf-8" in mistake(file)


def test_mistakes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable and an option are named as they were given."""
    with pytest.raises(ConfigError, match=r"^command line: trigger: must be 'mentioned' or 'always' or 'never'"):
        load_settings(None, {"trigger": "sometimes"})
    monkeypatch.setenv("AALIS_MODEL_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"^environment: AALIS_MODEL_TIMEOUT: must be a number, not 'soon'"):
        load_settings(None)


@pytest.mark.parametrize(
    ("written", "owners"),
    [
        ("cli:owner, onebot:1", ("cli:owner", "onebot:1")),
        ('["cli:owner", "onebot:1"]', ("cli:owner", "onebot:1")),
        (' ["matrix:@a,b:c.d"]', ("matrix:@a,b:c.d",)),
        ("[]", ()),
        ("", ()),
    ],
)
def test_a_list_in_a_variable(monkeypatch: pytest.MonkeyPatch, written: str, owners: tuple[str, ...]) -> None:
    """With commas, or as JSON, as it is shown."""
    monkeypatch.setenv("AALIS_AUTHORITY_OWNERS", written)
    assert load_settings().authority.owners == owners


@pytest.mark.parametrize("written", ['["cli:owner"', "[1]", '["owner"]'])
def test_no_list_in_a_variable(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """What is neither is refused."""
    monkeypatch.setenv("AALIS_AUTHORITY_OWNERS", written)
    with pytest.raises(ConfigError, match=r"^environment: AALIS_AUTHORITY_OWNERS: must be "):
        load_settings()


def test_an_unknown_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped variable is a mistake, as a mistyped key is; those that are no settings are left alone."""
    monkeypatch.setenv("AALIS_CONFIG", "")
    assert load_settings() == Settings()
    monkeypatch.setenv("AALIS_MODLE_KIND", "foo")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value) == ("environment: AALIS_MODLE_KIND: no such setting; did you mean 'AALIS_MODEL_KIND'?")


@pytest.mark.parametrize(
    "db", ["day.db", "./day:1.db", "a folder/day:1", "/x/y:z", "C:x", "postgresql:///day", "postgres://h/d"]
)
def test_databases(tmp_path: Path, db: str) -> None:
    """A path or an address of PostgreSQL; a path with a colon stays one."""
    there = db if "://" in db else str(tmp_path / db)
    assert load_settings(written(tmp_path, f'db = "{db}"')).db == there
    assert load_settings(overrides={"db": db}).db.removeprefix("./") == db.removeprefix("./")
    assert Settings(db=load_settings(overrides={"db": db}).db)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """A file that an editor on Windows wrote is read."""
    (tmp_path / "aalis.toml").write_bytes(b'\xef\xbb\xbflanguage = "de"\r\n')
    assert load_settings().language == "de"


def test_plugin_rows(tmp_path: Path) -> None:
    """A plugin's settings are listed from the class that its meta names, under the documents' names."""

    @frozen(kw_only=True)
    class Config:
        max_limit: int = field(default=100, metadata={"help": "the most"})
        names: tuple[Any, ...] = field(factory=tuple)

    loaded = read_settings(written(tmp_path, "[plugins.a-plugin]\nmaxLimit = 7"))
    rows = [(row.key, row.value, row.default, row.source, row.help) for row in plugin_rows("a-plugin", Config, loaded)]
    assert rows == [
        ("plugins.a-plugin.maxLimit", 7, 100, "file", "the most"),
        ("plugins.a-plugin.names", (), (), "default", ""),
    ]
    assert plugin_rows("a-plugin", None, loaded) == []
