"""The order of a rotation: at every moment, whoever trusts any bundle of the last minute trusts what is served."""

import datetime
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from isolator_webhook.managed import authority, rotation
from isolator_webhook.managed.authority import Pair
from isolator_webhook.managed.rotation import Keyring, Policy

HOST = "isolator-webhook.gpu.svc"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
POLICY = Policy(hosts=(HOST,), authority_life=30 * DAY, leaf_life=6 * DAY)


def trusts(bundle: bytes, leaf: Pair | None, now: datetime.datetime) -> bool:
    """Whether a client with this bundle accepts the leaf: judged by a verifier that is not ours."""
    assert leaf is not None
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(HOST))
    try:
        verifier.verify(x509.load_pem_x509_certificate(leaf.certificate), [])
    except VerificationError:
        return False
    return True


def fresh() -> Keyring:
    found = rotation.step(Keyring(), POLICY, NOW, acknowledged=False)
    assert found is not None
    assert found[0] == "authority made"
    return found[1]


def test_first_step_makes_everything() -> None:
    keyring = fresh()
    assert trusts(keyring.bundle(), keyring.leaf, NOW)
    assert rotation.step(keyring, POLICY, NOW, acknowledged=True) is None


def test_half_a_year_day_by_day() -> None:
    """A client that sees a bundle up to 59 seconds late, and a replica that serves a leaf until it is acknowledged."""
    keyring = fresh()
    bundles, leaves = [keyring.bundle()], [keyring.leaf]
    names = set()
    now = NOW
    for _ in range(180):
        now += DAY
        for seconds in range(0, 300, 20):
            moment = now + datetime.timedelta(seconds=seconds)
            keyring = keyring.note_bundled(moment)
            bundles = [*bundles[-2:], keyring.bundle()]
            found = rotation.step(keyring, POLICY, moment, acknowledged=seconds % 100 == 80)
            if found is not None:
                names.add(found[0])
                keyring = found[1]
            if seconds % 100 == 80:
                leaves = [keyring.leaf]
            leaves.append(keyring.leaf)
            for bundle in bundles:
                for leaf in leaves:
                    assert trusts(bundle, leaf, moment), (moment, names)
    assert names == {"leaf renewed", "authority announced", "authority changed", "old authority removed"}


def settle(keyring: Keyring, now: datetime.datetime) -> tuple[Keyring, datetime.datetime]:
    return keyring.note_bundled(now), now + POLICY.settle


def test_a_new_authority_waits_until_every_api_server_knows_it() -> None:
    keyring = fresh()
    found = rotation.step(keyring, POLICY, NOW, acknowledged=True, wish="ca")
    assert found is not None
    assert found[0] == "authority announced"
    announced = found[1]
    assert announced.leaf == keyring.leaf
    assert rotation.step(announced, POLICY, NOW + DAY, acknowledged=True) is None, "its bundle is nowhere yet"
    noted, later = settle(announced, NOW)
    assert rotation.step(noted, POLICY, later - datetime.timedelta(seconds=1), acknowledged=True) is None
    found = rotation.step(noted, POLICY, later, acknowledged=True)
    assert found is not None
    assert found[0] == "authority changed"
    assert trusts(announced.bundle(), found[1].leaf, later)
    assert not trusts(keyring.bundle(), found[1].leaf, later)


def test_the_old_authority_waits_for_every_replica() -> None:
    found = rotation.step(fresh(), POLICY, NOW, acknowledged=True, wish="ca")
    assert found is not None
    noted, later = settle(found[1], NOW)
    found = rotation.step(noted, POLICY, later, acknowledged=True)
    assert found is not None
    noted, later = settle(found[1], later)
    assert rotation.step(noted, POLICY, later, acknowledged=False) is None
    found = rotation.step(noted, POLICY, later, acknowledged=True)
    assert found is not None
    assert found[0] == "old authority removed"
    assert found[1].going is None
    assert trusts(found[1].bundle(), found[1].leaf, later)


def test_a_leaf_is_renewed_while_an_old_authority_still_waits() -> None:
    keyring = replace(fresh(), going=fresh().bundle())
    found = rotation.step(keyring, POLICY, NOW + 5 * DAY, acknowledged=False)
    assert found is not None
    assert found[0] == "leaf renewed"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda keyring: replace(keyring, leaf=None), "leaf made"),
        (lambda keyring: replace(keyring, leaf=fresh().leaf), "leaf made"),
        (lambda keyring: replace(keyring, leaf=replace(keyring.leaf, key=fresh().leaf.key)), "leaf made"),
        (lambda keyring: replace(keyring, leaf=replace(keyring.leaf, key=b"nonsense")), "leaf made"),
        (lambda keyring: replace(keyring, authority=None), "authority made"),
        (
            lambda keyring: replace(keyring, leaf=None, authority=replace(keyring.authority, key=b"nonsense")),
            "authority made",
        ),
    ],
)
def test_what_is_missing_or_foreign_is_made_anew(change: object, name: str) -> None:
    assert callable(change)
    found = rotation.step(change(fresh()), POLICY, NOW, acknowledged=True)
    assert found is not None
    assert found[0] == name
    assert trusts(found[1].bundle(), found[1].leaf, NOW)


@pytest.mark.parametrize("key", [b"", b"nonsense", authority.make_authority(NOW, DAY).key])
def test_an_authority_whose_key_is_damaged_is_renewed_at_once_and_in_order(key: bytes) -> None:
    keyring = fresh()
    assert keyring.authority is not None
    damaged = replace(keyring, authority=Pair(keyring.authority.certificate, key))
    now, names, leaves = NOW, [], {keyring.leaf}
    while (found := rotation.step(damaged, POLICY, now, acknowledged=True, wish="")) is not None:
        names.append(found[0])
        assert all(trusts(bundle, leaf, now) for bundle in (damaged.bundle(), found[1].bundle()) for leaf in leaves)
        leaves = {found[1].leaf}
        damaged, now = settle(found[1], now)
    assert names == ["authority announced", "authority changed", "old authority removed"]


def test_an_authority_that_is_coming_with_a_damaged_key_is_made_anew() -> None:
    other = authority.make_authority(NOW, 30 * DAY)
    noted, later = settle(replace(fresh(), coming=replace(other, key=b"nonsense")), NOW)
    found = rotation.step(noted, POLICY, later, acknowledged=True)
    assert found is not None
    assert found[0] == "authority announced"
    assert found[1].coming not in (None, noted.coming)


def test_another_host_name_makes_a_leaf() -> None:
    found = rotation.step(fresh(), replace(POLICY, hosts=("other",)), NOW, acknowledged=True)
    assert found is not None
    assert found[0] == "leaf made"


def test_after_a_year_without_power() -> None:
    found = rotation.step(fresh(), POLICY, NOW + 365 * DAY, acknowledged=True)
    assert found is not None
    assert found[0] == "authority made"
    assert trusts(found[1].bundle(), found[1].leaf, NOW + 365 * DAY)


def test_secret_holds_all_of_it() -> None:
    keyring = replace(fresh(), coming=authority.make_authority(NOW, DAY), going=fresh().bundle()).note_bundled(NOW)
    data = rotation.to_secret(keyring)
    assert rotation.from_secret({key: value for key, value in data.items() if value is not None}) == keyring
    assert rotation.to_secret(replace(keyring, coming=None, going=None))["next-ca.key"] is None


@pytest.mark.parametrize("data", [None, {}, {"ca.crt": "!", "ca.key": "eA=="}, {"ca.crt": "eA==", "tls.crt": ""}])
def test_a_secret_that_cannot_be_read_is_an_empty_one(data: dict[str, str] | None) -> None:
    assert rotation.from_secret(data) == Keyring()
    assert rotation.from_secret({"bundle-since": "/w=="}).settled(NOW, DAY) is False
