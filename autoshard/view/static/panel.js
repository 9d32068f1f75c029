// The panel beside the page: all about one operator, value, redistribution or module. Its address is in the page's.
"use strict";
const panel = document.getElementById("panel");
let opener = null;

function showPanel(address, title, ...children) {
  if (panel.hidden) opener = document.activeElement;
  panel.replaceChildren(h("button", { class: "close", type: "button", "aria-label": "Close", onclick: closePanel }, "×"), h("h2", { id: "panel-title" }, title), ...children.flat().filter(Boolean));
  panel.hidden = false;
  const below = document.querySelector("header").offsetHeight + 12; // the head may be two lines high
  panel.style.setProperty("--below", `${below}px`);
  panel.scrollTop = 0;
  panel.focus({ preventScroll: true });
  const hash = `#${address}`;
  if (location.hash !== hash) try { history.pushState(null, "", hash); } catch { /* a frame without an address */ }
}
function closePanel() {
  panel.hidden = true;
  try { history.pushState(null, "", "#"); } catch { /* a frame without an address */ }
  if (opener && opener.isConnected) opener.focus({ preventScroll: true });
}
const facts = (...pairs) => h("dl", {}, pairs.filter((one) => one && one[1] !== undefined && one[1] !== null && one[1] !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
const address = (kind, name) => `${kind}=${encodeURIComponent(name)}`;
const lined = (list) => list.map((one) => h("div", {}, one));

function operandLine(plan, name) {
  const value = plan.values.get(name);
  return h("div", {}, link(name, () => openValue(name)), " ", h("code", {}, value ? value.type : ""), " ", value ? chip(value.layout) : "");
}

function openOperator(index) {
  const plan = pageState.plan, op = plan.operators[index];
  const task = plan.timeline.find((one) => one.operator === index);
  showPanel(address("op", op.name), op.name,
    facts(["operator", op.op], ["line", op.source ? h("code", {}, op.source) : null], ["strategy", h("code", {}, strategyText(op.in_strategy) || "as its bodies run")],
      ["device matrix", op.device_matrix ? `(${op.device_matrix.join(", ")})` : null],
      ["takes", `${seconds(op.total)}${op.runs > 1 ? ` in ${op.runs} runs` : ""}, ${percent(op.total, plan.seconds)} of the step${task ? `, from ${seconds(task.start)}` : ""}`],
      ["why", op.why]),
    causeChain(plan, op),
    h("h3", {}, "Operands"), lined(op.operands.map((name) => operandLine(plan, name))),
    h("h3", {}, "Results"), lined(op.results.map((one) => operandLine(plan, one.name))),
    alternatives(plan, op), movesFor(plan, op.moves, "Redistributed for it"),
    h("div", { class: "row" }, task ? h("button", { type: "button", onclick: () => showInStep(plan, task) }, "Show in the timeline") : null,
      h("button", { type: "button", onclick: () => openModule(pathOf(op.name).slice(0, -1).join(".")) }, "Its module")));
}

// Why, step by step: what it followed from, and what that followed from.
function causeChain(plan, op) {
  const lines = [], seen = new Set([op.name]);
  let names = op.cause_from;
  for (let i = 0; i < 8 && names.length; i++) {
    const next = names.map((name) => plan.operators[plan.byName.get(name)] || plan.inputs.find((one) => one.name === name)).find((one) => one && !seen.has(one.name));
    if (!next) break;
    seen.add(next.name);
    lines.push(h("li", {}, link(next.name, () => (next.op ? openOperator(next.index) : openValue(next.name))), ` ${next.why}`));
    names = next.cause_from;
  }
  return lines.length ? [h("h3", {}, "Followed from"), h("ol", { class: "chain" }, lines)] : [];
}

function alternatives(plan, op) {
  const options = (plan.options && plan.options[op.around]) || [];
  if (!options.length) return [];
  const total = (one) => one.redistribution_seconds + one.completion_seconds + one.seconds, own = total(options[0]);
  const more = (one) => (total(one) < own ? "" : "+") + seconds(total(one) - own);
  const rows = options.map((one, i) => ({ cls: i ? "" : "chosen", cells: [
    [h("div", {}, h("code", {}, strategyText(one.in_strategy))), lined((one.leaves || []).map(chip))], i ? more(one) : "chosen",
    seconds(one.redistribution_seconds), seconds(one.completion_seconds), seconds(one.seconds)] }));
  return [h("h3", {}, "What else it could be"), plain(["strategy, leaving", "against chosen", "operands", "results", "work"], rows, { right: [1, 2, 3, 4] }),
    h("p", { class: "quiet" }, "Seconds to bring operands and results where the plan has them, and of the work; all else stays as it is. One that is cheaper here is dearer for others.")];
}

function movesFor(plan, moves, title) {
  if (!moves.length) return [];
  return [h("h3", {}, title), plain(["value", "by", "bytes", "time"], moves.map((one) => [link(one.value, () => openMove(one.index)), one.steps.map((step) => `${step.kind} over ${step.axes}`).join(", "), bytes(one.totalBytes), seconds(one.total)]), { right: [2, 3] })];
}

function openValue(name) {
  const plan = pageState.plan, value = plan.values.get(name);
  if (!value) return;
  const maker = plan.operators[value.maker], readers = [...new Set(plan.readers.get(name) || [])], lives = plan.cost.memory.everything.filter((one) => one.name === name);
  showPanel(address("value", name), name,
    facts(["type", h("code", {}, value.type)], ["lies as", chip(value.layout)], ["is", value.role], ["why", value.why ?? (maker ? maker.why : "")],
      ["made by", maker ? h("span", {}, link(maker.name, () => openOperator(maker.index)), ` ${maker.op}`) : null],
      ["line", maker && maker.source ? h("code", {}, maker.source) : null],
      ["in memory", lives.length ? lives.map((one) => `${bytes(one.bytes)} as ${one.kind}`).join(", ") : null]),
    h("h3", {}, "Who holds what"), picture(plan, value.type, value.layout),
    movesFor(plan, plan.moves.filter((one) => one.value === name), "Brought into other layouts"),
    readers.length ? h("h3", {}, `Read by ${count(readers.length, "operator")}`) : null, lined(readers.slice(0, 12).map((i) => link(plan.operators[i].name, () => openOperator(i)))), readers.length > 12 ? h("p", { class: "quiet" }, `and ${readers.length - 12} more`) : null);
}

function openMove(index) {
  const plan = pageState.plan, move = plan.moves[index], value = plan.values.get(move.value), task = plan.timeline.find((one) => one.redistributions.includes(index));
  const other = plan.operators[plan.byName.get(move.serves)];
  showPanel(address("move", String(index)), `${mainStep(move).kind} of ${move.value}`,
    facts(["from", chip(move.from)], ["to", chip(move.to)], ["type", value ? h("code", {}, value.type) : null],
      ["a device sends", `${bytes(move.totalBytes)}${move.runs > 1 ? `, in ${move.runs} runs` : ""}`], ["takes", `${seconds(move.total)}, ${percent(move.total, plan.seconds)} of the step`],
      ["exposed", task ? `${seconds(task.exposed)} of ${seconds(task.seconds)}` : null], ["line", move.source ? h("code", {}, move.source) : null],
      ["wanted by", lined(move.users.map((name) => (plan.byName.has(name) ? link(name, () => openOperator(plan.byName.get(name))) : name)))],
      ["made by", value && value.maker >= 0 ? link(plan.operators[value.maker].name, () => openOperator(value.maker)) : link(move.value, () => openValue(move.value))]),
    h("h3", {}, "Steps"), plain(["collective", "over", "ranks", "bytes", "time"], move.steps.map((one) => [`${kindOf(one.kind)[1]} ${one.kind}`, one.axes, one.ranks, bytes(one.bytes), seconds(one.seconds)]), { right: [2, 3, 4] }),
    value ? [h("h3", {}, "Before"), picture(plan, value.type, move.from), h("h3", {}, "After"), picture(plan, value.type, move.to)] : null,
    other ? alternatives(plan, other) : null,
    task ? h("div", { class: "row" }, h("button", { type: "button", onclick: () => showInStep(plan, task) }, "Show in the timeline")) : null);
}

function openModule(name) {
  const plan = pageState.plan, path = name.replace(/ itself$/, "").split(/[./](?![^{]*\})/).filter(Boolean).map((part) => (/^\{(.*?)\.\./.exec(part) || [null, part])[1]);
  const module = plan.module(path);
  if (!module || !path.length) return;
  const times = module.copies.length, inside = module.modules.map((one) => [link(ranged(one), () => openModule([...path, one.name].join("."))), seconds(one.seconds * one.copies.length), seconds(one.redistribution_seconds * one.copies.length), bytes(one.bytes * one.copies.length)]);
  const shown = [...path.slice(0, -1), ranged(module)].join(".");
  showPanel(address("module", path.join(".")), shown,
    facts(["stands for", times > 1 ? `${times} equal modules; figures are of one` : null], ["computing", `${seconds(module.seconds)}, ${percent(module.seconds, plan.seconds)} of the step`], ["redistributions", `${seconds(module.redistribution_seconds)}, ${bytes(module.bytes)}`]),
    inside.length ? [h("h3", {}, "Modules in it"), plain(["module", "computing", "redistributions", "bytes"], inside, { right: [1, 2, 3] })] : null,
    module.operators.length ? [h("h3", {}, "Operators of its own"), plain(["operator", "kind", "time"], module.operators.map((i) => [link(plan.operators[i].name, () => openOperator(i)), plan.operators[i].op, seconds(plan.operators[i].total)]), { right: [2] })] : null,
    movesFor(plan, within(plan, module).sort((a, b) => b.total - a.total).slice(0, 12), "Redistributed in it, the dearest first"),
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => unfold(path.join(".")) }, "Unfold in the graph")));
}

const within = (plan, module) => [...module.operators.flatMap((i) => plan.operators[i].moves), ...module.modules.flatMap((one) => within(plan, one))];

function openTask(plan, task) {
  if (task.redistributions.length) openEdge(plan, task.redistributions, "at once");
  else if (task.operator !== undefined) openOperator(task.operator);
}
function openMoment(plan, one) {
  const task = plan.timeline.find((each) => each.moment === one.first);
  if (task) openTask(plan, task);
}
function showInStep(plan, task) {
  document.getElementById("step").scrollIntoView();
  setTimeout(() => zoomTo(plan, task.start - 6 * task.seconds, task.end + 6 * task.seconds), 350);
}

// Which rank holds which block: a table of the last two dims for each block of the others.
function picture(plan, type, layout) {
  const placed = plan.placements[layout], shape = (/\[(.*)\]/.exec(type) || ["", ""])[1].split(",").map((one) => parseInt(one, 10)).filter((one) => !Number.isNaN(one));
  if (!placed || placed.parts.length !== shape.length) return h("p", { class: "quiet" }, "The mesh is too large to draw each rank.");
  const rank = shape.length, rows = rank > 1 ? placed.parts[rank - 2] : 1, columns = rank ? placed.parts[rank - 1] : 1;
  const chunk = shape.map((size, i) => Math.ceil(size / placed.parts[i])), span = (dim, part) => `${Math.min(shape[dim], part * chunk[dim])}:${Math.min(shape[dim], (part + 1) * chunk[dim])}`;
  const lead = new Map();
  for (let one = 0; one < plan.devices; one++) {
    const at = placed.held.map((held) => held[one]), key = at.slice(0, Math.max(0, rank - 2)).join(",");
    if (!lead.has(key)) lead.set(key, new Map());
    const cell = `${rank > 1 ? at[rank - 2] : 0},${rank ? at[rank - 1] : 0}`, cells = lead.get(key);
    if (!cells.has(cell)) cells.set(cell, []);
    cells.get(cell).push(one);
  }
  const most = 4, shown = [...lead].slice(0, most);
  const local = `${count(plan.devices, "device")}, each with [${chunk.join(", ")}]${placed.partial ? `, terms of a ${placed.partial}` : ""}`;
  return h("div", { class: "picture" }, h("p", { class: "quiet" }, local), shown.map(([key, cells]) => {
    const title = key ? key.split(",").map((part, dim) => (placed.parts[dim] > 1 ? `dim ${dim} ${span(dim, Number(part))}` : "")).filter(Boolean).join(", ") : "";
    return h("div", {}, title ? h("p", { class: "quiet" }, title) : null, blocks(cells, rows, columns, (dim, part) => span(rank - 2 + dim, part), rank));
  }), lead.size > most ? h("p", { class: "quiet" }, `and ${lead.size - most} more blocks of the dims before`) : null);
}

function blocks(cells, rows, columns, span, rank) {
  const limit = 16, r = Math.min(rows, limit), c = Math.min(columns, limit), left = rank > 1 ? 78 : 8, top = rank ? 22 : 6;
  const wide = Math.max(46, Math.min(150, 360 / c)), tall = Math.max(24, Math.min(44, 200 / r));
  const made = [];
  for (let i = 0; i < r; i++) for (let j = 0; j < c; j++) {
    const held = cells.get(`${i},${j}`) || [], x = left + j * wide, y = top + i * tall, text = runs(held);
    made.push(g("rect", { x, y, width: wide - 2, height: tall - 2, rx: 4, fill: `var(--k${(i * c + j) % 6})`, "fill-opacity": 0.28, stroke: `var(--k${(i * c + j) % 6})` }),
      g("text", { x: x + wide / 2 - 1, y: y + tall / 2 + 3, "text-anchor": "middle" }, text.length * 6.8 > wide - 6 ? `${held.length} ranks` : text, g("title", {}, `ranks ${runs(held)}`)));
  }
  for (let j = 0; rank && j < c; j++) made.push(g("text", { class: "axis", x: left + j * wide + wide / 2, y: top - 7, "text-anchor": "middle" }, wide < 60 && columns > 8 ? String(j) : span(1, j)));
  for (let i = 0; rank > 1 && i < r; i++) made.push(g("text", { class: "axis", x: left - 6, y: top + i * tall + tall / 2 + 3, "text-anchor": "end" }, span(0, i)));
  const words = [...cells].map(([at, held]) => `block ${at}: ranks ${runs(held)}`).join("; ");
  return g("svg", { viewBox: `0 0 ${left + c * wide + 4} ${top + r * tall + 4}`, width: left + c * wide + 4, role: "img", "aria-label": words.slice(0, 2000) }, made);
}

// Ranks as a short list, those that follow each other joined: 0-3, or 0,4.
function runs(list) {
  const found = [];
  for (const one of list) {
    const last = found[found.length - 1];
    if (last && last[1] === one - 1) last[1] = one; else found.push([one, one]);
  }
  return found.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a},${b}` : `${a}-${b}`)).join(",");
}
