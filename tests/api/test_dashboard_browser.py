"""The job page in headless Chromium: the curve is drawn, rows arrive live, and the page asks no other host."""

import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest
from api_world import KEY, LiveServer, finish, measure
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from store_nouns import FakeClock, claimed, job_spec, ok

from db.store import SqlStore

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1400",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    binary = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt-get install -y chromium chromium-driver")
    profile = tempfile.mkdtemp(prefix="tilewright-browser-")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()
    shutil.rmtree(profile, ignore_errors=True)


def wait(browser: webdriver.Chrome, condition: Callable[[], object]) -> None:
    """Until the condition holds; an element that a refresh has just replaced is looked up again."""
    ignored = [StaleElementReferenceException]
    WebDriverWait(browser, 30, poll_frequency=0.1, ignored_exceptions=ignored).until(lambda _: condition())


def rows(browser: webdriver.Chrome) -> int:
    return len(browser.find_elements(By.CSS_SELECTOR, "tr[data-trial]"))


def curve(browser: webdriver.Chrome) -> list[list[float]]:
    """The y values of every line that the chart holds."""
    script = "return (document.getElementById('curve').data || []).filter(t => t.mode === 'lines').map(t => [...t.y])"
    found: list[list[float]] = browser.execute_script(script)
    return found


def test_curve_and_rows_arrive_live(browser: webdriver.Chrome, store: SqlStore, clock: FakeClock) -> None:
    lease = claimed(store, job_spec(name="<b>live</b>", max_trials=12))
    store.set_baseline(lease, lease.tasks[0].task_id, "torch.matmul", ok(0.002))
    with LiveServer(store, clock) as server:
        browser.get(f"{server.url}/jobs/{lease.job_id}")
        assert browser.find_element(By.TAG_NAME, "h1").text == "<b>live</b>"
        assert rows(browser) == 0
        wait(browser, lambda: browser.find_element(By.ID, "curve-empty").is_displayed())
        measure(store, lease, [0.003, None, 0.0015])
        wait(browser, lambda: rows(browser) == 3)
        wait(browser, lambda: curve(browser) == [[0.003, 0.003, 0.0015], [0.002, 0.002]])
        assert browser.find_elements(By.CSS_SELECTOR, "#curve .scatterlayer .trace path.js-line")
        finish(store, lease)
        wait(browser, lambda: browser.find_element(By.ID, "state").text == "completed")
        assert "2.00×" in browser.find_element(By.CSS_SELECTOR, ".tasks .gain").text
        fetched: list[str] = browser.execute_script(
            "return performance.getEntriesByType('resource').map(entry => entry.name)"
        )
        assert fetched
        assert all(name.startswith(server.url) for name in fetched)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_pausing_and_filtering_by_hand(browser: webdriver.Chrome, store: SqlStore, clock: FakeClock) -> None:
    lease = claimed(store, job_spec(max_trials=12))
    measure(store, lease, [0.003, None, 0.0015])
    with LiveServer(store, clock) as server:
        browser.get(f"{server.url}/jobs/{lease.job_id}")
        browser.find_element(By.CSS_SELECTOR, "option[value=BUILD_ERROR]").click()
        wait(browser, lambda: rows(browser) == 1)
        browser.find_element(By.CSS_SELECTOR, "button[data-action=pause]").click()
        wait(browser, lambda: browser.find_element(By.ID, "state").text == "paused")
        assert rows(browser) == 1  # the filter outlives a refresh


def test_signing_in_opens_the_dashboard(browser: webdriver.Chrome, store: SqlStore, clock: FakeClock) -> None:
    with LiveServer(store, clock, keys=(KEY,)) as server:
        browser.get(f"{server.url}/")
        browser.find_element(By.NAME, "key").send_keys(KEY)
        browser.find_element(By.CSS_SELECTOR, "form.sign-in button").click()
        wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".empty h2"))
        assert browser.find_element(By.TAG_NAME, "h1").text == "Jobs"
        browser.find_element(By.CSS_SELECTOR, ".top form button").click()
        wait(browser, lambda: browser.find_elements(By.NAME, "key"))
