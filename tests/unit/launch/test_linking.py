"""A link that is kept while a server runs, and what becomes of it when its keeping fails."""

from chiasm.launch.linking import linked
from chiasm.sharing.local import Hub, LocalStore
from tests.conditions import until


class Backend:
    """Fails to keep what is announced."""

    async def keep_announced(self, link):
        raise RuntimeError("a fault of ours")


async def test_a_gateway_whose_link_is_kept_by_nobody_is_degraded(caplog):
    hub = Hub()
    async with linked(LocalStore("a", hub), Backend()) as link:
        await until(lambda: link.is_degraded)
    assert "restart the server" in caplog.text


async def test_a_gateway_that_ends_says_so():
    hub = Hub()
    async with linked(LocalStore("a", hub), object()) as link:
        assert link.is_up
        assert set(hub.living()) == {"a"}
    assert not hub.living()
