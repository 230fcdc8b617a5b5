"""Large data URLs in a processor's data: cut out of the body before it is parsed, where the processor allows it."""

import base64
import json

import pytest

from chiasm.errors import InvalidRequestError
from chiasm.gateway.exchange.payloads import MIN_CUT_BYTES, CutBody
from chiasm.gateway.pooling.tasks import PoolingDialect
from chiasm.media.data_url import decode_payload
from chiasm.media.reference import MediaReference
from chiasm.pooling.io.base import IOProcessor, ProcessorWork
from chiasm.protocol.pooling.fields import Heading
from chiasm.protocol.pooling.work import PoolingInfo

INFO = PoolingInfo(tasks=("embed",), max_tokens=8, takes_images=True)
PICTURES = [bytes([number]) * MIN_CUT_BYTES for number in (1, 2)]
URLS = ["data:image/png;base64," + base64.b64encode(picture).decode() for picture in PICTURES]
HEADING = Heading(id="", created=0, model="", dtype="", usage=None, truncated=(), receipt=None)


class Seer(IOProcessor):
    """Takes {"pictures": [...], "text": ...} and answers with how long the longest string was that it saw."""

    name = "seer"
    passes_urls_on = True

    def parse(self, data):
        if not data["pictures"]:
            raise InvalidRequestError("No picture", param="/data/pictures")
        return data

    def media(self, request):
        return [MediaReference("image", url, f"/data/pictures/{n}") for n, url in enumerate(request["pictures"])]

    def pre(self, request, context):
        context.state = max(map(len, [*request["pictures"], request.get("text", "")]))
        return ProcessorWork("embed", ())

    def post(self, outputs, context):
        return context.state


class Curious(Seer):
    """As a processor that has not said what it does with URLs."""

    passes_urls_on = False


class Services:
    """Notes what is collected."""

    request_id = "r"
    collected = ()

    async def collect_each(self, references):
        self.collected = references
        return [object()] * len(references)

    async def pool(self, task, inputs, params):
        return type("Response", (), {"outputs": ()})


def called(processor, data):
    """As the endpoint does it: (whether the payloads stayed out, the call)."""
    body = json.dumps({"task": "plugin", "data": data}).encode()
    dialect, cut = PoolingDialect({processor.name: processor}), CutBody(body)
    assert cut.num_cuts
    call = dialect.call(cut.rest, INFO)
    references = cut.restored(call.references)
    return (False, dialect.call(body, INFO)) if references is None else (True, call.restored(references))


def payloads(references):
    return [one.payload and decode_payload(one.payload, 10 * MIN_CUT_BYTES) for one in references]


async def answer(call, services):
    return (await call.run(services))(HEADING).data


async def test_payloads_stay_out_of_the_data():
    is_cut, call = called(Seer(INFO), {"pictures": [*URLS, URLS[0]]})
    services = Services()
    assert is_cut
    assert await answer(call, services) < 100
    assert payloads(services.collected) == [*PICTURES, PICTURES[0]]
    assert [one.param for one in services.collected] == [f"/data/pictures/{n}" for n in range(3)]


@pytest.mark.parametrize(
    ("processor", "data"),
    [
        (Curious(INFO), {"pictures": URLS}),
        (Seer(INFO), {"pictures": URLS, "text": URLS[0]}),
    ],
    ids=["processor that has not said so", "payload in a text"],
)
async def test_otherwise_all_of_the_data_is_seen(processor, data):
    is_cut, call = called(processor, data)
    services = Services()
    assert not is_cut
    assert await answer(call, services) == len(URLS[0])
    assert payloads(services.collected) == [None, None]
    assert [one.url for one in services.collected] == URLS


async def test_what_is_wrong_with_the_data_is_said_once_all_of_it_was_read():
    is_cut, call = called(Seer(INFO), {"pictures": [], "text": URLS[0]})
    assert not is_cut
    with pytest.raises(InvalidRequestError) as refused:
        await call.run(Services())
    assert refused.value.param == "/data/pictures"
