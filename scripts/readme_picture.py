"""Takes the README's picture: the metrics of the demo's job in MLflow, as a browser shows them.

    make demo KEEP=1
    .venv/bin/python -m pip install --target .venv/playwright playwright
    PYTHONPATH=.venv/playwright .venv/bin/python -m scripts.readme_picture

The demo must be running. Playwright drives the system's Chromium (Debian: `apt install chromium`),
because its own browsers would have to be downloaded.
"""

import io
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from examples import demo
from service.cli.stack import lock
from service.cli.terminal import local_key

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "images" / "mlflow.png"
SIZE: Final[Any] = {"width": 1000, "height": 850}
SHOWN: Final[Any] = {"x": 46, "y": 0, "width": 954, "height": 556}
"""From the side bar to the end of the first chart."""
SCALE: Final = 1.6
CHARTS: Final = "loss"
COLORS: Final = 96
TIMEOUT_SECONDS: Final = 120
DRAWING_MILLISECONDS: Final = 3000


def main() -> int:
    address = lock.read_address(demo.HOME)
    link = local_key.login_url(demo.HOME, address.url) if address else None
    if address is None or link is None:
        print("The demo is not running: start it with `make demo KEEP=1`.", file=sys.stderr)
        return 1
    with demo.client_of(address) as client:
        job = next(iter(client.pages("/v1/jobs")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport=SIZE, device_scale_factor=SCALE)
        page.set_default_timeout(1000 * TIMEOUT_SECONDS)
        page.goto(link)
        page.wait_for_url("**/mlflow/**")
        show_metrics(page, job["mlflow_url"])
        taken = page.screenshot(clip=SHOWN)
        browser.close()
    save(taken)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")
    return 0


def show_metrics(page: Page, run_url: str) -> None:
    """The charts alone, without the assistant; the training loss over the whole width."""
    run, _, query = run_url.partition("?")
    page.goto(f"{run}/model-metrics?{query}")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Toggle sidebar").click()
    page.get_by_placeholder("Search metric charts").fill(CHARTS)
    page.wait_for_timeout(DRAWING_MILLISECONDS)  # only the charts that were asked for remain
    page.locator(".js-plotly-plot .lines").first.wait_for()
    widen_first_chart(page)
    page.wait_for_timeout(DRAWING_MILLISECONDS)


def widen_first_chart(page: Page) -> None:
    """By its lower right corner; somewhat lower, too."""
    chart = page.locator(".react-resizable").first.bounding_box()
    assert chart is not None
    x, y = chart["x"] + chart["width"] - 8, chart["y"] + chart["height"] - 8
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(SIZE["width"] - 30, y - 100, steps=10)
    page.mouse.up()


def save(taken: bytes) -> None:
    """With few colors: a page of text and lines needs no more, and stays small."""
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    PICTURE.parent.mkdir(exist_ok=True)
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
