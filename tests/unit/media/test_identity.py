"""What an item is called: its bytes, or, where the settings say so, its pixels."""

import pytest
from PIL import Image

from chiasm.errors import MediaDecodeError, MediaTooLargeError
from chiasm.media import MediaIngest, MediaReference, MediaSettings, Spool, content_identity
from chiasm.media.identity import pixel_identity
from tests.unit.media.pictures import data_url, encode, exif_block, noise

PICTURE = noise(40, 30)
ALIKE = {
    "png": encode(PICTURE, "png"),
    "png, otherwise deflated": encode(PICTURE, "png", compress_level=1),
    "bmp": encode(PICTURE, "bmp"),
    "webp": encode(PICTURE, "webp", lossless=True),
    "png, turned": encode(PICTURE.transpose(2), "png", exif=exif_block(6)[6:]),
    "png, opaque": encode(PICTURE.convert("RGBA"), "png"),
}


async def identities(settings, *pictures, **extra):
    ingest = MediaIngest(settings, None, **extra)
    try:
        return [item.identity for item in await ingest.collect(references(*pictures), 60)]
    finally:
        await ingest.aclose()


def references(*pictures):
    return [MediaReference("image", data_url(data), f"/{at}") for at, data in enumerate(pictures)]


@pytest.mark.parametrize("decoder", ["threads", "processes"])
async def test_pictures_that_look_alike_have_one_name(decoder):
    found = await identities(MediaSettings(identity="pixels", decoder=decoder), *ALIKE.values())
    assert set(found) == {pixel_identity(ALIKE["png"], MediaSettings())}
    assert content_identity(ALIKE["png"]) not in found


async def test_one_pixel_or_another_shape_is_another_name():
    other = PICTURE.copy()
    other.putpixel((39, 29), (1, 2, 3))
    reshaped = Image.frombytes("RGB", (30, 40), PICTURE.tobytes())
    pictures = [encode(one, "png") for one in (PICTURE, other, reshaped)]
    assert len(set(await identities(MediaSettings(identity="pixels"), *pictures))) == 3


async def test_bytes_are_the_default():
    assert await identities(MediaSettings(), *ALIKE.values()) == [content_identity(data) for data in ALIKE.values()]


async def test_limits_come_before_decoding_and_what_is_broken_is_refused_at_the_door(monkeypatch):
    settings = MediaSettings(identity="pixels", max_request_pixels=2399)
    monkeypatch.setattr("chiasm.media.ingest.pixel_identity", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(MediaTooLargeError, match="2400 pixels together"):
        await identities(settings, encode(noise(60, 40), "png"))
    monkeypatch.undo()
    with pytest.raises(MediaDecodeError, match="Media item 0"):
        await identities(MediaSettings(identity="pixels"), ALIKE["png"][:-60])


async def test_alike_pictures_share_a_file_of_the_spool(tmp_path):
    settings = MediaSettings(identity="pixels", spool_directory=str(tmp_path))
    spool = Spool(settings)
    ingest = MediaIngest(settings, None, spool=spool)
    with spool.lease() as lease:
        one, two = await ingest.collect(references(ALIKE["png"], ALIKE["bmp"]), 60, lease=lease)
        assert (one.source, spool.num_files) == (two.source, 1)
    await ingest.aclose()
    spool.close()
