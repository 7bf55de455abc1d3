"""The report: one offline page, well-formed, with the plan's own figures, readable everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from document_samples import EMPTY_PLAN, PLAN
from graphs import residual_chain

import planner
from planner.analysis.sweep import sweep_profile
from planner.cli import main
from planner.cli.console import Console
from planner.cli.plotting import draw_plan
from planner.documents import Boundary, Exclusion, Pins, Plan, Segment
from planner.graph import Graph
from planner.planning.offline import from_profile
from planner.reports.frontier_chart import frontier_chart
from planner.reports.html import report_html
from planner.reports.style import STYLE
from planner.reports.svg import Chart, chart_html
from planner.reviews import report
from planner.search import floor

PROFILE = residual_chain(6, 1 << 16, 1 << 18)
MIDDLE = from_profile(PROFILE, (floor(Graph.of(PROFILE))[1] + PROFILE.plain_peak_bytes) // 2)
VOID = {"meta", "br", "img", "hr", "link", "input"}
FIGURES = (
    "budget_bytes",
    "plain_peak_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "predicted_overhead_ratio",
    "floor_bytes",
    "gap",
)


class Page(HTMLParser):
    """Reads a page and fails on tags that do not close as they opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def figures(self) -> dict[str, str | None]:
        return {a["data-field"] or "": a["data-value"] for _, a in self.tags if "data-field" in a}


def figures_of(plan: Plan) -> dict[str, str]:
    """Return the figures of a plan as the page must show them."""
    found = {name: getattr(plan, name) for name in FIGURES}
    return {name: str(value) for name, value in found.items() if value is not None}


PAGES = {
    "full": (MIDDLE, report(MIDDLE, profile=PROFILE)),
    "no profile": (PLAN, report(PLAN, profile=None)),
    "empty": (EMPTY_PLAN, report(EMPTY_PLAN, profile=None)),
}
EACH = pytest.mark.parametrize(("plan", "page"), PAGES.values(), ids=PAGES)


@EACH
def test_the_page_is_well_formed_and_shows_the_figures_of_the_plan(plan: Plan, page: str) -> None:
    read = Page(page)
    assert read.figures == figures_of(plan)
    assert plan.model_class in read.text and plan.fingerprint in read.text
    assert len(page.encode()) < 1_000_000


@EACH
def test_the_page_asks_nothing_of_any_network(plan: Plan, page: str) -> None:
    for tag, attributes in Page(page).tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "img", "base"}
        for name in ("src", "href", "srcset", "action", "data", "poster", "style"):
            assert not re.search(r"https?:|//|url\(", attributes.get(name) or ""), (tag, name)
    assert not re.search(r"url\(|@import|https?:", STYLE)


@EACH
def test_the_page_works_on_a_phone_in_the_dark_and_on_paper(plan: Plan, page: str) -> None:
    metas = [a for tag, a in Page(page).tags if tag == "meta"]
    assert {"name": "viewport", "content": "width=device-width,initial-scale=1"} in metas
    assert "prefers-color-scheme:dark" in page and "@media print" in page
    assert '<html lang="en">' in page


def test_charts_say_what_they_show_to_those_who_do_not_see_them() -> None:
    read = Page(PAGES["full"][1])
    charts = [a for tag, a in read.tags if tag == "svg"]
    assert len(charts) == 3
    ids = {a.get("id") for _, a in read.tags}
    assert len([i for i in ids if i]) == 6
    for chart in charts:
        assert chart["role"] == "img"
        assert set((chart["aria-labelledby"] or "").split()) <= ids
    scrolled = [a for _, a in read.tags if a.get("class") == "scroll"]
    assert scrolled and all(a["tabindex"] == "0" and a["aria-label"] for a in scrolled)
    heads = [a for tag, a in read.tags if tag == "th"]
    assert heads and all(a["scope"] in ("row", "col") for a in heads)


def test_text_from_documents_is_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    plan = replace(
        PLAN,
        model_class=evil,
        fingerprint=evil,
        solver=evil,
        notes=(evil,),
        exclusions=(Exclusion(evil, evil),),
        pins=Pins((evil,), (evil,)),
        segments=(Segment(Boundary(evil, 0, "enter"), Boundary(evil, 0, "exit"), keep=(evil,)),),
    )
    for page in (report_html(plan), plan._repr_html_()):
        read = Page(page)
        assert "script" not in {tag for tag, _ in read.tags}
        assert evil in " ".join(read.words)


def test_a_profile_shows_itself_in_a_notebook() -> None:
    evil = "<script>alert(1)</script>"
    shown = replace(PROFILE, model_class=evil)._repr_html_()
    assert shown is not None and "plain peak" in shown and "<script>" not in shown


@pytest.mark.parametrize(("dark", "wanted"), [(False, 4.5), (True, 4.5)])
def test_text_has_enough_contrast(dark: bool, wanted: float) -> None:
    themes = re.findall(r"--ground:#.*?(?:;color|\})", STYLE, flags=re.S)
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]+)", themes[dark]))
    for name in ("ink", "soft", "accent", "good", "bad"):
        for ground in ("ground", "card"):
            assert contrast(colours[name], colours[ground]) >= wanted, (name, ground)
    for number in range(8):
        assert contrast(colours[f"k{number}"], colours["ground"]) >= 3, number


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_a_plan_leaves_out_is_left_out_of_its_frontier_too() -> None:
    unit = PROFILE.units[1].name
    plan = replace(MIDDLE, exclusions=(Exclusion(unit, "its replay differs"),))
    page = report(plan, profile=PROFILE)
    assert "its replay differs" in Page(page).text
    without = sweep_profile(PROFILE, exclusions=plan.exclusions, baselines=False)
    assert without.floor_bytes >= sweep_profile(PROFILE, baselines=False).floor_bytes


def test_a_checkpointed_unit_stands_in_the_report_without_reasons() -> None:
    ends = Boundary(PROFILE.units[1].name, 0, "enter"), Boundary(PROFILE.units[1].name, 0, "exit")
    plan = replace(MIDDLE, segments=(Segment(*ends, runtime="checkpoint"),))
    page = Page(report(plan, profile=PROFILE))
    assert "by checkpoint" in page.text


def test_a_notebook_shows_plans_and_frontiers() -> None:
    frontier = sweep_profile(PROFILE, points=8)
    for shown in (MIDDLE, EMPTY_PLAN, frontier):
        read = Page(shown._repr_html_())
        assert {"html", "body"}.isdisjoint(tag for tag, _ in read.tags)
    assert Page(MIDDLE._repr_html_()).figures == figures_of(MIDDLE)
    assert "least overhead" in Page(frontier._repr_html_()).text


def test_the_frontier_chart_marks_the_plan() -> None:
    frontier = sweep_profile(PROFILE)
    legend = [text for _, text in frontier_chart(frontier, MIDDLE).legend]
    assert any(text.startswith("this plan") for text in legend)
    assert "budget" in " ".join(legend)
    assert not any("this plan" in text for _, text in frontier_chart(frontier).legend)


def test_a_chart_of_nothing_is_still_a_chart() -> None:
    Page(chart_html(Chart("none", "Nothing", "Nothing at all.", ())))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the files of a plan and its profile, in a fresh working folder."""
    monkeypatch.chdir(tmp_path)
    MIDDLE.save("plan.json")
    PROFILE.save("profile.json")
    return "plan.json", "profile.json"


def test_the_command_writes_the_page_and_nothing_twice(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan, profile = files
    assert main(["report", plan, "--profile", profile, "-o", "out/report.html"]) == 0
    assert "wrote out/report.html" in capsys.readouterr().out
    page = Path("out/report.html").read_text()
    assert page == PAGES["full"][1]
    assert main(["report", plan, "-o", "out/report.html"]) == 2
    assert Path("out/report.html").read_text() == page
    assert main(["report", plan]) == 0 and Path("plan.html").is_file()


def test_the_command_writes_a_trace_where_a_profile_is_given(files: tuple[str, str]) -> None:
    plan, profile = files
    assert main(["report", plan, "--trace", "trace.json"]) == 2
    assert not Path("plan.html").exists()
    assert main(["report", plan, "--profile", profile, "--trace", "trace.json"]) == 0
    assert Path("trace.json").read_text().startswith('{"traceEvents": [')


def test_a_profile_of_another_model_is_refused(files: tuple[str, str]) -> None:
    replace(PROFILE, fingerprint="other").save("other.json")
    assert main(["report", files[0], "--profile", "other.json"]) == 1
    assert not Path("plan.html").exists()


def test_a_sweep_is_drawn_by_matplotlib(files: tuple[str, str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["sweep", files[1], "--plot", "frontier.png", "-q"]) == 0
    assert Path("frontier.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["sweep", files[1], "--plot", "frontier.nonsense", "-q"]) == 2


def test_a_plan_is_drawn_on_its_frontier(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plots" / "frontier.svg"
    draw_plan(MIDDLE, PROFILE, path, Console(quiet=True))
    assert "<svg" in path.read_text()


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PROBE = """<script>
const root = document.documentElement;
root.dataset.wide = root.scrollWidth > root.clientWidth;
root.dataset.figures = [...document.querySelectorAll("[data-field]")]
  .map(e => e.dataset.field + "=" + e.dataset.value).join(";");
root.dataset.charts = [...document.querySelectorAll("svg")]
  .filter(s => s.getBoundingClientRect().width > 200 && s.querySelector("path")).length;
</script>"""


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.parametrize("width", [500, 1200])
def test_chromium_shows_the_figures_and_never_scrolls_sideways(tmp_path: Path, width: int) -> None:
    # The page itself holds no script; the copy that is looked at gets one that measures it.
    page = (
        PAGES["full"][1]
        .replace("<details>", "<details open>")
        .replace("</body>", PROBE + "</body>")
    )
    (tmp_path / "page.html").write_text(page)
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},900",
    ]
    command += [f"--user-data-dir={tmp_path}/data", "--dump-dom", f"file://{tmp_path}/page.html"]
    quiet = {**os.environ, "HOME": str(tmp_path)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=quiet)
    seen = Page(run.stdout[run.stdout.index("<html") :]).tags[0][1]
    assert seen["data-wide"] == "false"
    assert seen["data-charts"] == "3"
    shown = dict(pair.split("=") for pair in (seen["data-figures"] or "").split(";"))
    assert shown == figures_of(MIDDLE)


def test_planner_reads_the_page_without_torch(files: tuple[str, str]) -> None:
    program = (
        "import sys\nfrom planner.cli import main\n"
        f"code = main(['report', {files[0]!r}, '--profile', {files[1]!r}])\n"
        "sys.exit(code or 9 * ('torch' in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
    assert planner.Plan.load(files[0]) == MIDDLE
