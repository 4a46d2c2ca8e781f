#!/usr/bin/python3
"""Opens a trace's HTML report in headless Chromium and uses it as a person would.

  report_test.py REPORT.html [--screenshot FILE.png] [--dark]

What it expects is computed here from the data in the page, and the page is asked only for what it shows.
"""

import argparse
import contextlib
import json
import pathlib
import re
import sys
import time

try:
    from selenium import webdriver
except ModuleNotFoundError:
    sys.exit(f"report_test.py: {sys.executable} has no selenium. `scripts/packages test` installs it for Debian's /usr/bin/python3")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

PANELS = ["gantt", "bounds", "memory", "communication", "loss", "per_op", "per_layer", "per_worker", "per_rank", "run"]


@contextlib.contextmanager
def chromium(dark):
    options = webdriver.ChromeOptions()
    # Its sandbox does not work for root, nor /dev/shm in a container; the GPU process only writes warnings here.
    for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1600,1000",
                     "--disable-background-networking", "--disable-component-update", "--no-first-run"]:
        options.add_argument(argument)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(service=webdriver.chrome.service.Service("/usr/bin/chromedriver"), options=options)
    try:
        browser.execute_cdp_cmd("Network.enable", {})
        yield browser
    finally:
        browser.quit()


def embedded(page):
    """The data of the page, and the page itself without it."""
    match = re.search(r"<script>const report = \[(.*?)\]\[0\] \?\? null;</script>", page, re.DOTALL)
    assert match, "no data is embedded in the page"
    return json.loads(match[1])


class Tasks:
    """What of the data a filter and a window leave."""

    def __init__(self, report):
        self.report = report
        t = report["tasks"]
        self.rows = list(zip(t["worker"], t["start_us"], t["duration_us"], t["layer"], t["op"], t["tile"], t["micro_batch"],
                             t["step"]))

    def count(self, text="", op=None, rank=None, step=None, window=None):
        n = 0
        for worker, start, duration, layer, task_op, tile, micro_batch, task_step in self.rows:
            name = f"{self.report['layers'][layer]}.{self.report['ops'][task_op]}"
            name += (f"[{tile}]" if tile else "") + (f"#{micro_batch}" if micro_batch >= 0 else "")
            n += (all(word in name.lower() for word in text.lower().split())
                  and op in (None, self.report["ops"][task_op])
                  and rank in (None, self.report["workers"][worker]["rank"])
                  and step in (None, task_step)
                  and (window is None or start < window["to_us"] and start + duration > window["from_us"]))
        return n


class Page:
    def __init__(self, browser, path):
        self.browser = browser
        browser.get(path.as_uri())
        self.chart = self.find("#chart")

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def ask(self, expression):
        return self.browser.execute_script(f"return window.tegulaReport.{expression}")

    def view(self):
        return self.ask("view()")

    def wait(self, what, condition):
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, f"it never came to this: {what}"
            time.sleep(0.05)

    def wheel(self, x, delta, times=1):
        """Over the chart, at x pixels from its middle."""
        origin = webdriver.common.actions.wheel_input.ScrollOrigin.from_element(self.chart, x, 0)
        for _ in range(times):
            ActionChains(self.browser).scroll_from_origin(origin, 0, delta).perform()

    def clear(self):
        self.find("#reset").click()


def test_zoom(page, duration):
    whole = page.view()
    assert whole["from_us"] == 0 and abs(whole["to_us"] - duration) < 1e-6 * duration, whole
    page.wheel(0, -240)
    page.wait("the wheel zooms in", lambda: page.view()["to_us"] - page.view()["from_us"] < 0.9 * duration)
    near = page.view()
    assert near["from_us"] > 0 and near["to_us"] < duration, f"zooms around the pointer, not an end: {near}"
    ActionChains(page.browser).drag_and_drop_by_offset(page.chart, -200, 0).perform()
    page.wait("a drag to the left shows what is later", lambda: page.view()["from_us"] > near["from_us"])
    moved = page.view()
    assert abs((moved["to_us"] - moved["from_us"]) / (near["to_us"] - near["from_us"]) - 1) < 1e-6, "a drag does not zoom"
    page.chart.send_keys("w")
    page.wait("W zooms in", lambda: page.view()["to_us"] - page.view()["from_us"] < 0.8 * (moved["to_us"] - moved["from_us"]))
    ActionChains(page.browser).double_click(page.chart).perform()
    page.wait("a double click shows all", lambda: page.view() == whole)


def test_filter(page, tasks):
    report = tasks.report
    everything = page.ask("visibleTasks()")
    assert everything == tasks.count() > 0, (everything, tasks.count())
    text = max(report["summary"]["per_layer"], key=lambda row: row["tasks"])["name"]
    page.find("#text").send_keys(text)
    assert page.ask("visibleTasks()") == tasks.count(text=text), text
    op = min((row for row in report["summary"]["per_op"] if row["tasks"]), key=lambda row: row["tasks"])["name"]
    page.clear()
    Select(page.find("#op")).select_by_visible_text(op)
    assert page.ask("visibleTasks()") == tasks.count(op=op) < everything, op
    page.clear()
    rank, step = report["workers"][report["tasks"]["worker"][0]]["rank"], max(report["tasks"]["step"])
    Select(page.find("#rank")).select_by_value(str(rank))
    Select(page.find("#step")).select_by_value(str(step))
    assert page.ask("visibleTasks()") == tasks.count(rank=rank, step=step), (rank, step)
    page.wheel(0, -240)
    page.wait("the wheel zooms in", lambda: page.view()["from_us"] > 0)
    assert page.ask("visibleTasks()") == tasks.count(rank=rank, step=step, window=page.view())
    page.clear()
    page.find("#text").send_keys("no such task")
    assert page.ask("visibleTasks()") == 0
    page.clear()
    assert page.ask("visibleTasks()") == everything, "Reset shows all again"


def test_address(page):
    """The view comes back from the address alone."""
    op = Select(page.find("#op")).options[-1].text
    Select(page.find("#op")).select_by_visible_text(op)
    page.wheel(100, -240)
    page.wait("the address holds the view", lambda: "from=" in page.browser.current_url and "op=" in page.browser.current_url)
    time.sleep(0.5)  # for the last frame of the wheel
    before, shown = page.view(), page.ask("visibleTasks()")
    page.browser.refresh()
    page.chart = page.find("#chart")
    after = page.view()
    assert all(abs(before[key] - after[key]) < 0.01 for key in before), (before, after)
    assert Select(page.find("#op")).first_selected_option.text == op and page.ask("visibleTasks()") == shown
    page.clear()


def test_colors(page, report):
    for by, names in [("layer", report["layers"]), ("pass", report["passes"]), ("op", report["ops"])]:
        Select(page.find("#color")).select_by_visible_text(by)
        shown = page.ask("colors()")
        assert shown and all(s in names or s.endswith("others") or " to " in s for s in shown), (by, shown)
    page.clear()


def test_chart_is_drawn(page, report):
    """A busy worker's row has the colours of the legend in it, and a filter takes them away."""
    colored = """
      const c = document.getElementById('chart'), copy = new OffscreenCanvas(c.width, c.height);
      const drawing = copy.getContext('2d', {willReadFrequently: true});  // reading the chart itself earns a warning
      drawing.drawImage(c, 0, 0);
      const d = drawing.getImageData(0, 0, c.width, c.height).data;
      const wanted = new Set([...document.querySelectorAll('#legend i')].slice(0, window.tegulaReport.colors().length)
        .map(i => getComputedStyle(i).backgroundColor.match(/\\d+/g).join()));
      let n = 0;
      for (let i = 0; i < d.length; i += 4) n += wanted.has(`${d[i]},${d[i + 1]},${d[i + 2]}`);
      return n;"""
    longest = max(range(len(report["tasks"]["worker"])), key=lambda i: report["tasks"]["duration_us"][i])
    start, duration = report["tasks"]["start_us"][longest], report["tasks"]["duration_us"][longest]
    page.ask(f"setView({start - duration}, {start + 2 * duration})")
    page.wait("tasks are drawn", lambda: page.browser.execute_script(colored) > 500)
    page.find("#text").send_keys("no such task")
    page.wait("what the filter hides has no colour", lambda: page.browser.execute_script(colored) < 50)
    page.clear()


def test_messages(page, report):
    """Arrows once few enough are in sight, and then exactly those of the data."""
    m = report["messages"]
    if not m["from"]:
        assert "no messages" in page.find("#count").text
        return
    spans = [(start, start + duration) for start, duration in zip(m["start_us"], m["duration_us"])]
    first, last = spans[len(spans) // 2]
    page.ask(f"setView({first - 1}, {last + 1})")
    time.sleep(0.3)
    view = page.view()
    expected = sum(start < view["to_us"] and end > view["from_us"] for start, end in spans)
    assert 0 < expected < 80, "the sample has too many messages at once for this test"
    page.wait(f"{expected} arrows", lambda: page.ask("arrows()") == expected)
    page.find("#messages").click()
    page.wait("no arrows", lambda: page.ask("arrows()") == 0)
    page.clear()


def test_keys(page, report):
    """Full stop chooses the first task, then the next of its worker; Escape none."""
    t = report["tasks"]
    first = min(range(len(t["worker"])), key=lambda i: t["start_us"][i])
    after = sorted((i for i in range(len(t["worker"])) if t["worker"][i] == t["worker"][first]), key=lambda i: t["start_us"][i])
    for i in after[:3]:
        page.chart.send_keys(".")
        expected = f"layer {report['layers'][t['layer'][i]]}, op {report['ops'][t['op'][i]]}, tile {t['tile'][i] or '–'}"
        assert expected in page.find("#detail").text, (expected, page.find("#detail").text)
    page.chart.send_keys(Keys.ESCAPE)
    assert "layer " not in page.find("#detail").text


def test_tooltip(page, report):
    longest = max(range(len(report["tasks"]["worker"])), key=lambda i: report["tasks"]["duration_us"][i])
    start, duration = report["tasks"]["start_us"][longest], report["tasks"]["duration_us"][longest]
    page.find("#messages").click()
    page.ask(f"setView({start - duration}, {start + 2 * duration})")
    page.chart.send_keys("")  # into sight
    layer, op = report["layers"][report["tasks"]["layer"][longest]], report["ops"][report["tasks"]["op"][longest]]
    height, view = page.chart.size["height"], page.view()
    gutter, width = 132, page.chart.size["width"]
    share = (start + duration / 2 - view["from_us"]) / (view["to_us"] - view["from_us"])
    x = round(gutter + share * (width - gutter) - width / 2)
    for y in range(-height // 2 + 3, height // 2, 3):  # down all rows, at the middle of the longest task
        ActionChains(page.browser).move_to_element_with_offset(page.chart, x, y).perform()
        tip = page.find("#tip").text
        if f"layer {layer}, op {op}," in tip:
            assert f"step {report['tasks']['step'][longest]}, " in tip, tip
            break
    else:
        raise AssertionError(f"nowhere does the pointer find {layer}.{op}")
    page.clear()


def test_panels(page, report):
    for name in PANELS:
        panel = page.find(f"#panel-{name}")
        assert panel.is_displayed() and len(panel.text) > 20, name
    assert page.find("#command").text.split() == report["run"]["command"].split()
    for name, rows in report["summary"].items():
        if name != "bounds":
            assert len(page.all(f"#panel-{name} tbody tr")) == len(rows), name
    said = page.find("#panel-loss").text
    assert ("No loss was recorded" in said) == (not report["loss"]), said
    said = page.find("#panel-communication").text
    assert ("No messages" in said) == (sum(map(sum, report["communication_bytes"])) == 0), said


def test_sorting(page, report):
    rows = report["summary"]["per_op"]

    def tasks():
        return [int(cell.text.replace(",", "")) for cell in page.all("#panel-per_op tbody tr td:nth-child(2)")]

    head = page.find("#panel-per_op th:nth-child(2) button")
    head.click()
    assert tasks() == sorted((row["tasks"] for row in rows), reverse=True)
    head.click()
    assert tasks() == sorted(row["tasks"] for row in rows)
    page.find("#panel-per_op th:nth-child(1) button").send_keys(Keys.ENTER)
    names = [cell.text for cell in page.all("#panel-per_op tbody tr td:nth-child(1)")]
    assert len(set(names)) == len(rows) and names == sorted(names, key=str.lower), names


def test_quiet(browser, path):
    """No script error, and no request but for the page."""
    errors = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not errors, errors
    requests = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        assert message["method"] != "Runtime.exceptionThrown", message
        if message["method"] == "Network.requestWillBeSent":
            requests.append(message["params"]["request"]["url"])
    assert requests and all(url.split("#")[0] == path.as_uri() for url in requests), requests


def take_screenshot(page, path, address):
    page.browser.execute_script("location.hash = arguments[0]", address)
    page.browser.set_window_size(1600, page.browser.execute_script("return document.documentElement.scrollHeight") + 200)
    time.sleep(1)
    path.write_bytes(page.find("body").screenshot_as_png)
    page.browser.set_window_size(1600, 1000)
    page.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--screenshot", type=pathlib.Path, help="write a picture of the whole page, as PNG")
    parser.add_argument("--address", default="", metavar="#...", help="which view the picture has, as in the page's address")
    parser.add_argument("--dark", action="store_true", help="as for one who prefers dark pages")
    arguments = parser.parse_args()
    path = arguments.report.resolve()
    report = embedded(path.read_text(encoding="utf-8"))
    with chromium(arguments.dark) as browser:
        page = Page(browser, path)
        if arguments.screenshot:
            take_screenshot(page, arguments.screenshot, arguments.address)
        test_zoom(page, page.ask("duration"))
        test_filter(page, Tasks(report))
        test_address(page)
        test_colors(page, report)
        test_chart_is_drawn(page, report)
        test_messages(page, report)
        test_keys(page, report)
        test_tooltip(page, report)
        test_panels(page, report)
        test_sorting(page, report)
        test_quiet(browser, path)
    print(f"{path.name}: {len(report['tasks']['worker'])} tasks, all as it should be")


if __name__ == "__main__":
    main()
