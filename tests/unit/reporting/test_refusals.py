"""A refusal counts when it is one for what was sent."""

import msgspec
import pytest

from chiasm.reporting.refusals import try_refusals

GOOD = {
    "not-m": "model_not_found",
    "word word": "context_length_exceeded",
    "169.254": "media_refused",
    "file:": "media_refused",
    "data:image": "media_too_large",
}


class Server:
    """Answers each request with the code of the first of its texts that occurs in it; with 200 where there is none."""

    def __init__(self, **codes):
        self.codes = GOOD | codes

    async def send(self, method, path, body):
        text = msgspec.json.encode(body).decode()
        code = next((code for part, code in self.codes.items() if part in text), None)
        if code is None:
            return 200, b"{}"
        return 400, msgspec.json.encode({"error": {"code": code, "message": "no"}})


async def tried(**codes):
    found = await try_refusals(Server(**codes), "m", takes_images=True, max_tokens=8)
    return {one.sent: one for one in found}


async def test_what_is_refused_for_what_it_is_keeps_its_code():
    codes = {sent: one.code for sent, one in (await tried()).items()}
    assert codes["a picture in a file of the server"] == codes["a picture at an address of the machine's own network"]
    assert codes["a picture whose header claims 30,000 x 30,000 pixels"] == "media_too_large"
    assert codes["another model's name"] == "model_not_found"


@pytest.mark.parametrize(
    ("part", "code"),
    [("file:", "media_unsupported"), ("169.254", "media_fetch_failed"), ("169.254", "overloaded"), ("not-m", None)],
)
async def test_a_file_that_was_read_and_an_address_that_was_tried_are_not_refused(part, code):
    found = await tried(**{part: code})
    assert [one.sent for one in found.values() if one.code is None and part in _SENT[one.sent]]
    assert all(code in one.message for one in found.values() if code and part in _SENT[one.sent])


_SENT = {
    "another model's name": "not-m",
    "a prompt longer than the model takes": "word word",
    "a picture at an address of the machine's own network": "169.254",
    "a picture in a file of the server": "file:",
    "a picture that is broken": "data:image",
    "a picture whose header claims 30,000 x 30,000 pixels": "data:image",
}
