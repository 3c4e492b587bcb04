"""The two forms of a OneBot v11 message become one text."""

import pytest

from aalis_host.platforms.segments import read_message


def segment(kind: str, **data: object) -> dict[str, object]:
    return {"type": kind, "data": data}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([segment("text", text="a&amp;b [x]")], "a&amp;b [x]"),
        ("a&amp;b &#91;x&#93;, c", "a&b [x], c"),
        ("&amp;#91;", "&#91;"),
        ("one[CQ:image,file=a.jpg]two", "one[image]two"),
        ([segment("image", summary="[动画表情]", file="a.jpg")], "[image 动画表情]"),
        ("[CQ:face,id=178]", "[face 178]"),
        ("[CQ:record,file=x]", "[voice]"),
        ([segment("file", file="report.pdf")], "[file report.pdf]"),
        ([segment("share", title="A\nB", url="u")], "[link A B]"),
        ("[CQ:reply,id=-17]yes", "[reply -17]yes"),
        ([segment("reply", id=5), segment("text", text="yes")], "[reply 5]yes"),
        ([segment("forward", id="1")], "[forwarded messages]"),
        ([segment("something-new")], "[something-new]"),
        ([{"type": "shake"}, {"type": "rps", "data": None}], "[shake][rps]"),
        ([segment("text")], ""),
        ([], ""),
        ("", ""),
    ],
)
def test_text(message: object, text: str) -> None:
    """Text stays text; codes are unescaped; everything else is a short mark."""
    assert read_message(message).text == text


@pytest.mark.parametrize(
    ("message", "text", "mentions"),
    [
        ("[CQ:at,qq=42] hi", "@42 hi", {"42"}),
        ("[CQ:at,qq=42,name=Zoë&#44; A&amp;B] hi", "@Zoë, A&B hi", {"42"}),
        ([segment("at", qq=42), segment("at", qq="7", name="Mia")], "@42@Mia", {"42", "7"}),
        ("[CQ:at,qq=all] all of you", "@all all of you", set()),
        ("&#91;CQ:at,qq=42&#93;", "[CQ:at,qq=42]", set()),
        ("[CQ:at,qq=42", "[CQ:at,qq=42", set()),
        ("[CQ:at qq=42] [CQ:] []", "[CQ:at qq=42] [CQ:] []", set()),
    ],
)
def test_mentions(message: object, text: str, mentions: set[str]) -> None:
    """Only a real `at` mentions somebody: not everybody, not an escaped code, not half a code."""
    read = read_message(message)
    assert (read.text, read.mentions) == (text, mentions)


def test_a_code_holds_equal_signs_and_long_values() -> None:
    """Addresses and base64 stand in codes as they are."""
    payload = "base64://" + "QUJD" * 100_000 + "=="
    assert read_message(f"[CQ:image,file={payload},url=https://x/?a=b&amp;c=d]ok").text == "[image]ok"


def test_a_long_detail_is_cut() -> None:
    """A mark stays short whatever the title."""
    assert read_message([segment("share", title="t" * 5000)]).text == "[link " + "t" * 60 + "]"


@pytest.mark.parametrize(
    "message", [None, 7, {"type": "text"}, ["text"], [{"data": {}}], [{"type": 1}], [segment("text"), []]]
)
def test_no_message(message: object) -> None:
    """What has neither form is refused, in words."""
    with pytest.raises(ValueError, match="message"):
        read_message(message)
