// Opens the plan that the page holds, draws its sections, and answers the keyboard, the search and addresses.
"use strict";
const main = document.getElementById("main"), MOST_BUTTONS = 6;

function draw() {
  const plan = pageState.plan, pipe = pageState.pipeline, several = pageState.plans.length > 1, two = several && !pipe;
  pageState.redraw = [];
  const sections = [...(pipe ? pipelineSections(pipe) : []), summarySection(plan), two ? differenceSection() : null, stepSection(plan), graphSection(plan), operatorsSection(plan), movesSection(plan), inputsSection(plan), takeAwaySection(plan)].filter(Boolean);
  main.replaceChildren(...sections);
  document.getElementById("nav").replaceChildren(...sections.map((one) => h("a", { href: `#${one.id}` }, one.dataset.short ?? one.querySelector("h2").textContent)));
  const which = (one, number) => (pipe ? [`stage ${number}`, `The plan of stage ${number}`] : [`${"AB"[number]}: ${shorten(one.search, 24)}`, `${one.search} on ${one.mesh}`]);
  const pick = (one, number) => h("button", { type: "button", "aria-pressed": String(number === plan.number), title: which(one, number)[1], onclick: () => choose(number) }, which(one, number)[0]);
  document.getElementById("which").replaceChildren(...(several && pageState.plans.length <= MOST_BUTTONS ? pageState.plans.map(pick) : several ? [chooser(plan)] : []));
  const name = pipe ? `${pipe.name} in ${count(pipe.stages.length, "stage")}` : `${plan.graph} on ${plan.mesh}`;
  document.getElementById("name").textContent = name;
  document.getElementById("name").title = name;
  searchIndex = null;
}
// Of more stages than buttons have room.
function chooser(plan) {
  const one = (_, number) => h("option", { value: String(number), selected: number === plan.number }, `stage ${number}`);
  return h("select", { "aria-label": "The stage that is shown", onchange: (event) => choose(Number(event.target.value)) }, pageState.plans.map(one));
}
// Of several plans all but the first are read when they are asked for.
async function choose(number) {
  panel.hidden = true;
  if (!(pageState.plans[number] instanceof Plan)) pageState.plans[number] = await planOf(number);
  pageState.plan = pageState.plans[number];
  draw();
}

let searchIndex = null;
function index(plan) {
  const modules = [], walk = (module, path) => module.modules.forEach((one) => { const here = [...path, one.name]; modules.push(["module", here.join("."), () => openModule(here.join("."))]); walk(one, here); });
  walk(plan.modules, []);
  const operators = plan.operators.map((op) => [op.op, op.name, () => openOperator(op.index)]);
  const names = new Set(plan.operators.map((op) => op.name));
  const values = [...plan.values.keys()].filter((one) => !names.has(one)).map((name) => [plan.values.get(name).role || "value", name, () => openValue(name)]);
  const stages = pageState.pipeline ? pageState.plans.map((_, number) => ["plan", `stage ${number}`, () => toStage(number)]) : [];
  return [...stages, ...modules, ...operators, ...values].map((one) => [...one, one[1].toLowerCase()]);
}
const find = document.getElementById("find"), found = document.getElementById("found");
function search() {
  const words = find.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  searchIndex = searchIndex || index(pageState.plan);
  const hits = words.length ? searchIndex.filter((one) => words.every((word) => one[3].includes(word))) : [];
  hits.sort((a, b) => (b[3] === words[0]) - (a[3] === words[0]) || a[3].length - b[3].length);
  const pick = (one) => { found.hidden = true; one[2](); };
  found.replaceChildren(...hits.slice(0, 30).map((one) => h("li", {}, h("button", { type: "button", onclick: () => pick(one) }, h("span", {}, one[1]), h("span", { class: "quiet" }, one[0])))),
    ...(words.length && !hits.length ? [h("li", { class: "quiet" }, "Nothing has such a name.")] : []), ...(hits.length > 30 ? [h("li", { class: "quiet" }, `and ${hits.length - 30} more`)] : []));
  found.hidden = !words.length;
}
find.addEventListener("input", search);
find.addEventListener("keydown", (event) => {
  const first = found.querySelector("button");
  if (event.key === "Enter" && first) first.click();
  if (event.key === "ArrowDown" && first) { event.preventDefault(); first.focus(); }
});
found.addEventListener("keydown", (event) => {
  const all = [...found.querySelectorAll("button")], at = all.indexOf(document.activeElement), next = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  (all[next] || find).focus();
});
document.addEventListener("click", (event) => { if (!event.target.closest(".find")) found.hidden = true; });
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); find.focus(); find.select(); }
  if (event.key === "Escape") { if (!found.hidden) found.hidden = true; else if (!panel.hidden) closePanel(); }
});

// What an address after # names: op=, value=, move= or module=.
function visit() {
  const [kind, ...rest] = location.hash.slice(1).split("="), plan = pageState.plan;
  if (!rest.length) { if (!document.getElementById(kind) || !kind) panel.hidden = true; return; }
  let name = "";
  try { name = decodeURIComponent(rest.join("=")); } catch { return; }
  if (kind === "op" && plan.byName.has(name)) openOperator(plan.byName.get(name));
  if (kind === "value") openValue(name);
  if (kind === "move" && plan.moves[Number(name)]) openMove(Number(name));
  if (kind === "module") openModule(name);
}
addEventListener("popstate", visit);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pageState.redraw.forEach((one) => one()));

Promise.all([unpacked("data"), planOf(0)]).then(([data, first]) => {
  pageState.plans = data.plans;
  pageState.plans[0] = first;
  pageState.difference = data.difference;
  pageState.exports = data.exports;
  pageState.pipeline = data.pipeline ? pipelineOf(data.pipeline) : null;
  pageState.plan = first;
  draw();
  visit();
  document.documentElement.dataset.ready = "yes";
}).catch((error) => {
  main.replaceChildren(h("p", { class: "note", role: "alert" }, `The plan in this page cannot be shown: ${error}`));
  document.documentElement.dataset.ready = "failed";
  throw error;
});
