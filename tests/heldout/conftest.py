"""A report's inputs, and headless Chromium to open it in."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile

import pytest

from tests.heldout.pages import Case

AXE = "4.14.1"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path / "run")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield session
    session.quit()


@pytest.fixture(scope="session")
def axe(request, tmp_path_factory):
    """Source of axe-core, fetched once by npm into pytest's cache and held against its sha256."""
    cached = request.config.cache.mkdir("axe-core") / f"axe-{AXE}.min.js"
    if not cached.is_file():
        if shutil.which("npm") is None:
            pytest.skip(f"axe-core {AXE} is not in pytest's cache and npm is not installed")
        folder = tmp_path_factory.mktemp("npm")
        command = ["npm", "pack", f"axe-core@{AXE}", "--silent"]
        try:
            subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=60, check=True
            )
        except subprocess.SubprocessError as error:
            said = (getattr(error, "stderr", None) or str(error)).strip()[-200:]
            pytest.skip(f"npm could not fetch axe-core {AXE}: {said}")
        with tarfile.open(folder / f"axe-core-{AXE}.tgz") as packed:
            content = packed.extractfile("package/axe.min.js").read()
        cached.write_bytes(content)
    text = cached.read_bytes()
    assert hashlib.sha256(text).hexdigest() == AXE_SHA256
    return text.decode()
