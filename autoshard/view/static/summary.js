// The first screen: one sentence, the figures, what costs most; and the tables of operators, redistributions, inputs.
"use strict";

function groups(rows, name, weight) {
  const found = new Map();
  for (const row of rows) found.set(name(row), (found.get(name(row)) || 0) + weight(row));
  return [...found].filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1]);
}

function bar(label, parts, total, open) {
  const most = 9, shown = parts.slice(0, most), rest = sum(parts.slice(most), (one) => one[1]);
  if (rest) shown.push([count(parts.length - most, "other"), rest]);
  const whole = sum(shown, (one) => one[1]) || 1;
  const told = (name, size) => `${name}: ${seconds(size)}, ${percent(size, total)} of the step`;
  const piece = ([name, size, kind], i) => h("button", {
    type: "button", title: told(name, size), "aria-label": told(name, size), onclick: () => open && open(name),
    style: { width: `${(100 * size) / whole}%`, background: `var(--k${(kind ?? i) % 10})` },
  }, size / whole > 0.06 ? name : "");
  const key = ([name, size, kind], i) => h("span", {}, h("i", { style: { background: `var(--k${(kind ?? i) % 10})` } }), `${name} ${seconds(size)}`);
  return h("div", {}, h("h3", {}, label), h("div", { class: "bar", role: "group", "aria-label": label }, shown.map(piece)), h("div", { class: "keys" }, shown.map(key)));
}

function summarySection(plan) {
  const cost = plan.cost, room = cost.device_memory_bytes, fits = cost.peak_memory_bytes <= room;
  const tile = (value, words, cls) => h("div", { class: "tile" }, h("b", { class: cls }, value), h("span", {}, words));
  const stats = plan.search_stats, gap = "bound" in stats ? (stats.proven ? "proven best" : `at most ${figure(100 * (stats.gap ?? 0))} % above the best`) : "";
  const staged = pageState.pipeline !== null, named = staged ? `Stage ${plan.number}` : "Summary";
  const needs = ["Each device needs ", h("b", { class: fits ? "" : "warn" }, bytes(cost.peak_memory_bytes)), fits ? ` of its ${bytes(room)}: it fits.` : `, but has ${bytes(room)}: it does not fit.`];
  const lead = h("p", { class: "lead", id: "lead" },
    staged ? "A micro batch, and what comes once in a step, take " : "A step takes ", h("b", {}, seconds(cost.seconds)), `: computing ${seconds(cost.compute_seconds)}, exposed communication `,
    h("b", {}, seconds(plan.exposed)), cost.hidden_seconds > 0 ? ` (and ${seconds(cost.hidden_seconds)} hidden behind computing)` : "",
    ". ", staged ? "" : needs);
  const notes = [];
  if (plan.ignored.length) notes.push(`This mode does not follow what was asked of ${plan.ignored.slice(0, 8).join(", ")}${plan.ignored.length > 8 ? ` and ${plan.ignored.length - 8} more` : ""}.`);
  for (const one of plan.conflicts.slice(0, 3)) notes.push(`${one.producer} leaves ${one.value} as [${one.from}], ${one.consumer} wants [${one.to}]: ${bytes(one.bytes)}, ${seconds(one.seconds)}.`);
  const talk = cost.axes.map((one) => [`over ${one.axes}`, one.seconds]);
  const modules = topModules(plan).map((one) => [one.name, one.seconds]);
  const kinds = groups(plan.operators, (op) => op.op, (op) => op.total);
  return section("summary", named, lead,
    h("p", { class: "quiet" }, `${count(plan.operators.length, "operator")} on mesh ${plan.mesh} (${plan.devices} devices, ${plan.hardware}), by ${plan.search}: ${plan.started_from}. Times are predicted.`),
    notes.map((one) => h("p", { class: "note" }, one)),
    h("div", { class: "tiles" },
      tile(seconds(cost.seconds), staged ? "a micro batch, and what comes once" : "a step"), tile(percent(cost.compute_seconds, cost.seconds), `computing, ${seconds(cost.compute_seconds)}`),
      tile(percent(plan.exposed, cost.seconds), `exposed communication, ${seconds(plan.exposed)}`),
      tile(bytes(cost.bytes_per_device), `sent by a device in ${count(sum(cost.axes, (one) => one.collectives), "collective")}`),
      staged ? tile(bytes(cost.peak_memory_bytes), "of one micro batch alone; the groups above count all that are under way") : tile(bytes(cost.peak_memory_bytes), `peak memory, ${percent(cost.peak_memory_bytes, room)} of ${bytes(room)}`, fits ? "" : "warn"),
      gap ? tile(seconds(stats.bound), `lower bound: ${gap}`) : null),
    h("div", { class: "bars" },
      bar("Where the time goes, by module", modules, cost.seconds, (name) => openModule(name)),
      bar("By kind of operator, and by the axes of communication", [...kinds, ...talk].sort((a, b) => b[1] - a[1]), cost.seconds)),
    h("div", { class: "two" }, h("div", {}, h("h3", {}, "Operators that cost most"), topOperators(plan)), h("div", {}, h("h3", {}, "Redistributions that cost most, and for which line"), topMoves(plan))));
}

// Modules, opened where they are most of the step, so that the parts tell something.
function topModules(plan) {
  const wrap = (module, path, times) => ({ module, path, times, name: path.join("."), seconds: (module.seconds + module.redistribution_seconds) * times });
  const inside = (one) => one.module.modules.map((child) => wrap(child, [...one.path, ranged(child)], one.times * child.copies.length));
  let found = inside(wrap(plan.modules, [], 1));
  for (let i = 0; i < 8; i++) {
    const largest = found.reduce((a, b) => (b.module.modules.length && b.seconds > (a ? a.seconds : 0) ? b : a), null);
    if (!largest || largest.seconds < 0.2 * plan.seconds || found.length > 11) break;
    found = [...found.filter((one) => one !== largest), ...inside(largest)];
    const own = sum(largest.module.operators, (i) => plan.operators[i].total + sum(plan.operators[i].moves, (move) => move.total)) * largest.times;
    if (own > 0) found.push({ module: { modules: [] }, path: largest.path, name: `${largest.name} itself`, seconds: own });
  }
  const own = sum(plan.modules.operators, (i) => plan.operators[i].total + sum(plan.operators[i].moves, (move) => move.total));
  if (own > 0) found.push({ name: "outside of modules", seconds: own });
  return found.sort((a, b) => b.seconds - a.seconds);
}

// Equal operators of equal layers as one row: the operators of the tree stand for those of all copies.
function foldedOperators(plan) {
  const found = [], walk = (module, path, times) => {
    for (const i of module.operators) found.push({ op: plan.operators[i], name: times > 1 ? [...path, pathOf(plan.operators[i].name).at(-1)].join(".") : plan.operators[i].name, times });
    for (const child of module.modules) walk(child, [...path, ranged(child)], times * child.copies.length);
  };
  walk(plan.modules, [], 1);
  return found;
}

function topOperators(plan) {
  const rows = foldedOperators(plan).sort((a, b) => b.op.total * b.times - a.op.total * a.times).slice(0, 10);
  return plain(["operator", "kind", "time", "share"], rows.map(({ op, name, times }) => [
    link(dotted(name), () => openOperator(op.index)), op.op, times > 1 ? `${times} × ${seconds(op.total)}` : seconds(op.total), percent(op.total * times, plan.seconds)]), { right: [2, 3], short: [1] });
}

function foldedMoves(plan) {
  return foldedOperators(plan).flatMap(({ op, name, times }) => op.moves.map((move) => ({ move, name, times })))
    .concat(plan.moves.filter((one) => !plan.byName.has(one.serves)).map((move) => ({ move, name: "the end of the step", times: 1 })));
}

function topMoves(plan) {
  const rows = foldedMoves(plan).sort((a, b) => b.move.total * b.times - a.move.total * a.times).slice(0, 10);
  if (!rows.length) return h("p", { class: "quiet" }, "Nothing is redistributed.");
  return plain(["collective", "for", "line", "bytes", "time"], rows.map(({ move, name, times }) => [
    link(`${mainStep(move).kind} over ${mainStep(move).axes}`, () => openMove(move.index), `${move.value}: [${move.from}] to [${move.to}]`), dotted(name), sourceLine(move.source),
    times * move.runs > 1 ? `${times * move.runs} × ${bytes(move.bytes)}` : bytes(move.bytes), times * move.runs > 1 ? `${times * move.runs} × ${seconds(move.seconds)}` : seconds(move.seconds)]), { right: [3, 4], short: [0, 2] });
}

const strategyText = (parts) => (parts ? `(${parts.map((one) => `(${one.join(", ")})`).join(", ")})` : "");

function operatorsSection(plan) {
  const grid = new Grid("operators", [
    { title: "operator", width: "minmax(230px, 3fr)", key: (op) => op.name, show: (op) => `${"  ".repeat(op.depth)}${op.name}` },
    { title: "kind", width: "minmax(90px, 1fr)", key: (op) => op.op },
    { title: "strategy", width: "minmax(120px, 1.4fr)", key: (op) => strategyText(op.in_strategy), show: (op) => h("code", {}, strategyText(op.in_strategy)) },
    { title: "leaves", width: "minmax(110px, 1.3fr)", key: (op) => op.results.map((one) => one.layout).join("; "), show: (op) => op.results.slice(0, 2).map((one) => chip(one.layout)) },
    { title: "cause", width: "minmax(110px, 1.6fr)", key: (op) => op.why },
    { title: "collectives", width: "80px", key: (op) => op.moves.map((one) => mainStep(one).kind).join(" "), show: (op) => op.moves.map((one) => kindOf(mainStep(one).kind)[1]).join(" ") },
    { title: "time", width: "80px", right: true, key: (op) => op.total, show: (op) => seconds(op.total) },
    { title: "share", width: "66px", right: true, key: (op) => op.total, show: (op) => percent(op.total, plan.seconds) },
  ], plan.operators, { open: (op) => openOperator(op.index) });
  return section("operators", "Operators", h("p", { class: "quiet" }, "In the order in which they run. Click a head to sort, a row to see why it is so and what else it could be."), grid.node);
}

function movesSection(plan) {
  if (!plan.moves.length) return section("moves", "Redistributions", h("p", {}, "No value changes its layout: nothing is redistributed."));
  const grid = new Grid("redistributions", [
    { title: "value", width: "minmax(190px, 2fr)", key: (one) => one.value },
    { title: "by", width: "minmax(120px, 1.2fr)", key: (one) => one.steps.map((step) => `${step.kind} ${step.axes}`).join(", ") },
    { title: "from", width: "minmax(100px, 1fr)", key: (one) => one.from, show: (one) => chip(one.from) },
    { title: "to", width: "minmax(100px, 1fr)", key: (one) => one.to, show: (one) => chip(one.to) },
    { title: "for", width: "minmax(160px, 1.6fr)", key: (one) => one.users.join(", ") },
    { title: "line", width: "minmax(110px, 1fr)", key: (one) => one.source ?? "", show: (one) => sourceLine(one.source) ?? "" },
    { title: "bytes", width: "84px", right: true, key: (one) => one.totalBytes, show: (one) => bytes(one.totalBytes) },
    { title: "time", width: "80px", right: true, key: (one) => one.total, show: (one) => seconds(one.total) },
  ], plan.moves, { open: (one) => openMove(one.index), sort: 7 });
  return section("moves", "Redistributions", h("h3", {}, "Collectives by module and phase"), byPhase(plan), h("h3", {}, "Each of them"), grid.node);
}

function byPhase(plan) {
  const phases = ["forward", "backward", "update"], rows = new Map();
  for (const { move, name, times } of foldedMoves(plan)) {
    if (!move.steps.some(talks)) continue;
    const path = name.split(/\.(?![^{]*\})/), phase = plan.phase(name);
    const key = path.slice(phase === "forward" ? 0 : 1, phase === "forward" ? 3 : 4).slice(0, -1).join(".") || name;
    if (!rows.has(key)) rows.set(key, Object.fromEntries(phases.map((one) => [one, { n: 0, bytes: 0, kinds: new Set() }])));
    const cell = rows.get(key)[phase];
    cell.n += times * move.runs;
    cell.bytes += times * move.totalBytes;
    move.steps.filter(talks).forEach((step) => cell.kinds.add(step.kind));
  }
  const told = (cell) => (cell.n ? h("span", { title: [...cell.kinds].join(", ") }, `${cell.n} × ${[...cell.kinds].map((one) => kindOf(one)[1]).join("")}, ${bytes(cell.bytes)}`) : "");
  const total = (row) => sum(phases, (one) => row[one].bytes);
  const shown = [...rows].sort((a, b) => total(b[1]) - total(a[1])).slice(0, 16);
  return h("div", {}, plain(["module", ...phases, "bytes"], shown.map(([name, row]) => [name, ...phases.map((one) => told(row[one])), bytes(total(row))]), { right: [4] }),
    h("div", { class: "keys" }, Object.entries(KINDS).map(([kind, [k, letter]]) => h("span", {}, h("i", { style: { background: `var(--k${k})` } }), `${letter} ${kind}`))));
}

function inputsSection(plan) {
  const grid = new Grid("inputs", [
    { title: "input", width: "minmax(220px, 2.4fr)", key: (one) => one.name },
    { title: "is", width: "90px", key: (one) => one.role },
    { title: "type", width: "minmax(120px, 1.2fr)", key: (one) => one.type, show: (one) => h("code", {}, one.type) },
    { title: "layout", width: "minmax(110px, 1fr)", key: (one) => one.layout, show: (one) => chip(one.layout) },
    { title: "cause", width: "minmax(150px, 1.8fr)", key: (one) => one.why },
    { title: "a device holds", width: "110px", right: true, key: (one) => one.bytes_per_device, show: (one) => bytes(one.bytes_per_device) },
  ], plan.inputs, { open: (one) => openValue(one.name) });
  const made = section("inputs", "Inputs and parameters", grid.node);
  made.dataset.short = "Inputs";
  return made;
}

// The plan in the words of others, to copy: each form as `autoshard export` writes it.
function takeAwaySection(plan) {
  const forms = Object.entries(pageState.exports[pageState.pipeline ? 0 : plan.number] || {});
  if (!forms.length) return null;
  const text = h("pre", { tabindex: "0", id: "taken" }), note = h("span", { class: "quiet", role: "status" });
  const buttons = forms.map(([name, written]) => h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    text.textContent = written;
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.textContent === name)));
  } }, name));
  const copied = () => { note.textContent = "copied"; setTimeout(() => { note.textContent = ""; }, 2000); };
  const copy = () => (navigator.clipboard ? navigator.clipboard.writeText(text.textContent).then(copied, byHand) : byHand());
  const byHand = () => { getSelection().selectAllChildren(text); if (document.execCommand("copy")) copied(); else note.textContent = "selected: copy it by the keyboard"; };
  const made = section("take-away", "Take away", h("p", { class: "quiet" }, "What to write to get this plan elsewhere."), h("div", { class: "row tools" }, buttons, h("button", { type: "button", onclick: copy }, "Copy"), note), text);
  buttons[0].click();
  return made;
}
