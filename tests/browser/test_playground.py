"""The playground in Chromium: ``make test-browser``. Screenshots go to ``.browser``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.drafts import chain, drafting
from tessera_testing.pool import ServerPool

pytestmark = pytest.mark.browser
KEY = "sesame"
CHROMIUM = "/usr/bin/chromium"
SHOTS = Path(".browser")
MILLISECONDS = 120_000


@pytest.fixture(scope="module")
def playground(server_pool: ServerPool) -> Server:
    """Everything on, behind a key."""
    return server_pool.get(
        *("--toploc-verification", "--enable-metrics", "--tessera-ui", "--api-key", KEY),
        *("--tile-spec", *drafting("STANDALONE", chain(3))),
    )


@pytest.fixture
def page(playground: Server) -> Iterator[Any]:
    """The page, and nothing that it complains about."""
    sync_api: Any = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as started:
        options = {"executable_path": CHROMIUM} if Path(CHROMIUM).exists() else {}
        browser = started.chromium.launch(args=["--no-sandbox"], **options)
        opened = browser.new_page(viewport={"width": 1000, "height": 900})
        opened.set_default_timeout(MILLISECONDS)
        problems: list[str] = []
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.goto(f"{playground.url}/tessera")
        yield opened
        browser.close()
        assert problems == []


def connect(page: Any) -> None:
    """Give the key."""
    page.fill("#key", KEY)
    page.click("#connect button")
    page.wait_for_selector("#about:has-text('on SGLang')")


def test_without_a_key(page: Any) -> None:
    """It says what to do."""
    page.wait_for_selector("#about.error:has-text('API key')")


def test_similarity_and_tokens(page: Any) -> None:
    """A heat map and a map of six texts; the chosen token is nearest to itself. Text is never markup."""
    connect(page)
    page.fill("#similarity textarea", "a = 1\nb = 2\n<img src=x onerror=alert(1)>")
    page.click("#similarity button")
    page.wait_for_selector("#similarity .heat rect")
    assert page.locator("#similarity .heat rect").count() == 9
    assert page.locator("#similarity .plane circle").count() == 3
    assert page.locator("img").count() == 0
    page.click("#tokens form button")
    page.wait_for_selector("#tokens .token")
    page.locator("#tokens .token").nth(2).click()
    assert "cosine 1.0000" in page.locator("#tokens .token").nth(2).get_attribute("title")
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / "similarity.png", full_page=True)


def test_fingerprints_and_widths(page: Any, playground: Server) -> None:
    """An answer passes, and fails with its tokens reversed; steps are drawn while the server decodes."""
    connect(page)
    page.fill("#fingerprints input[name=count]", "60")
    page.click("#fingerprints form button:not([type])")
    page.wait_for_selector("#fingerprints button[name=verify]:enabled")
    page.click("#fingerprints button[name=verify]")
    page.wait_for_selector("#fingerprints .verdict.pass")
    page.click("#fingerprints button[name=tamper]")
    page.wait_for_selector("#fingerprints .verdict.fail")
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    headers = {"Authorization": f"Bearer {KEY}"}
    httpx.post(f"{playground.url}/generate", json=body, headers=headers, timeout=120).raise_for_status()
    page.wait_for_selector("#widths .out rect.step")
    page.wait_for_selector("#metrics td:has-text('tessera:fingerprints_built_total')")
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / "fingerprints.png", full_page=True)
