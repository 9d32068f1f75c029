// Two plans side by side: the figures of both, and what is split or moved in another way, the largest changes first.
"use strict";

function differenceSection() {
  const { figures, operators, redistributions, inputs, alike } = pageState.difference, [a, b] = pageState.plans;
  const told = { seconds, bytes, "": (x) => String(x) };
  const change = (one, unit) => {
    if (one.before === null || one.after === null || one.before === one.after) return h("span", { class: "same" }, "the same");
    const delta = one.after - one.before, share = one.before ? ` (${delta > 0 ? "+" : ""}${figure((100 * delta) / one.before)} %)` : "";
    return h("span", { class: one.what.startsWith("hidden") ? "" : delta < 0 ? "better" : "worse" }, `${delta > 0 ? "+" : ""}${told[unit](delta)}${share}`);
  };
  const step = figures[0], delta = step.after - step.before;
  const parts = figures.filter((one) => one.what === "computing" || one.what.startsWith("over ")).filter((one) => one.after !== one.before).map((one) => `${one.after > one.before ? "+" : ""}${seconds(one.after - one.before)} ${one.what === "computing" ? "computing" : `communication ${one.what}`}`);
  const lead = delta === 0 ? "Both plans take the same time." : `B is ${seconds(Math.abs(delta))} ${delta < 0 ? "faster" : "slower"} than A: ${parts.join(", ")}.`;
  const side = (one) => (one ? h("div", {}, one.text ? h("code", {}, one.text) : null, " ", one.layouts.map(chip)) : h("span", { class: "quiet" }, "nothing"));
  const time = (one) => (one && one.seconds !== null && one.seconds !== undefined ? one.seconds : 0);
  const grid = (label, rows, open) => {
    if (!rows.length) return h("p", { class: "quiet" }, "None.");
    return new Grid(label, [
      { title: "name", width: "minmax(230px, 2fr)", key: (one) => one.name },
      { title: "A", width: "minmax(220px, 2fr)", key: (one) => (one.before ? `${one.before.text} ${one.before.layouts.join("; ")}` : ""), show: (one) => side(one.before) },
      { title: "B", width: "minmax(220px, 2fr)", key: (one) => (one.after ? `${one.after.text} ${one.after.layouts.join("; ")}` : ""), show: (one) => side(one.after) },
      { title: "B less A", width: "90px", right: true, key: (one) => time(one.after) - time(one.before), show: (one) => seconds(time(one.after) - time(one.before)) },
    ], [...rows].sort((x, y) => Math.abs(time(y.after) - time(y.before)) - Math.abs(time(x.after) - time(x.before))), { open }).node;
  };
  const toOperator = (one) => { const at = pageState.plan.byName.get(one.name); if (at !== undefined) openOperator(at); };
  const toMove = (one) => { const at = pageState.plan.moves.findIndex((move) => one.name === `${move.value} for ${move.users.join(", ")}`); if (at >= 0) openMove(at); };
  return section("difference", "Two plans", h("p", { class: "lead" }, lead),
    h("p", { class: "quiet" }, `A is by ${a.search} on ${a.mesh} (${a.hardware}), B by ${b.search} on ${b.mesh} (${b.hardware}). ${count(alike, "operator")} split alike.`),
    plain(["", "A", "B", "B against A"], figures.map((one) => [one.what, one.before === null ? "" : told[one.unit](one.before), one.after === null ? "" : told[one.unit](one.after), change(one, one.unit)]), { right: [1, 2, 3] }),
    h("h3", {}, `Operators that are split in another way: ${operators.length}`), grid("operators that differ", operators, toOperator),
    h("h3", {}, `Redistributions that differ: ${redistributions.length}`), grid("redistributions that differ", redistributions, toMove),
    h("h3", {}, `Inputs that lie otherwise: ${inputs.length}`), grid("inputs that differ", inputs, (one) => openValue(one.name)));
}
