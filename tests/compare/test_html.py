"""comparison.html: complete, alone, and nobody's text is anything but text."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html import escape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from minillm.compare import files
from minillm.compare.report.charts import Scale, charts, curve, thinned
from minillm.compare.report.page import page
from tests.compare.conftest import NASTY
from tests.compare.made import Workshop, measurement

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
PHONE = """<body><iframe style="width: 390px; height: 900px; border: 0" srcdoc="{page}"></iframe><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument
  const heights = [...page.querySelectorAll("svg text")].map((text) => text.getBoundingClientRect().height)
  document.title = [page.documentElement.scrollWidth, Math.min(...heights)].join()
}}
</script>"""


def opened(address: str, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A page's content after its scripts have run, and what the browser said."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *options]
    return subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=60, check=True)


def test_the_verdicts_come_first_and_everything_is_there(result: dict[str, Any]) -> None:
    text = page(result)
    order = ["1.27", "failed: planted", "<table", "4 rounds", "<svg", "Disturbed rounds", "What differs", "What ran"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    for part in ("1 other process(es) on the GPU", "norm.name", "torch</td><td>2.13", "optim.lr=0.01", "round 2: 1.2"):
        assert part in text
    assert text.count("<svg") == len(charts(result)) == 4  # of the GPU's memory nothing is known here
    samples = [one["tokens_per_sec"] for variant in result["variants"] for one in variant["rounds"]]
    assert len(samples) == 8 and all(f"{rate:,.0f}" in text for rate in samples)


def test_the_page_asks_the_network_for_nothing_and_has_no_script(result: dict[str, Any]) -> None:
    text = page(result)
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script|<link|<iframe", text)
    assert "default-src 'none'" in text


def test_what_the_user_wrote_is_text(result: dict[str, Any]) -> None:
    hostile = result | {"command": NASTY, "env": {"device": NASTY}, "differences": {NASTY: [NASTY] * 3}}
    hostile["variants"][0]["config"]["tokenizer"]["path"] = NASTY
    text = page(hostile)
    assert "<script" not in text
    assert text.count("&lt;script&gt;document") > 10


def test_a_chart_is_the_same_on_the_page_and_as_a_picture(result: dict[str, Any]) -> None:
    for drawing in charts(result).values():
        svg = ElementTree.fromstring(drawing.svg())
        image = drawing.image()
        assert len([shape for shape in svg if shape.tag != "title"]) == len(drawing.shapes)
        assert image.size == (2 * drawing.width, 2 * drawing.height)
        assert len(image.getcolors(1 << 20) or ()) > 10


def test_a_disturbed_round_is_hollow_and_the_interval_lies_around_the_estimate(result: dict[str, Any]) -> None:
    svg = charts(result)["ratio"].svg()
    assert svg.count("<circle") == 4
    assert re.findall(r"fill:var\(--ink-paper\)[^>]*><title>round (\d)", svg) == ["2"]
    (low, high), (estimate, _) = (
        [float(point.split(",")[0]) for point in points.split()]
        for points, width in re.findall(r'points="([^"]+)"[^>]*stroke-width:(\d)', svg)
        if width in "72"
    )
    assert low < estimate < high


def test_every_axis_has_its_unit(result: dict[str, Any]) -> None:
    for variant in result["variants"]:
        variant["memory"]["peak_allocated_gib"] = 21.3
    units = {
        "ratio": ["ratio of tokens/s"],
        "throughput": ["tokens/s"],
        "memory": ["GiB"],
        "loss": ["nats/token", "optimizer step"],
        "loss_difference": ["nats/token", "optimizer step"],
    }
    drawn = charts(result)
    assert set(drawn) == set(units)
    for name, drawing in drawn.items():
        assert all(f">{unit}</text>" in drawing.svg() for unit in units[name])


def test_what_was_recorded_is_said_in_words(result: dict[str, Any]) -> None:
    text = page(result | {"corpus": {"val_tokens": 133115, "bytes_per_token": 3.54782, "hash": "abc"}})
    for cells in ("data: val tokens</td><td>133,115", "data: bytes per token</td><td>3.548", "data: hash</td><td>abc"):
        assert cells in text


def test_times_that_mean_nothing_are_not_drawn(result: dict[str, Any]) -> None:
    for variant in result["variants"]:
        variant |= {"timings_valid": False, "ratio": None, "verdict": None}
    assert {"ratio", "throughput"}.isdisjoint(charts(result))
    assert "(invalid)" in page(result)


def test_nothing_measured_is_a_page_too(tmp_path: Path) -> None:
    files.write(tmp_path, measurement(), "interrupted")
    text = (tmp_path / "comparison.html").read_text()
    assert "interrupted" in text and "<svg" not in text


def test_a_loss_that_is_no_number_leaves_a_gap(shop: Workshop) -> None:
    assert curve({"2": 3.0, "1": None, "10": 2.0}) == [(2, 3.0), (10, 2.0)]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 815, ["0", "200", "400", "600", "800"]),
        (0.991, 1.034, ["1.00", "1.01", "1.02", "1.03"]),
        (3, 3, ["3.0"]),
    ],
)
def test_ticks_are_round(low: float, high: float, labels: list[str]) -> None:
    assert [label for _, label in Scale(low, high, 0, 100).ticks()] == labels


def test_a_long_curve_is_thinned_to_means() -> None:
    points = thinned([(step, step % 2) for step in range(10_000)])
    assert len(points) <= 300
    assert {y for _, y in points} == {0.5}


@pytest.mark.process
@needs_a_browser
def test_a_browser_shows_it_without_a_complaint(result: dict[str, Any], tmp_path: Path) -> None:
    options = ["--enable-logging=stderr", "--window-size=900,1200", f"--screenshot={tmp_path / 'page.png'}"]
    shown = opened((tmp_path / "comparison.html").as_uri(), tmp_path / "profile", *options)
    assert "CONSOLE" not in shown.stderr
    assert "<title>norm compared</title>" in shown.stdout
    assert len(Image.open(tmp_path / "page.png").convert("RGB").getcolors(1 << 24) or ()) > 50


@pytest.mark.process
@needs_a_browser
def test_on_a_phone_nothing_is_cut_off_and_the_charts_can_be_read(result: dict[str, Any], tmp_path: Path) -> None:
    """Tables that are wider scroll by themselves. Pixels: the page's width, and the smallest letters' height."""
    assert 'name="viewport" content="width=device-width"' in page(result)
    (tmp_path / "phone.html").write_text(PHONE.format(page=escape(page(result))))
    shown = opened((tmp_path / "phone.html").as_uri(), tmp_path / "profile")
    width, letters = map(float, shown.stdout.partition("<title>")[2].partition("</title>")[0].split(","))
    assert width <= 390 and letters >= 9
