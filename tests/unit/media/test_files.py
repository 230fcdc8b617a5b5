import os
from pathlib import Path
from urllib.parse import quote

import pytest

from chiasm.errors import MediaFetchError, MediaRefusedError, MediaTooLargeError
from chiasm.media.fetch.files import read_file

LIMIT = 1000


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "a picture.png").write_bytes(b"inside")
    (tmp_path / "secret.png").write_bytes(b"outside")
    (tmp_path / "rootless.png").write_bytes(b"outside")
    return tmp_path / "root"


def read(path, root):
    return read_file(f"file://{quote(str(path))}", str(root), LIMIT)


def test_files_below_the_root(root):
    assert read(root / "sub" / "a picture.png", root) == b"inside"
    assert read(root / "sub" / ".." / "sub" / "a picture.png", root) == b"inside"
    assert read_file(f"file://localhost{quote(str(root))}/sub/a%20picture.png", str(root), LIMIT) == b"inside"


def test_without_a_root_no_file_is_served(root):
    with pytest.raises(MediaRefusedError, match="not served"):
        read_file(f"file://{root}/sub/x", None, LIMIT)


@pytest.mark.parametrize(
    "name", ["../secret.png", "../rootless.png", "../missing.png", "sub/../../secret.png", "/etc/passwd"]
)
def test_outside_is_refused_alike_whether_or_not_something_is_there(root, name):
    with pytest.raises(MediaRefusedError) as caught:
        read(root / name, root)
    assert caught.value.message == "The file is not below the allowed folder"


def test_percent_encoded_ways_out(root):
    with pytest.raises(MediaRefusedError, match="below"):
        read_file(f"file://{root}/%2e%2e/secret.png", str(root), LIMIT)


def test_links_are_judged_by_where_they_end(root):
    (root / "out.png").symlink_to(root.parent / "secret.png")
    (root / "in.png").symlink_to(root / "sub" / "a picture.png")
    (root / "up").symlink_to(root.parent)
    (root / "loop").symlink_to(root / "loop")
    assert read(root / "in.png", root) == b"inside"
    for name in ("out.png", "up/secret.png"):
        with pytest.raises(MediaRefusedError, match="below"):
            read(root / name, root)
    with pytest.raises((MediaRefusedError, MediaFetchError)):
        read(root / "loop", root)


def test_a_root_that_is_a_link(root):
    link = root.parent / "link"
    link.symlink_to(root)
    assert read(root / "sub" / "a picture.png", link) == b"inside"
    assert read(link / "sub" / "a picture.png", link) == b"inside"


def test_a_path_swapped_between_check_and_open(root, monkeypatch):
    target = root / "sub" / "a picture.png"
    real_open = os.open

    def swap_then_open(path, flags, *rest):
        (root / "sub").rename(root / "old")
        (root / "sub").symlink_to(root.parent)
        (root.parent / "a picture.png").write_bytes(b"outside")
        return real_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(MediaRefusedError, match="below"):
        read(target, root)


def test_what_is_no_regular_file(root):
    os.mkfifo(root / "pipe")
    for name in ("pipe", "sub", "missing.png"):
        with pytest.raises(MediaFetchError, match="regular file"):
            read(root / name, root)


def test_descriptors_are_closed(root):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        read(root / "sub" / "a picture.png", root)
        with pytest.raises(MediaFetchError):
            read(root / "sub", root)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_size_limit(root):
    (root / "full").write_bytes(bytes(LIMIT))
    (root / "over").write_bytes(bytes(LIMIT + 1))
    assert len(read(root / "full", root)) == LIMIT
    with pytest.raises(MediaTooLargeError, match="1001 bytes; the limit is 1000"):
        read(root / "over", root)


@pytest.mark.parametrize(
    "url", ["file://evil/a.png", "file:///a.png?x", "file:///a.png#x", "file:a.png", "file:///a%00.png", "file://[/a"]
)
def test_malformed_file_urls(root, url):
    with pytest.raises(MediaRefusedError):
        read_file(url, str(root), LIMIT)


def test_paths_do_not_appear_in_errors(root):
    for name in ("missing-secret.png", "../missing-secret.png"):
        with pytest.raises((MediaRefusedError, MediaFetchError)) as caught:
            read(root / name, root)
        assert "secret" not in caught.value.message
