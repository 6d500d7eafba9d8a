"""Keys, sessions, hosts, origins and the headers of every answer."""

import asyncio

import pytest
from api_world import KEY, new_client
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from store_nouns import FakeClock

from api.auth import BOOTSTRAP, COOKIE, KeyRing, Principal, check_binding, is_loopback, read_keys
from api.errors import BindingRefused, KeyRefused
from db.store import SqlStore

GEMM = {"op": "gemm", "m": 4, "n": 8, "k": 16, "dtype": "fp32"}


@pytest.fixture
def locked(store: SqlStore, clock: FakeClock) -> TestClient:
    return new_client(store, clock, keys=("another-key-of-the-team", KEY))


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/nothing", "/metrics", "/openapi.json", "/v1/schedules/best"])
def test_without_the_key_nothing_is_told(locked: TestClient, path: str) -> None:
    missing = locked.get(path)
    assert (missing.status_code, missing.json()["code"]) == (401, "key-missing")
    assert missing.headers["www-authenticate"].startswith("Bearer")
    for wrong in (f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer ", "Bearer clé".encode("latin-1")):
        refused = locked.get(path, headers={"Authorization": wrong})  # type: ignore[dict-item]
        assert (refused.status_code, refused.json()["code"]) == (401, "key-refused")
    assert locked.get(path, headers={"Authorization": f"Basic {KEY}"}).json()["code"] == "key-missing"


def test_any_of_the_keys_opens(locked: TestClient) -> None:
    for key in ("another-key-of-the-team", KEY):
        assert locked.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    body = {"workload": GEMM}
    assert locked.post("/v1/jobs", json=body, headers={"Authorization": f"bearer {KEY}"}).status_code == 201


def test_probes_and_the_sign_in_page_are_open(locked: TestClient) -> None:
    assert locked.get("/health/live").status_code == 200
    assert locked.get("/health/ready").status_code == 200
    assert "Sign in" in locked.get("/login").text


def test_a_browser_is_sent_to_sign_in_and_comes_back(locked: TestClient) -> None:
    page = {"Accept": "text/html"}
    sent = locked.get("/jobs/job_x", headers=page, follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=/jobs/job_x")
    wrong = locked.post("/login", data={"key": "not-the-key", "next": "/"}, follow_redirects=False)
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    entered = locked.post("/login", data={"key": KEY, "next": "/"}, follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert KEY not in cookie
    assert locked.get("/", headers=page).status_code == 200
    assert locked.get("/v1/jobs").status_code == 200
    left = locked.post("/logout", follow_redirects=False)
    assert left.headers["location"] == "/login"
    assert locked.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1", "é"])
def test_signing_in_never_leads_to_another_host(locked: TestClient, target: str) -> None:
    answer = locked.post("/login", data={"key": KEY, "next": target}, follow_redirects=False)
    assert answer.headers["location"] == "/"


def session_opens(ring: KeyRing, value: str) -> bool:
    headers = Headers({"cookie": f"{COOKIE}={value}"})
    try:
        principal = asyncio.run(ring.authenticate(headers))
    except KeyRefused:
        return False
    assert principal == Principal(BOOTSTRAP, by_cookie=True)
    return True


def test_a_session_expires_and_cannot_be_stretched(store: SqlStore, clock: FakeClock) -> None:
    ring = KeyRing(store, [KEY], clock.now)
    value = ring.new_session(Principal(BOOTSTRAP), 60.0)
    clock.at += 59.0
    assert session_opens(ring, value)
    assert session_opens(KeyRing(store, [KEY], clock.now), value), "another process of the service takes it too"
    assert not session_opens(KeyRing(store, ["another-key-of-the-team"], clock.now), value)
    assert not session_opens(ring, "9" + value)
    assert not session_opens(ring, value.replace(BOOTSTRAP, "key_0123456789abcdef"))
    for garbage in ("", ".", "1060", "x.y", "1060.é", "1060.bootstrap."):
        with pytest.raises(KeyRefused):
            asyncio.run(ring._session(garbage))
    clock.at += 1.0
    assert not session_opens(ring, value)


def test_a_forged_cookie_is_refused(locked: TestClient) -> None:
    for value in ("x", '"', "=;", "9999999999.deadbeef"):
        answer = locked.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={value}"})
        assert answer.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
    ],
)
def test_another_sites_page_changes_nothing(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/v1/jobs", json={"workload": GEMM}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross-site")
    assert client.get("/v1/jobs", headers=headers).status_code == 200
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/jobs", json={"workload": GEMM}, headers=own).status_code == 201


def test_without_a_key_only_loopback_names_are_answered(store: SqlStore, clock: FakeClock) -> None:
    with new_client(store, clock, allowed_hosts=("tuner.lan",)) as client:
        for host in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.9.9.9", "Tuner.lan:80"):
            assert client.get("/v1/jobs", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.5:8000", ""):
            answer = client.get("/v1/jobs", headers={"Host": host})
            assert (answer.status_code, answer.json()["code"]) == (403, "host-refused"), host


def test_without_a_key_no_other_address_is_bound() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"):
        assert is_loopback(host)
        check_binding(host, keyed=False)
    for host in ("0.0.0.0", "::", "", "10.0.0.5", "example.org", "127.0.0.1.example.org", "127.0.0.256"):
        with pytest.raises(BindingRefused, match="key file"):
            check_binding(host, keyed=False)
        check_binding(host, keyed=True)


def test_key_files() -> None:
    assert read_keys(f"# team\n{KEY}\n\n another-key-of-the-team \n") == (KEY, "another-key-of-the-team")
    for text in ("", "# nothing\n", "short\n", f"{KEY} with spaces\n", "é" * 20):
        with pytest.raises(ValueError, match="key"):
            read_keys(text)


@pytest.mark.parametrize("path", ["/", "/v1/jobs", "/v1/nothing", "/health/live", "/openapi.json"])
def test_every_answer_carries_the_security_headers(steady: TestClient, path: str) -> None:
    headers = steady.get(path).headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_the_doors_own_refusals_carry_them_too(locked: TestClient) -> None:
    assert "content-security-policy" in locked.get("/v1/jobs").headers
