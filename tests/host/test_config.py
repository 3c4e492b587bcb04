"""The configuration: strict, nearest source first, and mistakes in one line."""

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
    for name in ("AALIS_CONFIG", "AALIS_DB", "AALIS_MODEL_KIND"):
        monkeypatch.delenv(name, raising=False)


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
        ("[model]\nretries = -1", "model.retries: 'retries' must be >= 0: -1"),
        ("[agent]\nhistory_messages = 0", "agent.history_messages: 'history_messages' must be >= 1: 0"),
        ('[model]\nbase_url = "localhost"', "model.base_url: must begin with http:// or https://, not 'localhost'"),
        ('db = ""', "db: Length of 'db' must be >= 1: 0"),
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
