// A plan in stages as a whole: what a step takes, who does what when, what each group holds, and what crosses.
"use strict";
const ACTIONS = {
  F: [0, "forward"], B: [3, "backward"], I: [2, "input gradient"], W: [5, "weight gradient"], U: [8, "update"], P: [7, "once before"],
};
const MEMORY_PARTS = [["states", "state_bytes", 1], ["gradients", "accumulator_bytes", 2], ["activations", "activation_bytes", 3], ["transient", "transient_bytes", 8]];
const MOST_LINES = 8;

// The record of the page, its tables as rows, and what the sections draw from.
function pipelineOf(record) {
  const actions = rowsOf(record.actions), transfers = rowsOf(record.transfers);
  for (const one of actions) one.end = one.start + one.seconds;
  record.groups.forEach((one, i) => { one.index = i; one.room = record.group_memory_bytes[i]; one.largest = record.largest[i]; });
  record.stages.forEach((one, i) => { one.index = i; one.group = record.groups.findIndex((group) => group.stages.includes(i)); });
  return { ...record, actions, transfers, plots: [], synced: "schedule" };
}

function pipelineSections(pipe) {
  return [pipelineSection(pipe), scheduleSection(pipe), groupsSection(pipe), transfersSection(pipe), othersSection(pipe)].filter(Boolean);
}

function pipelineSection(pipe) {
  const fullest = pipe.groups.reduce((a, b) => (b.bytes > a.bytes ? b : a)), fits = pipe.groups.every((one) => one.bytes <= one.room);
  const over = pipe.schedule_bound ? pipe.schedule_seconds / pipe.schedule_bound - 1 : 0;
  const tile = (value, words, cls) => h("div", { class: "tile" }, h("b", { class: cls }, value), h("span", {}, words));
  const busy = (group) => pipe.seconds * (1 - group.idle_share), slowest = pipe.groups.reduce((a, b) => (busy(b) > busy(a) ? b : a));
  const mean = sum(pipe.groups, busy) / pipe.groups.length;
  return section("pipeline", "Pipeline",
    h("p", { class: "lead", id: "pipeline-lead" }, "A step takes ", h("b", {}, seconds(pipe.seconds)), ` in ${count(pipe.stages.length, "stage")} on ${count(pipe.groups.length, "group")} of devices; they wait for `,
      h("b", {}, percent(pipe.bubble_share, 1)), " of the schedule. The fullest device needs ", h("b", { class: fits ? "" : "warn" }, bytes(fullest.bytes)), fits ? ` of its ${bytes(fullest.room)}: it fits.` : `, but has ${bytes(fullest.room)}: it does not fit.`),
    h("p", { class: "quiet" }, `${pipe.name} on ${count(pipe.devices, "device")} (${pipe.hardware}), schedule ${pipe.schedule || "of one's own"}, ${count(pipe.micro_batches, "micro batch", "micro batches")}. Times are predicted.`),
    h("div", { class: "tiles" },
      tile(seconds(pipe.seconds), "a step"), tile(percent(pipe.bubble_share, 1), "bubble: what the groups wait in the schedule"),
      tile(seconds(pipe.schedule_bound), `no order of these actions takes less; this one ${figure(100 * over)} % more`),
      tile(`group ${slowest.index}`, `works longest: ${seconds(busy(slowest))}${mean ? `, ${figure(100 * (busy(slowest) / mean - 1))} % above the mean` : ""}`),
      tile(bytes(fullest.bytes), `fullest device, in group ${fullest.index}: ${percent(fullest.bytes, fullest.room)} of ${bytes(fullest.room)}`, fits ? "" : "warn")));
}

// A darker shade for each later stage of a group.
function shade(hex, chunk) {
  const [r, green, b] = [1, 3, 5].map((at) => Math.round(parseInt(hex.slice(at, at + 2), 16) * Math.max(0.4, 1 - 0.22 * chunk)));
  return `rgb(${r} ${green} ${b})`;
}

function scheduleLanes(pipe) {
  const look = new Map(), chunk = (task) => Math.max(0, pipe.groups[task.group].stages.indexOf(task.stage));
  const what = (task) => (task.micro === undefined ? `${ACTIONS[task.kind][1]} of group ${task.group}` : `${ACTIONS[task.kind][1]} of micro batch ${task.micro} in stage ${task.stage}`);
  return {
    labels: pipe.groups.map((one) => `group ${one.index}`), tasks: pipe.groups.map((one) => pipe.actions.filter((task) => task.group === one.index)),
    order: pipe.actions, least: 14, exposed: () => [],
    look: (task) => {
      const key = `${task.kind} ${chunk(task)}`;
      if (!look.has(key)) look.set(key, shade(colour(ACTIONS[task.kind][0]), chunk(task)));
      return look.get(key);
    },
    name: (task) => String(task.micro ?? ACTIONS[task.kind][1]),
    tell: (task) => `${what(task)}\n${seconds(task.seconds)} from ${seconds(task.start)}`,
    open: (task) => openAction(pipe, task, what(task)),
  };
}

function openAction(pipe, task, title) {
  const group = pipe.groups[task.group], sent = task.stage === undefined ? [] : pipe.transfers.filter((one) => one.repeated && one.source === task.stage);
  showPanel(`group=${task.group}`, title,
    facts(["takes", `${seconds(task.seconds)}, from ${seconds(task.start)} to ${seconds(task.end)}`], ["on", `${group.mesh}, ranks ${runs(group.ranks)}`],
      ["stages of the group", group.stages.join(", ")], ["the group waits", `${percent(group.idle_share, 1)} of the step`]),
    sent.length ? [h("h3", {}, `What stage ${task.stage} sends of a micro batch`), sent.slice(0, 12).map((one) => h("div", {}, `${one.value} to stage ${one.target}: ${bytes(one.bytes)}, ${seconds(one.seconds)}`))] : [],
    memoryOf(group), task.stage === undefined ? null : h("div", { class: "row" }, h("button", { type: "button", onclick: () => toStage(task.stage) }, `The plan of stage ${task.stage}`)));
}

function memoryOf(group) {
  return [h("h3", {}, "What a device of the group holds"), h("div", {}, `${bytes(group.bytes)}: ${MEMORY_PARTS.map(([name, key]) => `${name} ${bytes(group[key])}`).join(", ")}`),
    ...(group.largest.length ? [h("h3", {}, "Largest in it"), plain(["what", "bytes"], group.largest.map(([name, size]) => [dotted(name), bytes(size)]), { right: [1] })] : [])];
}

function scheduleSection(pipe) {
  if (!pipe.actions.length) return section("schedule", "Schedule", h("p", { class: "quiet" }, `${pipe.count} actions are too many to be drawn; autoshard export --to schedule writes them.`));
  const lanes = h("div", { class: "plot", id: "schedule-lanes", tabindex: "0", role: "img", "aria-label": `Schedule: ${count(pipe.actions.length, "action")} of ${count(pipe.groups.length, "group")}. Arrows go from action to action, Enter opens, + and - zoom, 0 shows all.` });
  const memory = h("div", { class: "plot", id: "schedule-memory", role: "img", "aria-label": "What a device of each group needs over the step." });
  const kinds = Object.entries(ACTIONS).filter(([kind]) => pipe.actions.some((one) => one.kind === kind));
  const several = pipe.groups.some((one) => one.stages.length > 1), key = (k, words) => h("span", {}, h("i", { style: { background: `var(--k${k})` } }), words);
  const shown = [...pipe.groups].sort((a, b) => b.bytes - a.bytes).slice(0, MOST_LINES).sort((a, b) => a.index - b.index);
  const made = section("schedule", "Schedule and memory of a step", h("p", { class: "quiet" }, `Drag to zoom; a number is the micro batch${several ? ", a darker box a later stage of the group" : ""}. A click opens an action.`),
    h("div", { class: "row tools" }, h("button", { type: "button", onclick: () => zoomTo(pipe, 0, pipe.seconds) }, "Whole schedule")), lanes, h("div", { class: "keys" }, kinds.map(([, [k, words]]) => key(k, words))),
    h("h3", {}, `What a device needs${shown.length < pipe.groups.length ? `, of the ${MOST_LINES} fullest groups` : ", by group"}`), memory, h("div", { class: "keys" }, shown.map((one) => key(one.index % 10, `group ${one.index}, at most ${bytes(one.bytes)}`))));
  lanes.style.minHeight = `${44 + 36 * pipe.groups.length}px`;
  memory.style.minHeight = "200px";
  made.dataset.short = "Schedule";
  onSight(made, () => {
    pipe.plots = [];
    lanes.replaceChildren();
    memory.replaceChildren();
    drawLanes(pipe, scheduleLanes(pipe), lanes);
    drawHeld(pipe, shown, memory);
  });
  return made;
}

function drawHeld(pipe, shown, host) {
  const times = [...new Set([0, ...shown.flatMap((one) => pipe.held[one.index].map(([at]) => at)), pipe.seconds])].sort((a, b) => a - b);
  const base = (one) => one.bytes - one.activation_bytes;
  const series = shown.map((one) => {
    const held = pipe.held[one.index];
    let i = -1;
    return times.map((at) => { while (i + 1 < held.length && held[i + 1][0] <= at) i += 1; return i < 0 ? base(one) : held[i][1]; });
  });
  const most = Math.max(...shown.map((one) => one.bytes)), room = Math.min(...shown.map((one) => one.room)), top = room < 2 * most ? Math.max(room, most) * 1.05 : most * 1.12;
  const limit = (u) => {
    if (room > top) return;
    const { ctx, bbox } = u, y = u.valToPos(room, "y", true);
    ctx.save();
    ctx.strokeStyle = ink("warn");
    ctx.setLineDash([4, 3]);
    ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
    ctx.restore();
  };
  const plot = new uPlot({
    width: host.clientWidth, height: 200, legend: { show: false }, padding: [6, 40, 0, 0],
    scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { range: [0, top || 1] } },
    series: [{}, ...shown.map((one) => ({ stroke: colour(one.index), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }))],
    axes: [xAxis(), { stroke: ink("quiet"), size: 92, grid: { stroke: ink("line"), width: 1 }, ticks: { stroke: ink("line") }, values: (u, list) => list.map(bytes), incrs: POWERS, space: 34 }],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false }, sync: { key: pipe.synced, setSeries: false } },
    hooks: { draw: [limit], setScale: [follow(pipe)] },
  }, [times, ...series], host);
  plot.over.addEventListener("mousemove", (event) => {
    const at = plot.posToIdx(event.offsetX);
    showTip(`at ${seconds(times[at])}\n${shown.map((one, i) => `group ${one.index} ${bytes(series[i][at])}`).join("\n")}`, event);
  });
  plot.over.addEventListener("mouseleave", () => showTip(null));
  pipe.plots.push(plot);
}

function groupsSection(pipe) {
  const most = Math.max(...pipe.groups.map((one) => one.bytes)), whole = Math.min(...pipe.groups.map((one) => one.room)) < 2 * most ? Math.max(...pipe.groups.map((one) => one.room)) : most;
  const part = (size, of, k, told) => h("i", { title: told, style: { width: `${of ? (100 * size) / of : 0}%`, background: `var(--k${k})` } });
  const memory = (one) => h("div", { class: "amount", role: "img", "aria-label": MEMORY_PARTS.map(([name, key]) => `${name} ${bytes(one[key])}`).join(", ") }, MEMORY_PARTS.map(([name, key, k]) => part(one[key], whole, k, `${name} ${bytes(one[key])}`)));
  const works = (one) => h("div", { class: "amount", role: "img", "aria-label": `works ${percent(1 - one.idle_share, 1)} of the step` }, part(1 - one.idle_share, 1, 0, `works ${seconds(pipe.seconds * (1 - one.idle_share))}`));
  const groupRows = pipe.groups.map((one) => [link(`group ${one.index}`, () => showPanel(`group=${one.index}`, `group ${one.index}`, facts(["devices", `${one.mesh}, ranks ${runs(one.ranks)}`], ["stages", one.stages.join(", ")], ["update", seconds(one.update_seconds)]), memoryOf(one))),
    `${one.mesh}, ranks ${runs(one.ranks)}`, one.stages.join(", "), works(one), percent(one.idle_share, 1), memory(one), h("span", { class: one.bytes > one.room ? "warn" : "" }, bytes(one.bytes))]);
  const time = (one, name) => seconds(one[`${name}_seconds`]);
  const stageRows = pipe.stages.map((one) => ({ cls: pageState.plan.number === one.index ? "chosen" : undefined, cells: [link(`stage ${one.index}`, () => toStage(one.index)), `group ${one.group}`, String(one.operators), bytes(one.parameter_bytes), time(one, "forward"), time(one, "input_gradient"), time(one, "weight_gradient"), time(one, "sent_on"), time(one, "sent_back")] }));
  const made = section("groups", "Groups and stages",
    plain(["group", "devices", "stages", "works", "waits", "a device holds", ""], groupRows, { right: [4, 6], short: [0, 1] }),
    h("div", { class: "keys" }, MEMORY_PARTS.map(([name, , k]) => h("span", {}, h("i", { style: { background: `var(--k${k})` } }), name))),
    h("h3", {}, "What a stage takes for one micro batch"),
    plain(["stage", "on", "operators", "parameters", "forward", "input gradient", "weight gradient", "sends on", "sends back"], stageRows, { right: [2, 3, 4, 5, 6, 7, 8], short: [0, 1] }),
    h("p", { class: "quiet" }, "A stage opens below: its timeline, memory, graph and operators, for one micro batch and what it does once in a step."));
  made.dataset.short = "Groups";
  return made;
}

function transfersSection(pipe) {
  const grid = new Grid("transfers", [
    { title: "value", width: "minmax(230px, 3fr)", key: (one) => one.value },
    { title: "type", width: "minmax(120px, 1fr)", key: (one) => one.type, show: (one) => h("code", {}, one.type) },
    { title: "from", width: "80px", key: (one) => one.source, show: (one) => `stage ${one.source}` },
    { title: "to", width: "80px", key: (one) => one.target, show: (one) => `stage ${one.target}` },
    { title: "leaves as", width: "minmax(110px, 1fr)", key: (one) => one.from, show: (one) => chip(one.from) },
    { title: "arrives as", width: "minmax(110px, 1fr)", key: (one) => one.to, show: (one) => chip(one.to) },
    { title: "how often", width: "130px", key: (one) => (one.repeated ? "each micro batch" : "once in a step") },
    { title: "whole", width: "90px", right: true, key: (one) => one.bytes, show: (one) => bytes(one.bytes) },
    { title: "time", width: "90px", right: true, key: (one) => one.seconds, show: (one) => seconds(one.seconds) },
  ], pipe.transfers, { open: (one) => toStage(one.source), sort: 8 });
  const made = section("transfers", "Between the groups", h("p", { class: "quiet" }, "What goes from the devices of one stage to those of another; inside of a stage values are redistributed by collectives."), grid.node);
  made.dataset.short = "Transfers";
  return made;
}

// What a search for stages has priced and not taken.
function othersSection(pipe) {
  if (!pipe.others.length) return null;
  const rows = pipe.others.map((one) => [one.label, seconds(one.seconds), `${figure(one.seconds / pipe.seconds)} x`, one.fits ? "yes" : h("span", { class: "warn" }, "no")]);
  const made = section("others", "What else there was", h("p", { class: "quiet" }, "The fastest that the search has priced, of each number of groups."), plain(["pipeline", "a step", "to this one", "fits"], rows, { right: [1, 2] }));
  made.dataset.short = "Others";
  return made;
}

// The plan of a stage, under the pipeline.
async function toStage(number) {
  await choose(number);
  document.getElementById("summary").scrollIntoView();
}
