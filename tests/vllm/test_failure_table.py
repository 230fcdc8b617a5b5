"""Whatever goes wrong with an embedding ends its request alone: no dead engine, no wrong answer, nobody disturbed.

The rows are those of vLLM's own behaviour with its example connector (docs/vllm_connector.md has both tables).
"""

import base64
import io
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from chiasm.connectors.shm import arena
from chiasm.engines.vllm.ec.announcement import Announcement, sealed
from chiasm.engines.vllm.spool_url import spool_url
from chiasm.protocol.media import SpoolSource
from tests.conditions import until
from tests.vllm.crews import MARKS
from tests.vllm.fleets import HOLD_S
from tests.vllm.pictures import ask, encode, grid, identity, new_picture, question, raw, reference, refused

pytestmark = MARKS
STORY = "Tell me a story."


@pytest.fixture
def servers(fleet):
    return fleet


@pytest.fixture
def consumer(servers):
    """The consumer, whose engine must have survived the test."""
    yield servers.consumer
    assert servers.consumer.is_alive


@pytest.fixture
def encoder(servers):
    return servers.shm


@pytest.fixture(params=["shm", "tcp"])
def any_encoder(servers, request):
    return servers.encoder(request.param)


@pytest.fixture
def neighbour(consumer):
    """Somebody else's stream, which must come to its end as if nothing had happened."""
    events = []
    answers = consumer.stream(question(text=STORY), max_tokens=60, min_tokens=60, ignore_eos=True)
    events.append(next(answers))
    thread = threading.Thread(target=lambda: events.extend(answers))
    thread.start()
    yield
    thread.join(120)
    assert not any("error" in event for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def changed(params, picture, **changes):
    """Announce something else, with a seal that fits: what a broken encoder might say."""
    entry = params[identity(picture)]
    metadata = changes.pop("metadata", entry["metadata"])
    layout = entry["chiasm"]["layout"] | changes.pop("layout", {})
    said = msgspec.convert(entry["chiasm"] | changes | {"layout": layout}, Announcement)
    return {
        identity(picture): entry
        | {"metadata": metadata, "chiasm": msgspec.to_builtins(sealed(said, identity(picture), metadata))}
    }


# what must work


def test_an_answer_over_references_is_the_answer_over_pictures(any_encoder, consumer):
    first, second = new_picture(), new_picture(256)
    params = encode(any_encoder, first, second, first)
    assert params[identity(first)]["item_indices"] == [0, 2]
    for pictures in ([first], [first], [second, first], [first, second, first]):
        references = [reference(picture, grid(params, picture)) for picture in pictures]
        assert ask(consumer, *references, params=params) == ask(consumer, *[raw(picture) for picture in pictures])


def test_the_vision_tower_does_not_run(servers):
    picture = new_picture()
    params = encode(servers.shm, picture)
    log = servers.consumer.log()
    assert ask(servers.consumer, reference(picture, grid(params, picture)), params=params)[0] == 200
    assert "Finish execute for mm hash" not in servers.consumer.log()[len(log) :]


def test_many_at_once_and_the_same_picture_twice(encoder, consumer):
    pictures = [new_picture() for _ in range(4)]
    params = encode(encoder, *pictures)
    alone = [ask(consumer, raw(picture)) for picture in pictures]
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(ask, consumer, reference(picture, grid(params, picture)), params=params)
            for picture in pictures * 2
        ]
        texts = [[token for token, _ in job.result()[1]] for job in jobs]
    assert texts == [[token for token, _ in answer] for _, answer in alone * 2]


def test_more_pictures_than_either_side_can_keep(encoder, consumer):
    for _ in range(14):
        pictures = [new_picture() for _ in range(4)]
        params = encode(encoder, *pictures)
        references = [reference(picture, grid(params, picture)) for picture in pictures]
        assert ask(consumer, *references, params=params, max_tokens=1)[0] == 200
    metrics = consumer.request("GET", "/metrics")[1].decode()
    evicted = [line for line in metrics.splitlines() if line.startswith("chiasm_ec_evicted_total")]
    assert float(evicted[0].split()[-1]) > 0


def test_an_encoder_offers_again_what_it_has_cached(encoder, consumer):
    picture = new_picture()
    first = encode(encoder, picture)
    for _ in range(14):  # more than it keeps
        encode(encoder, *[new_picture() for _ in range(4)])
    time.sleep(HOLD_S)  # until then, what was offered last makes no room
    again = encode(encoder, picture)
    assert again[identity(picture)]["chiasm"]["checksum"] == first[identity(picture)]["chiasm"]["checksum"]
    assert ask(consumer, reference(picture, grid(again, picture)), params=again) == ask(consumer, raw(picture))


# what must fail, alone


def test_an_embedding_that_is_gone(encoder, consumer, neighbour):
    picture = new_picture()
    params = encode(encoder, picture)
    slot = params[identity(picture)]["chiasm"]["address"].split("/")
    gone = changed(params, picture, address=f"{slot[0]}/{slot[1]}/999999999")
    assert refused(ask(consumer, reference(picture, grid(params, picture)), params=gone, max_tokens=1))
    # nothing of it is remembered
    assert ask(consumer, reference(picture, grid(params, picture)), params=params) == ask(consumer, raw(picture))


def test_the_same_as_a_stream(encoder, consumer, neighbour):
    picture = new_picture()
    params = changed(encode(encoder, picture), picture, address=f"chiasm-0-1-{'0' * 16}/1/1")
    messages = question(reference(picture, grid(params, picture)))
    events = list(consumer.stream(messages, max_tokens=5, ec_transfer_params=params))
    assert [event["error"]["code"] for event in events if "error" in event] == [500]
    assert not any(c["delta"].get("content") for event in events for c in event.get("choices", []))


@pytest.mark.parametrize("params", [None, {}, {"x": {}}, "nonsense", {"x": 1}], ids=str)
def test_a_request_that_does_not_say_where(encoder, consumer, neighbour, params):
    picture = new_picture()
    found = grid(encode(encoder, picture), picture)
    answer = ask(consumer, reference(picture, found), params=params, max_tokens=1)
    assert answer[0] in (400, 500)
    assert "EngineCore encountered" not in str(answer)


@pytest.mark.parametrize("value", [None, 5, [], {}, {"version": 1}, {"error": "overloaded"}, {"version": 99}], ids=str)
def test_a_malformed_announcement(encoder, consumer, value):
    picture = new_picture()
    params = encode(encoder, picture)
    params[identity(picture)]["chiasm"] = value
    assert refused(ask(consumer, reference(picture, grid(params, picture)), params=params, max_tokens=1))


@pytest.mark.parametrize(
    "wrong",
    [[1, 8, 8], [1, 14, 12], [1, 28, 28], [1, 7, 28], [1, 28, 7], [2, 14, 14], [1, 2, 98]],
    ids=str,
)
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_wrong_grid(encoder, consumer, neighbour, wrong, is_cached):
    """Smaller ones gave wrong answers, larger ones ended the engine."""
    picture = new_picture()
    params = encode(encoder, picture)
    if is_cached:
        assert ask(consumer, reference(picture, grid(params, picture)), params=params, max_tokens=1)[0] == 200
    answer = ask(consumer, reference(picture, wrong), params=params, max_tokens=1)
    assert answer[0] in (400, 500)
    assert "EngineCore encountered" not in str(answer)


@pytest.mark.parametrize("wrong", [[0, 0, 0], [1, -2, -2], [-1, -14, 14], [1, 16], [1.5, 16, 16], [1, 15, 15]], ids=str)
@pytest.mark.parametrize("is_told", [False, True])
def test_an_absurd_grid(encoder, consumer, neighbour, wrong, is_told):
    picture = new_picture()
    params = encode(encoder, picture)
    if is_told:
        params = changed(params, picture, metadata={"image_grid_thw": wrong})
    answer = ask(consumer, reference(picture, wrong), params=params, max_tokens=1)
    assert answer[0] in (400, 500)
    assert "EngineCore encountered" not in str(answer)


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": {"shape": [64, 512]}},
        {"layout": {"shape": [49, 256]}},
        {"layout": {"shape": [98, 256]}},
        {"layout": {"dtype": "bfloat16"}},
        {"layout": {"revision": "another model"}},
        {"checksum": "xxh3_128:" + "0" * 32},
        {"transport": "tcp"},
    ],
    ids=str,
)
def test_an_announcement_that_is_not_what_the_model_takes(encoder, consumer, neighbour, changes):
    picture = new_picture()
    params = encode(encoder, picture)
    announced = changed(params, picture, **changes)
    assert refused(ask(consumer, reference(picture, grid(params, picture)), params=announced, max_tokens=1))


def test_bytes_that_were_changed_after_publishing(encoder, consumer, neighbour):
    picture = new_picture()
    params = encode(encoder, picture)
    address = arena.parse_address(params[identity(picture)]["chiasm"]["address"])
    memory = np.memmap(arena.FOLDER / address.name, np.uint8, "r+")
    _, offset, num_bytes, _ = arena.read_slot(memory._mmap, address.slot)
    memory[offset + num_bytes // 2] ^= 1
    memory.flush()
    assert refused(ask(consumer, reference(picture, grid(params, picture)), params=params, max_tokens=1))


def test_announcements_that_were_mixed_up(encoder, consumer, neighbour):
    first, second = new_picture(), new_picture()
    params = encode(encoder, first, second)
    swapped = {identity(first): params[identity(second)], identity(second): params[identity(first)]}
    assert refused(ask(consumer, reference(first, grid(params, first)), params=swapped, max_tokens=1))


def test_one_bad_item_among_good_ones(encoder, consumer, neighbour):
    pictures = [new_picture() for _ in range(3)]
    params = encode(encoder, *pictures)
    references = [reference(picture, grid(params, picture)) for picture in pictures]
    assert refused(ask(consumer, *references, params=params | {identity(pictures[1]): {}}, max_tokens=1))
    assert ask(consumer, *references, params=params, max_tokens=1)[0] == 200


def test_an_embedding_inside_the_request(consumer, neighbour):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((49, 256), np.float32))
    payload = {"image_grid_thw": [1, 14, 14], "image_embeds": base64.b64encode(buffer.getvalue()).decode()}
    part = {"type": "image_embeds", "image_embeds": payload, "uuid": identity(new_picture())}
    answer = ask(consumer, part, max_tokens=1)
    assert answer[0] in (400, 500)
    assert "EngineCore encountered" not in str(answer)


def test_an_encoder_that_says_nothing(servers, consumer, neighbour):
    """The wait is bounded, and a client that goes away meanwhile leaves nothing behind."""
    picture = new_picture()
    params = encode(servers.tcp, picture)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}/{'0' * 32}"
        lost = changed(params, picture, address=address)
        assert refused(ask(consumer, reference(picture, grid(params, picture)), params=lost, max_tokens=1))
        messages = question(reference(picture, grid(params, picture)))
        with suppress(TimeoutError):
            body = {"model": "tiny_vlm", "messages": messages, "max_tokens": 1, "ec_transfer_params": lost}
            consumer.request("POST", "/v1/chat/completions", body, timeout_s=0.5)
    assert ask(consumer, reference(picture, grid(params, picture)), params=params) == ask(consumer, raw(picture))


def test_a_picture_that_the_encoder_cannot_read(encoder):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"no").decode()}}
    status, _ = encoder.chat([{"role": "user", "content": [part]}])
    assert status in (400, 422)
    assert encoder.is_alive


# what an encoder opens


def shown(encoder, url):
    part = {"type": "image_url", "image_url": {"url": url}, "uuid": secrets.token_hex(8)}
    status, body = encoder.chat([{"role": "user", "content": [part]}])
    return status, body if status != 200 else [entry["metadata"] for entry in body["ec_transfer_params"].values()]


def test_an_encoder_reads_the_spool_by_name(servers):
    picture = new_picture()
    source = SpoolSource(f"1-ab-{secrets.token_hex(4)}", len(picture))
    path = servers.spool / source.name
    path.write_bytes(picture)
    expected = shown(servers.tcp, raw(picture)["image_url"]["url"])
    assert expected[0] == 200
    assert shown(servers.shm, spool_url(source)) == expected
    assert shown(servers.shm, path.resolve().as_uri()) == expected
    assert shown(servers.shm, raw(picture)["image_url"]["url"]) == expected
    path.unlink()
    status, body = shown(servers.shm, spool_url(source))
    assert (status, "transfer_failed" in body["error"]["message"]) == (422, True)


def test_an_encoder_opens_nothing_else(servers):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/a.png", f"https://127.0.0.1:{port}/a.png", "file:///etc/hostname"):
            status, body = shown(servers.shm, url)
            assert (status, "media_refused" in body["error"]["message"]) == (422, True)
        with pytest.raises(BlockingIOError):  # nobody has come
            listener.accept()


async def test_what_happened_is_counted(encoder, consumer):
    first, second = new_picture(), new_picture()
    params = encode(encoder, first, second)
    part = reference(first, grid(params, first))
    assert ask(consumer, part, params=params, max_tokens=1)[0] == 200
    swapped = {identity(second): params[identity(first)]}
    assert refused(ask(consumer, reference(second, grid(params, second)), params=swapped, max_tokens=1))
    assert refused(ask(consumer, reference(second, grid(params, second)), params={}, max_tokens=1))
    assert refused(ask(consumer, reference(first, [1, 2, 98]), params=params, max_tokens=1))
    await until(lambda: {"layout_mismatch", "checksum_mismatch", "embedding_unavailable"} <= _reasons(consumer))
    assert any(line.startswith("chiasm_ec_pulled_bytes_total") for line in _counts(consumer))


def _counts(server):
    metrics = server.request("GET", "/metrics")[1].decode().splitlines()
    return [line for line in metrics if line.startswith("chiasm_ec_") and float(line.split()[-1]) > 0]


def _reasons(server):
    lines = [line for line in _counts(server) if line.startswith("chiasm_ec_refused_requests_total")]
    return {line.partition('reason="')[2].partition('"')[0] for line in lines}


@pytest.mark.vllm(is_last=True)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_encoder_that_was_killed(servers, consumer, neighbour, transport):
    """What it offered may still be taken, or its request fails; either way the consumer goes on."""
    encoder = servers.encoder(transport)
    if encoder.process is None:
        pytest.skip("started by hand")
    picture = new_picture()
    params = encode(encoder, picture)
    expected = ask(consumer, raw(picture))
    encoder.kill()
    answer = ask(consumer, reference(picture, grid(params, picture)), params=params)
    assert answer == expected or refused(answer)
