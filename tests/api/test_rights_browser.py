"""The form in a real browser: axe finds nothing on any page, the keyboard alone is enough, and it fits a small screen without scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rights_stage import Desk, answering

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from at_hand import unavailable
from broker_servers import program
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service

AXE = "axe-core@4.14.0"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script, fetched for this run; it is not part of the product."""
    folder, npm = tmp_path_factory.mktemp("axe"), shutil.which("npm")
    if npm is None:
        unavailable("npm is not there to fetch axe-core")
    got = subprocess.run(
        [npm or "", "pack", AXE, "--silent"], cwd=folder, capture_output=True, timeout=120, check=False
    )
    packed = list(folder.glob("*.tgz"))
    if got.returncode or not packed:
        unavailable("axe-core cannot be fetched")
    with tarfile.open(packed[0]) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    browser = program("chromium")
    driver = program("chromedriver", "chromium-driver")
    options = ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=320,640"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chrome')}")
    found = Chrome(options=options, service=Service(driver))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with answering(tmp_path_factory.mktemp("shop")) as found:
        yield found


def violations(chrome: Chrome, axe: str) -> list[Any]:
    # The page's own policy forbids scripts, so the tool goes in through the debugger, as an extension would.
    chrome.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    run = f"axe.run(document, {{runOnly: {TAGS!r}}}).then(r => JSON.stringify([r.passes.length, r.violations.map(v => [v.id, v.nodes.map(n => n.html)])]))"
    got = chrome.execute_cdp_cmd("Runtime.evaluate", {"expression": run, "awaitPromise": True, "returnByValue": True})
    passed, found = json.loads(got["result"]["value"])
    assert passed > 5  # it did look
    return list(found)


def press(chrome: Chrome, *keys: str) -> None:
    for key in keys:
        chrome.switch_to.active_element.send_keys(key)


def enter(chrome: Chrome) -> None:
    """Press Enter and wait for the page it leads to."""
    chrome.execute_script("document.documentElement.dataset.left = 'yes'")
    press(chrome, Keys.ENTER)
    until = time.monotonic() + 10
    arrived = "return document.readyState === 'complete' && !document.documentElement.dataset.left"
    while not chrome.execute_script(arrived):
        assert time.monotonic() < until
        time.sleep(0.02)


def focused(chrome: Chrome) -> str:
    return str(
        chrome.execute_script("const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName")
    )


def walk_to(chrome: Chrome, wanted: str, most: int = 40) -> None:
    """Press Tab until the wanted place has the focus, which must be visible there."""
    for _ in range(most):
        if focused(chrome) == wanted:
            width = chrome.execute_script("return getComputedStyle(document.activeElement).outlineWidth")
            assert float(width.removesuffix("px")) >= 2, wanted
            return
        chrome.execute_cdp_cmd(
            "Input.dispatchKeyEvent", {"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        )
        chrome.execute_cdp_cmd(
            "Input.dispatchKeyEvent", {"type": "keyUp", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        )
    raise AssertionError(f"the keyboard does not reach {wanted}")


def test_the_keyboard_alone_is_enough_and_axe_finds_nothing(desk: Desk, chrome: Chrome, axe: str) -> None:
    chrome.get(f"{desk.served.url}/rights")
    found = {"start": violations(chrome, axe)}
    walk_to(chrome, "/rights/ask/erasure")
    enter(chrome)
    found["form"] = violations(chrome, axe)
    walk_to(chrome, "email")
    press(chrome, "nobody")
    enter(chrome)
    assert chrome.title.startswith("Error: ")
    assert chrome.execute_script("return document.activeElement.className") == "summary"
    found["errors"] = violations(chrome, axe)
    walk_to(chrome, "#email")
    press(chrome, Keys.ENTER)
    walk_to(chrome, "email")
    assert chrome.switch_to.active_element.get_attribute("value") == "nobody"
    press(chrome, Keys.CONTROL + "a", "kay@example.com")
    walk_to(chrome, "place")
    press(chrome, "California")
    walk_to(chrome, "child")
    walk_to(chrome, "BUTTON")
    enter(chrome)
    assert "/rights/request/" in chrome.current_url
    found["receipt"] = violations(chrome, axe)
    receipt = chrome.current_url.rpartition("/")[2]
    [ask] = desk.asks().values()
    assert (ask.identifiers[0].value, ask.jurisdiction, ask.child) == ("kay@example.com", "US-CA", False)
    code = desk.letters.code("kay@example.com")
    walk_to(chrome, "code")
    press(chrome, "WRONG")
    enter(chrome)
    found["wrong code"] = violations(chrome, axe)
    chrome.get(f"{desk.served.url}/rights/proof/{receipt}?code={code}")
    found["proof"] = violations(chrome, axe)
    walk_to(chrome, "BUTTON")
    enter(chrome)
    found["thanks"] = violations(chrome, axe)
    assert [one.action for one in desk.words()] == ["verify"]
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


PAGES = ["/rights", "/rights/ask/opt_out", "/rights/ask/rectification", "/rights/ask/appeal", "/rights/request/0000"]


def test_every_page_is_sound_and_fits_a_small_screen(desk: Desk, chrome: Chrome, axe: str) -> None:
    wrong: dict[str, Any] = {}
    for path in PAGES:
        chrome.get(desk.served.url + path)
        wide = chrome.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        small = chrome.execute_script(
            "return [...document.querySelectorAll('a,button,input:not([type=hidden]),select')]"
            ".filter(e => {const r = e.getBoundingClientRect(); return r.width < 24 || r.height < 24}).map(e => e.outerHTML)"
        )
        if found := [*violations(chrome, axe), *([f"{wide} pixels too wide"] if wide > 0 else []), *small]:
            wrong[path] = found
    assert wrong == {}


def test_axe_would_have_found_something(chrome: Chrome, axe: str) -> None:
    chrome.get("data:text/html,<html><body><img src=x><input></body></html>")
    assert {name for name, _ in violations(chrome, axe)} >= {"image-alt", "label", "html-has-lang"}
