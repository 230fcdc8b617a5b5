"""A gateway says when it has lost the store, and serves on."""

from prometheus_client import generate_latest

from chiasm.gateway import create_app
from chiasm.settings import GatewaySettings
from chiasm.sharing.link import Link
from chiasm.sharing.local import Hub, LocalStore
from tests.asgi import Call
from tests.fakes import FakeIngest, FakeWorker


async def test_health_and_metrics_tell_of_the_store():
    app = create_app(FakeWorker(), FakeIngest(), GatewaySettings(), link=Link(LocalStore("a", Hub())))
    gateway = app.state.gateway

    async def health():
        answer = await Call(app, "/health").run()
        return answer.status, answer.json["status"]

    def level():
        text = generate_latest(gateway.metrics.registry).decode()
        return [line.split()[1] for line in text.splitlines() if line.startswith("chiasm_store_up ")]

    assert await health() == (200, "degraded")
    assert level() == ["0.0"]
    await gateway.link.round()
    assert await health() == (200, "ok")
    assert level() == ["1.0"]
