// The graph, folded by module: a box for each module or operator in sight, collectives on the edges by their bytes.
"use strict";
const MOST_BOXES = 400, FIRST_BOXES = 26;
let unfold = () => {};

function graphSection(plan) {
  const host = h("div", { id: "graph", role: "img", tabindex: "0", "aria-label": "The graph, folded by module; the tables of operators and redistributions say the same." });
  const open = firstOpen(plan), bread = h("span", { class: "quiet" });
  const state = { plan, host, open, bread, cy: null };
  const again = () => drawGraph(state);
  const set = (change) => { change(); again(); };
  unfold = (path) => {
    set(() => { const parts = path.split("."); parts.forEach((_, i) => { const at = plan.module(parts.slice(0, i + 1)); if (at) open.add(canonical(plan, parts.slice(0, i + 1))); }); });
    document.getElementById("graph-section").scrollIntoView();
  };
  const made = section("graph-section", "Graph", h("p", { class: "quiet" }, "Arrows are values; coloured ones are redistributed on the way, the thicker the more bytes. Double click a module to unfold or fold it, click anything for details. Equal layers are one box."),
    h("div", { class: "row tools" }, h("button", { type: "button", onclick: () => set(() => { open.clear(); firstOpen(plan).forEach((one) => open.add(one)); }) }, "As at first"), h("button", { type: "button", onclick: () => set(() => open.clear()) }, "Fold all"),
      h("button", { type: "button", onclick: () => state.cy && state.cy.fit(undefined, 20) }, "Fit"), bread), host);
  onSight(made, again);
  return made;
}

// A path with the first of equal modules for all of them.
function canonical(plan, path) {
  let at = plan.modules;
  return path.map((part) => { at = at.modules.find((one) => one.copies.includes(part)); return at.name; }).join("\u0000");
}
const inside = (plan, key) => plan.module(key ? key.split("\u0000") : []);

// Modules that are unfolded at first: those that take most of the step, while there are few boxes.
function firstOpen(plan) {
  const open = new Set();
  let boxes = plan.modules.modules.length + plan.modules.operators.length, edge = plan.modules.modules.map((one) => [one.name, one]);
  while (edge.length) {
    edge.sort((a, b) => (b[1].seconds + b[1].redistribution_seconds) - (a[1].seconds + a[1].redistribution_seconds));
    const place = edge.findIndex(([, one]) => boxes + one.modules.length + one.operators.length <= FIRST_BOXES && one.modules.length);
    if (place < 0) break;
    const [[key, module]] = edge.splice(place, 1);
    open.add(key);
    boxes += module.modules.length + module.operators.length - 1;
    edge.push(...module.modules.map((one) => [`${key}\u0000${one.name}`, one]));
  }
  return open;
}

// The box in which an operator is seen: the outermost module that is folded, or itself; and the copies on the way.
function boxOf(state, name) {
  const path = pathOf(name), keys = [], copies = [];
  let at = state.plan.modules;
  for (let i = 0; i < path.length - 1; i++) {
    at = at.modules.find((one) => one.copies.includes(path[i]));
    if (!at) break;
    keys.push(at.name);
    copies.push(path[i]);
    if (!state.open.has(keys.join("\u0000"))) return { id: `m:${keys.join("\u0000")}`, copies, module: at, keys };
  }
  return { id: `o:${[...keys, path[path.length - 1]].join("\u0000")}`, copies, module: null, keys, last: path[path.length - 1] };
}

function graphElements(state) {
  const { plan } = state, boxes = new Map(), edges = new Map(), seen = [], parents = new Map();
  plan.operators.forEach((op, i) => {
    const box = boxOf(state, op.name);
    seen[i] = box;
    if (!boxes.has(box.id)) boxes.set(box.id, { ...box, op: box.module ? null : op, total: 0 });
    for (let k = 1; k <= box.keys.length - (box.module ? 1 : 0); k++) parents.set(box.keys.slice(0, k).join("\u0000"), true);
  });
  const outside = (id, label) => { if (!boxes.has(id)) boxes.set(id, { id, label, keys: [] }); return { id, copies: [], keys: [] }; };
  const join = (from, to, move) => {
    // What goes from one of several equal modules to the next is not drawn into the first.
    const shared = from.keys.findIndex((key, i) => key !== to.keys[i]), depth = shared < 0 ? from.keys.length : shared;
    if (from.id === to.id && !move) return;
    if (from.copies.slice(0, depth).some((one, i) => one !== to.copies[i]) && !move) return;
    const id = `${from.id}\u0001${to.id}`;
    if (!edges.has(id)) edges.set(id, { from: from.id, to: to.id, values: 0, bytes: 0, seconds: 0, moves: [], kinds: new Map() });
    const edge = edges.get(id);
    edge.values++;
    if (!move) return;
    edge.bytes += move.totalBytes;
    edge.seconds += move.total;
    edge.moves.push(move.index);
    for (const step of move.steps.filter(talks)) edge.kinds.set(step.kind, (edge.kinds.get(step.kind) || 0) + step.bytes * move.runs);
  };
  const source = (name) => {
    const value = plan.values.get(name);
    if (!value) return null;
    if (value.maker >= 0) return seen[value.maker];
    return value.role === "data" ? outside("in:data", "data") : null;
  };
  plan.operators.forEach((op, i) => op.operands.forEach((name) => { const from = source(name); if (from) join(from, seen[i], null); }));
  for (const move of plan.moves) {
    const at = plan.byName.get(move.serves), value = plan.values.get(move.value);
    const to = at === undefined ? outside("out", "results") : seen[at];
    // A value that no operator of the graph makes is made inside of the one that it is moved for.
    const from = source(move.value) || (value ? outside(`in:${value.role}`, `${value.role}s`) : to);
    join(from, to, move);
  }
  for (const [id, edge] of edges) if (edge.from === edge.to) { // what goes round inside is said in the box
    if (edge.kinds.size) boxes.get(edge.from).loop = edge;
    edges.delete(id);
  }
  return { boxes, edges, parents: [...parents.keys()] };
}

// What a box says: its name, its time, and the collectives inside of it.
function boxLabel(state, box) {
  if (box.label) return box.label;
  const own = box.loop ? `\n${edgeLabel(box.loop)}` : "";
  if (!box.module) return `${box.last}\n${seconds(box.op.total)}${own}`;
  return `${ranged(box.module)}\n${box.module.copies.length > 1 ? `${box.module.copies.length} × ` : ""}${seconds(box.module.seconds + box.module.redistribution_seconds)}${own}`;
}
function edgeLabel(edge) {
  const letters = [...edge.kinds.keys()].map((one) => kindOf(one)[1]).join("");
  return edge.kinds.size ? `${edge.moves.length > 1 ? `${edge.moves.length} ` : ""}${letters} ${bytes(edge.bytes)}` : "";
}

function drawGraph(state) {
  const { plan, host } = state, { boxes, edges, parents } = graphElements(state);
  if (state.cy) state.cy.destroy();
  if (boxes.size > MOST_BOXES) {
    host.replaceChildren(h("p", { class: "note" }, `There are ${boxes.size} boxes, more than can be drawn; fold some modules, or use the table of operators.`));
    state.cy = null;
    return;
  }
  host.replaceChildren();
  const most = Math.max(1, ...[...edges.values()].map((one) => one.bytes)), dearest = Math.max(1e-12, ...[...boxes.values()].map((one) => weight(one)));
  const phase = (id) => { const box = boxes.get(id); return plan.phase(box.keys[0] || box.last || ""); };
  const across = (edge) => phase(edge.from) !== phase(edge.to);
  const places = placed(boxes, edges, parents, state), elements = [];
  for (const key of parents) {
    const module = inside(plan, key), up = key.split("\u0000").slice(0, -1).join("\u0000");
    elements.push({ data: { id: `p:${key}`, parent: up ? `p:${up}` : undefined, label: module.copies.length > 1 ? `${ranged(module)}: ${module.copies.length} alike, one shown` : module.name, key }, classes: "parent" });
  }
  for (const box of boxes.values()) {
    const up = box.module ? box.keys.slice(0, -1) : box.keys;
    elements.push({ data: { id: box.id, parent: up && up.length ? `p:${up.join("\u0000")}` : undefined, label: boxLabel(state, box), heat: weight(box) / dearest }, position: places.get(box.id), classes: box.label ? "outside" : box.module ? "module" : "operator" });
  }
  for (const [id, edge] of edges) {
    const kind = [...edge.kinds].sort((a, b) => b[1] - a[1])[0];
    elements.push({ data: { id, source: edge.from, target: edge.to, wide: kind ? 1.5 + 7 * Math.sqrt(edge.bytes / most) : 1.2, colour: kind ? colour(kindOf(kind[0])[0]) : ink("quiet"), label: edgeLabel(edge), moves: edge.moves }, classes: kind ? "moved" : across(edge) ? "across" : "" });
  }
  const cy = cytoscape({ container: host, elements, layout: { name: "preset" }, style: graphStyle(), minZoom: 0.05, maxZoom: 3, boxSelectionEnabled: false, autoungrabify: false });
  cy.fit(undefined, 20);
  if (cy.zoom() > 1.1) { cy.zoom(1.1); cy.center(); }
  if (cy.zoom() < 0.6) { cy.zoom(0.6); const box = cy.elements().renderedBoundingBox(); cy.panBy({ x: 16 - box.x1, y: 16 - box.y1 }); } // readable: the rest by dragging
  cy.on("tap", "node", (event) => tapped(state, boxes.get(event.target.id()), event.target));
  cy.on("tap", "edge.moved", (event) => openEdge(plan, event.target.data("moves")));
  cy.on("dbltap", "node", (event) => {
    const box = boxes.get(event.target.id()), key = box ? (box.module ? box.keys.join("\u0000") : null) : event.target.data("key");
    if (!key) return;
    if (state.open.has(key)) state.open.delete(key); else state.open.add(key);
    drawGraph(state);
  });
  state.cy = cy;
  pageState.graph = cy;
  state.bread.textContent = `${count(boxes.size, "box").replace("boxs", "boxes")}, ${count([...edges.values()].filter((one) => one.moves.length).length, "edge")} with collectives`;
}
const weight = (box) => (box.module ? (box.module.seconds + box.module.redistribution_seconds) * box.module.copies.length : box.op ? box.op.total : 0);

function tapped(state, box, node) {
  if (!box) { openModule(node.data("key").split("\u0000").join(".")); return; }
  if (box.module) openModule(box.keys.join("."));
  else if (box.op) openOperator(box.op.index);
}

function openEdge(plan, moves, where = "on this edge") {
  if (moves.length === 1) { openMove(moves[0]); return; }
  const found = moves.map((i) => plan.moves[i]).sort((a, b) => b.total - a.total);
  showPanel(address("edge", moves.slice(0, 40).join(",")), `${count(moves.length, "redistribution")} ${where}`,
    facts(["a device sends", bytes(sum(found, (one) => one.totalBytes))], ["takes", seconds(sum(found, (one) => one.total))]),
    plain(["value", "by", "for", "bytes", "time"], found.slice(0, 60).map((one) => [link(one.value, () => openMove(one.index)), `${mainStep(one).kind} over ${mainStep(one).axes}`, one.users.join(", "), bytes(one.totalBytes), seconds(one.total)]), { right: [3, 4] }),
    found.length > 60 ? h("p", { class: "quiet" }, `and ${found.length - 60} more, in the table of redistributions`) : null);
}

// Forward runs from left to right, under it backward from right to left, under that the update, whose parts know nothing of each other.
const PHASES = [["forward", "LR"], ["backward", "RL"], ["update", "TB"]];

function placed(boxes, edges, parents, state) {
  const { plan } = state, found = new Map(), rows = [];
  const follows = new Map([...edges.values()].map((one) => [one.to, one.from]));
  const phaseOf = (box) => (box.keys.length || box.last ? plan.phase(box.keys[0] || box.last) : null);
  const named = new Map([...boxes.values()].filter((box) => !box.label).map((box) => [box.id, phaseOf(box)]));
  for (const box of boxes.values()) if (box.label) { // what lies outside goes with what reads or makes it
    const edge = [...edges.values()].find((one) => one.from === box.id);
    named.set(box.id, (edge && named.get(edge.to)) || named.get(follows.get(box.id)) || "forward");
  }
  for (const [phase, direction] of PHASES) {
    const own = [...boxes.values()].filter((box) => named.get(box.id) === phase);
    if (own.length) rows.push(layered(own, edges, parents, state, direction));
  }
  const wide = Math.max(...rows.map((one) => one.width));
  let top = 0;
  rows.forEach((row) => {
    const shift = row.direction === "RL" ? wide - row.width : 0;
    for (const [id, at] of row.places) found.set(id, { x: at.x + shift, y: at.y + top });
    top += row.height + 70;
  });
  return found;
}

const widthOf = (text) => Math.max(90, 7.6 * Math.max(...text.split("\n").map((one) => one.length)) + 18);

const heightOf = (text) => 10 + 15 * text.split("\n").length;

function layered(own, edges, parents, state, direction) {
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: direction, nodesep: 22, ranksep: 64, edgesep: 12, marginx: 14, marginy: 26 });
  graph.setDefaultEdgeLabel(() => ({}));
  const inUse = new Set();
  for (const box of own) {
    graph.setNode(box.id, { width: widthOf(boxLabel(state, box)), height: heightOf(boxLabel(state, box)) + 6 });
    const up = box.module ? box.keys.slice(0, -1) : box.keys;
    for (let k = 1; k <= up.length; k++) inUse.add(up.slice(0, k).join("\u0000"));
  }
  for (const key of parents.filter((one) => inUse.has(one))) graph.setNode(`p:${key}`, {});
  for (const key of inUse) { const up = key.split("\u0000").slice(0, -1).join("\u0000"); if (up) graph.setParent(`p:${key}`, `p:${up}`); }
  for (const box of own) { const up = box.module ? box.keys.slice(0, -1) : box.keys; if (up.length) graph.setParent(box.id, `p:${up.join("\u0000")}`); }
  for (const edge of edges.values()) if (edge.from !== edge.to && graph.hasNode(edge.from) && graph.hasNode(edge.to)) graph.setEdge(edge.from, edge.to, { weight: edge.moves.length ? 2 : 1 });
  try {
    dagre.layout(graph);
    const { width, height } = graph.graph();
    return { direction, width, height, places: own.map((box) => { const { x, y } = graph.node(box.id); return [box.id, { x, y }]; }) };
  } catch { // too deep for it: rows of ten
    return { direction: "LR", width: 1900, height: 80 * Math.ceil(own.length / 10), places: own.map((box, i) => [box.id, { x: (i % 10) * 190 + 90, y: Math.floor(i / 10) * 80 + 40 }]) };
  }
}

function graphStyle() {
  const text = { label: "data(label)", color: ink("ink"), "font-size": 12, "font-family": "system-ui, sans-serif", "text-wrap": "wrap" };
  return [
    { selector: "node", style: { ...text, shape: "round-rectangle", width: (node) => widthOf(node.data("label")) - 6, height: (node) => heightOf(node.data("label")), "text-valign": "center", "text-halign": "center", "background-color": ink("card"), "border-width": 1.2, "border-color": ink("quiet") } },
    { selector: "node.module", style: { "background-color": ink("k1"), "background-opacity": (node) => 0.1 + 0.5 * node.data("heat"), "border-color": ink("k0"), "border-width": 1.6, "font-weight": 600 } },
    { selector: "node.operator", style: { "background-color": ink("k2"), "background-opacity": (node) => 0.06 + 0.5 * node.data("heat") } },
    { selector: "node.outside", style: { shape: "ellipse", "border-style": "dashed", color: ink("quiet") } },
    { selector: "node.parent", style: { ...text, "text-valign": "top", "text-halign": "center", "background-opacity": 0.25, "background-color": ink("soft"), "border-color": ink("line"), "border-width": 1, color: ink("quiet"), padding: 12 } },
    { selector: "edge", style: { ...text, "curve-style": "bezier", "target-arrow-shape": "triangle", "arrow-scale": 0.8, width: "data(wide)", "line-color": "data(colour)", "target-arrow-color": "data(colour)", "line-opacity": 0.4, "font-size": 11 } },
    { selector: "edge.across", style: { "line-opacity": 0.16, "target-arrow-shape": "none" } },
    { selector: "edge.moved", style: { "line-opacity": 0.95, "text-background-color": ink("back"), "text-background-opacity": 0.9, "text-background-padding": 2 } },
    { selector: ":selected", style: { "border-width": 3, "border-color": ink("accent"), "line-opacity": 1 } },
  ];
}
