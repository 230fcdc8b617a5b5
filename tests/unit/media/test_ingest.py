import asyncio
import hashlib
import threading

import msgspec
import pytest

from chiasm.errors import (
    DeadlineExceededError,
    MediaDecodeError,
    MediaFetchError,
    MediaRefusedError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from chiasm.media.fetch.cache import Download
from chiasm.media.identity import content_identity
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import MediaItem
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import animation, data_url, encode, exif_block, gradient, noise

DEADLINE_S = 20.0


def images(*urls):
    return [MediaReference("image", url, f"/messages/0/content/{i}/image_url/url") for i, url in enumerate(urls)]


class Web:
    """Stands in for the network: answers by URL target, counts, and can be told to hang."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        self.cancelled = []
        self.two_asked = asyncio.Event()

    async def fetch(self, url, watch, tenant):
        self.asked.append(url.target)
        if len(self.asked) == 2:
            self.two_asked.set()
        try:
            answer = self.answers.get(url.target)
            if answer is None:
                await asyncio.sleep(3600)
            if isinstance(answer, Exception):
                raise answer
            watch(bytearray(answer))
            return Download(answer, content_identity(answer), "text/plain")
        except asyncio.CancelledError:
            self.cancelled.append(url.target)
            raise

    def note(self, tenant, url, identity):
        pass

    async def aclose(self):
        pass


@pytest.fixture
async def start(preparer):
    opened = []

    def start(preparer=preparer, **options):
        ingest = MediaIngest(MediaSettings(allowed_domains=("img.example",), **options), preparer)
        ingest._fetcher = Web()
        opened.append(ingest)
        return ingest, ingest._fetcher

    yield start
    for ingest in opened:
        await ingest.aclose()


async def test_items_say_what_they_are(start):
    ingest, _ = start()
    data = encode(gradient(24, 16), "jpeg", exif=exif_block(6))
    [item] = await ingest.collect(images(data_url(data, "image/jpeg")), DEADLINE_S)
    assert item.identity == hashlib.sha256(data).hexdigest()
    assert (item.kind, item.format, item.width, item.height) == ("image", "jpeg", 16, 24)
    assert item.source.data == data
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=MediaItem) == item


async def test_no_references_are_no_items(start):
    ingest, _ = start()
    assert await ingest.collect([], DEADLINE_S) == []


async def test_the_identity_is_that_of_the_bytes_wherever_they_come_from(start, tmp_path):
    ingest, web = start(allowed_root=str(tmp_path))
    data = encode(gradient(), "png")
    (tmp_path / "a.png").write_bytes(data)
    web.answers = {"/a.png?sig=1": data, "/b?sig=2": data}
    items = await ingest.collect(
        images(
            data_url(data),
            data_url(data, "image/jpeg"),
            f"file://{tmp_path}/a.png",
            "https://img.example/a.png?sig=1",
            "https://img.example/b?sig=2",
        ),
        DEADLINE_S,
    )
    assert {item.identity for item in items} == {hashlib.sha256(data).hexdigest()}


async def test_order_is_kept_whatever_arrives_first(start):
    ingest, web = start()
    a, b = encode(gradient(20, 10), "png"), encode(gradient(10, 20), "png")
    web.answers = {"/a": a, "/b": b}
    urls = {"a": "https://img.example/a", "b": "https://img.example/b", "A": data_url(a), "B": data_url(b)}
    for order in ("aB", "Ba", "bA", "Ab"):
        items = await ingest.collect(images(*(urls[name] for name in order)), DEADLINE_S)
        assert [item.width for item in items] == [20 if name in "aA" else 10 for name in order]


async def test_repeats_keep_their_places_and_are_fetched_once(start):
    ingest, web = start()
    web.answers = {"/a": encode(gradient(20, 10), "png"), "/b": encode(gradient(10, 20), "png")}
    a, b = "https://img.example/a", "https://img.example/b"
    clock = StageClock()
    items = await ingest.collect(images(a, a, b, a), DEADLINE_S, clock)
    assert [item.width for item in items] == [20, 20, 10, 20]
    assert items[0].identity == items[1].identity == items[3].identity != items[2].identity
    assert sorted(web.asked) == ["/a", "/b"]
    assert sorted((span.stage, span.item) for span in clock.spans) == [
        ("check", 0),
        ("check", 2),
        ("fetch", 0),
        ("fetch", 2),
    ]


async def test_six_hundred_pictures_of_one_size_have_as_many_identities(start):
    ingest, _ = start(max_items=600, max_visual_tokens=64 * 600)
    urls = [data_url(encode(noise(8, 8, seed), "png")) for seed in range(600)]
    items = await ingest.collect(images(*urls), DEADLINE_S)
    assert len({item.identity for item in items}) == 600


async def test_pictures_that_differ_only_in_their_last_bytes(start):
    ingest, _ = start()
    data = encode(noise(80, 80), "jpeg", quality=100)
    other = data + b"\0"
    one, two = await ingest.collect(images(data_url(data), data_url(other)), DEADLINE_S)
    assert data[:2048] == other[:2048]
    assert one.identity != two.identity


async def test_animations_are_reported(start):
    ingest, _ = start()
    items = await ingest.collect(images(data_url(animation("gif")), data_url(encode(gradient(), "gif"))), DEADLINE_S)
    assert [item.is_animated for item in items] == [True, False]


class TestErrors:
    @pytest.mark.parametrize(
        ("url", "error", "cause"),
        [
            (data_url(b""), MediaDecodeError, "is empty"),
            (data_url(b"\xff\xd8\xff\xe0"), MediaDecodeError, "ends inside its header"),
            (data_url(b"GIF89a"), MediaDecodeError, "ends inside its header"),
            (data_url(b"<html>an error page</html>"), UnsupportedMediaError, "HTML"),
            (data_url(b"<svg/>" + bytes(40)), UnsupportedMediaError, "SVG"),
            ("data:image/png;base64,!!!!", MediaDecodeError, "base64"),
            ("https://evil.example/a.png?sig=secret", MediaRefusedError, "evil.example"),
            ("gopher://img.example/", MediaRefusedError, "gopher"),
            ("file:///etc/passwd", MediaRefusedError, "file"),
        ],
    )
    async def test_they_name_item_param_and_cause_and_no_payload(self, start, url, error, cause):
        ingest, _ = start()
        good = data_url(encode(gradient(), "png"))
        with pytest.raises(error, match=cause) as caught:
            await ingest.collect(images(good, url, good), DEADLINE_S)
        assert caught.value.item == 1
        assert caught.value.param == "/messages/0/content/1/image_url/url"
        assert caught.value.message.startswith("Media item 1: ")
        assert "secret" not in caught.value.message
        payload = url.partition(",")[2]
        assert not payload or payload[:8] not in caught.value.message

    @pytest.mark.parametrize("kind", ["video", "audio"])
    async def test_other_media(self, start, kind):
        ingest, _ = start()
        with pytest.raises(UnsupportedMediaError, match=kind) as caught:
            await ingest.collect([MediaReference(kind, "https://img.example/x", "/p")], DEADLINE_S)
        assert (caught.value.item, caught.value.param) == (0, "/p")

    async def test_what_policy_forbids_stops_the_request_before_anything_is_fetched(self, start):
        ingest, web = start()
        with pytest.raises(MediaRefusedError):
            await ingest.collect(images("https://img.example/a", "https://evil.example/b"), DEADLINE_S)
        assert web.asked == []

    async def test_a_failure_cancels_the_others(self, start):
        ingest, web = start()
        web.answers = {"/bad": MediaFetchError("status 404")}
        urls = [f"https://img.example/{name}" for name in ("slow1", "bad", "slow2")]
        with pytest.raises(MediaFetchError, match="Media item 1: status 404"):
            await asyncio.wait_for(ingest.collect(images(*urls), DEADLINE_S), 10)
        assert sorted(web.cancelled) == ["/slow1", "/slow2"]

    async def test_of_failures_at_once_the_first_item_is_named(self, start):
        ingest, web = start()
        web.answers = {f"/{i}": MediaFetchError(f"status {i}") for i in range(4)}
        with pytest.raises(MediaFetchError, match="Media item 0: status 0"):
            await ingest.collect(images(*(f"https://img.example/{i}" for i in range(4))), DEADLINE_S)

    async def test_a_fault_of_our_own_is_not_hidden_behind_a_callers(self, start):
        ingest, web = start()
        web.answers = {"/0": MediaFetchError("status 404"), "/1": ZeroDivisionError()}
        with pytest.raises(ZeroDivisionError):
            await ingest.collect(images("https://img.example/0", "https://img.example/1"), DEADLINE_S)

    async def test_the_deadline(self, start):
        ingest, web = start()
        with pytest.raises(DeadlineExceededError, match=r"0\.05 s"):
            await ingest.collect(images("https://img.example/slow"), 0.05)
        assert web.cancelled == ["/slow"]

    async def test_cancelling_the_caller_cancels_every_fetch(self, start):
        ingest, web = start()
        task = asyncio.create_task(ingest.collect(images("https://img.example/1", "https://img.example/2"), DEADLINE_S))
        await asyncio.wait_for(web.two_asked.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(web.cancelled) == ["/1", "/2"]

    async def test_other_requests_are_unaffected(self, start):
        ingest, _ = start()
        good, bad = data_url(encode(gradient(), "png")), data_url(b"junk" * 20)
        requests = [ingest.collect(images(good, bad) if i % 2 else images(good), DEADLINE_S) for i in range(20)]
        results = await asyncio.gather(*requests, return_exceptions=True)
        for i, result in enumerate(results):
            assert isinstance(result, UnsupportedMediaError) if i % 2 else len(result) == 1


class TestEach:
    """`collect_each`: one failure ends no other."""

    async def test_failures_stand_in_their_places(self, start):
        ingest, web = start()
        png = encode(gradient(), "png")
        web.answers = {"/good": png, "/bad": MediaFetchError("status 404")}
        urls = ["https://img.example/good", "https://img.example/bad", "https://evil.example/", data_url(b"junk" * 20)]
        made = await ingest.collect_each(images(*urls, urls[0], urls[1], data_url(png)), DEADLINE_S, StageClock())
        kinds = [MediaItem, MediaFetchError, MediaRefusedError, UnsupportedMediaError, MediaItem, MediaFetchError]
        assert [type(one) for one in made] == [*kinds, MediaItem]
        assert (made[0], made[6].identity) == (made[4], made[0].identity)
        assert [(one.item, one.param) for one in made[1:4]] == [
            (number, f"/messages/0/content/{number}/image_url/url") for number in (1, 2, 3)
        ]
        assert sorted(web.asked) == ["/bad", "/good"], "each URL once, and none that is not allowed"

    async def test_what_goes_beyond_the_requests_limits_counts_no_more(self, start):
        ingest, _ = start(max_request_pixels=500)
        small, large = data_url(encode(gradient(20, 20), "png")), data_url(encode(gradient(20, 26), "png"))
        made = await ingest.collect_each(images(large, small, large), DEADLINE_S)
        assert [type(one) for one in made] == [MediaTooLargeError, MediaItem, MediaTooLargeError]

    async def test_limits_of_the_whole_and_faults_of_our_own_are_raised(self, start):
        ingest, web = start(max_items=2)
        url = data_url(encode(gradient(), "png"))
        with pytest.raises(MediaTooLargeError, match="3 media items"):
            await ingest.collect_each(images(url, url, url), DEADLINE_S)
        web.answers = {"/0": ZeroDivisionError()}
        with pytest.raises(ZeroDivisionError):
            await ingest.collect_each(images("https://img.example/0", url), DEADLINE_S)
        with pytest.raises(DeadlineExceededError):
            await ingest.collect_each(images("https://img.example/slow", url), 0.05)
        assert web.cancelled == ["/slow"]
        assert await ingest.collect_each([], DEADLINE_S) == []


class TestLimits:
    async def test_items(self, start):
        ingest, _ = start(max_items=2)
        url = data_url(encode(gradient(), "png"))
        await ingest.collect(images(url, url), DEADLINE_S)
        with pytest.raises(MediaTooLargeError, match="3 media items; the limit is 2"):
            await ingest.collect(images(url, url, url), DEADLINE_S)

    async def test_bytes_of_one_item(self, start):
        data = encode(noise(), "png")
        ingest, _ = start(max_item_bytes=len(data) - 1)
        with pytest.raises(MediaTooLargeError, match="limit"):
            await ingest.collect(images(data_url(data)), DEADLINE_S)

    async def test_bytes_of_all_items(self, start):
        one, two = encode(noise(seed=1), "png"), encode(noise(seed=2), "png")
        ingest, _ = start(max_request_bytes=len(one) + len(two) - 1)
        await ingest.collect(images(data_url(one), data_url(one)), DEADLINE_S)
        with pytest.raises(MediaTooLargeError, match="media of the request"):
            await ingest.collect(images(data_url(one), data_url(two)), DEADLINE_S)

    async def test_pixels_of_all_items(self, start):
        ingest, _ = start(max_request_pixels=500)
        one, two = data_url(encode(gradient(20, 20), "png")), data_url(encode(gradient(20, 10), "png"))
        await ingest.collect(images(one, one), DEADLINE_S)
        with pytest.raises(MediaTooLargeError, match="600 pixels together"):
            await ingest.collect(images(one, two), DEADLINE_S)

    async def test_visual_tokens_of_all_places(self, start):
        ingest, _ = start(max_visual_tokens=799)
        one = data_url(encode(gradient(20, 20), "png"))
        await ingest.collect(images(one), DEADLINE_S)
        with pytest.raises(MediaTooLargeError, match="800 visual tokens"):
            await ingest.collect(images(one, one), DEADLINE_S)

    async def test_pictures_that_the_model_cannot_take(self, start):
        ingest, _ = start()
        with pytest.raises(MediaRefusedError, match="Media item 0: The model cannot"):
            await ingest.collect(images(data_url(encode(gradient(13, 20), "png"))), DEADLINE_S)


async def test_labels_are_logged_when_wrong_and_never_believed(start, caplog):
    ingest, _ = start()
    caplog.set_level("INFO", "chiasm.media")
    png, jpeg = encode(gradient(), "png"), encode(gradient(), "jpeg")
    items = await ingest.collect(
        images(data_url(jpeg, "image/png"), data_url(png), data_url(jpeg, "image/jpg"), data_url(png, "text/plain")),
        DEADLINE_S,
    )
    assert [item.format for item in items] == ["jpeg", "png", "jpeg", "png"]
    assert [record.getMessage() for record in caplog.records] == [
        "Media item 0 holds jpeg, labelled 'image/png'",
        "Media item 3 holds png, labelled 'text/plain'",
    ]


@pytest.mark.parametrize(("num_more", "where"), [(200_000, "chiasm-ingest"), (0, "MainThread")])
async def test_work_that_takes_longer_than_changing_threads_runs_off_the_event_loop(
    start, monkeypatch, num_more, where
):
    ingest, _ = start()
    threads = []
    inspect = MediaIngest.__init__.__globals__["inspect_picture"]
    monkeypatch.setattr(
        "chiasm.media.ingest.inspect_picture",
        lambda *found: (threads.append(threading.current_thread().name), inspect(*found))[1],
    )
    await ingest.collect(images(data_url(encode(gradient(), "png") + bytes(num_more))), DEADLINE_S)
    assert threads[0].startswith(where)
