"""The page of a model of full size: how large the file is, and how long a headless Chromium takes until it is drawn.

    python -m benchmarks.page_size [--model llama-3-70b] [--mesh "dp=8 tp=8"] [--mode megatron] [--against zero3]
                                   [--folder FOLDER]

Writes FOLDER/page.html and screenshots of its views (needs selenium, chromium and chromedriver), and prints operators,
bytes, and seconds from navigation until the page says that it is drawn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path
from typing import Any

READY = "return document.documentElement.dataset.ready === 'yes'"
VIEWS = ("summary", "step", "graph-section", "operators", "moves", "inputs", "take-away", "difference")


def planned_model(name: str, mesh: str, mode: str) -> Any:
    """The plan of a model of `benchmarks.full_models` on H100s."""
    import autoshard as ash
    from autoshard import optim
    from benchmarks.full_models import MODELS, training_graph

    model, devices = MODELS[name], ash.Mesh.parse(mesh).devices
    module, inputs = model.build(round(model.samples * devices))
    imported = ash.from_torch(module, (), inputs, loss="loss", optimizer=lambda params: optim.Adam(params, 1e-4))
    return ash.plan(training_graph(model, imported), mesh=mesh, search=mode, hardware="h100")


def browser() -> Any:
    """A headless Chromium of this machine."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    flags = [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--window-size=1400,1000",
    ]
    for one in (*flags, *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def opened(driver: Any, path: Path) -> dict[str, float]:
    """Seconds until the page is drawn: on the clock, and of it what its own scripts had the processor for."""
    driver.get("about:blank")
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    start = time.perf_counter()
    driver.get(path.resolve().as_uri())
    while not driver.execute_script(READY):
        time.sleep(0.02)
    wall = time.perf_counter() - start
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    busy = {one["name"]: one["value"] for one in metrics}
    return {"wall": wall, "processor": busy["TaskDuration"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-70b")
    parser.add_argument("--mesh", default="dp=8 tp=8")
    parser.add_argument("--mode", default="megatron")
    parser.add_argument("--against")
    parser.add_argument("--folder", type=Path, default=Path("page"))
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    first = planned_model(chosen.model, chosen.mesh, chosen.mode)
    print(f"{len(first.graph.nodes)} operators, planned in {time.process_time() - start:.1f} s of processor time")
    start = time.process_time()
    other = planned_model(chosen.model, chosen.mesh, chosen.against) if chosen.against else None
    path = first.view(other).save(chosen.folder / "page.html")
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, made in {time.process_time() - start:.1f} s of processor time")
    driver = browser()
    try:
        for _ in range(3):
            took = opened(driver, path)
            print(f"drawn after {took['wall']:.2f} s, of which {took['processor']:.2f} s of processor time of the page")
        for view in VIEWS:
            found = driver.find_elements("css selector", f"#{view}")
            if found and found[0].is_displayed():
                driver.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", found[0])
                time.sleep(0.5)
                driver.save_screenshot(str(chosen.folder / f"{view}.png"))
        for one in driver.get_log("browser"):
            print("console:", one["message"])
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
