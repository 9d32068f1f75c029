// The step in time: what runs when on each lane, and under it what lies in memory, on one axis of time.
"use strict";
const MEMORY = ["parameter", "state", "gradient", "activation", "data", "output", "copy", "buffer", "scratch", "runtime"];
const POWERS = Array.from({ length: 52 }, (_, i) => 2 ** i); // bytes between ticks

function stepSection(plan) {
  const lanes = h("div", { class: "plot", id: "lanes", tabindex: "0", role: "img", "aria-label": `Timeline: ${count(plan.timeline.length, "piece")} on ${laneNames(plan).join(", ")}. Arrows go from piece to piece, Enter opens, + and - zoom, 0 shows all.` });
  const memory = h("div", { class: "plot", id: "memory-plot", role: "img", "aria-label": `Memory over the step: at most ${bytes(plan.cost.peak_memory_bytes)} at ${plan.cost.memory.peak_at}.` });
  const keys = h("div", { class: "keys" });
  const reset = h("button", { type: "button", onclick: () => zoomTo(plan, 0, plan.seconds) }, "Whole step");
  const made = section("step", pageState.pipeline ? `Timeline and memory of a micro batch in stage ${plan.number}` : "Timeline and memory of a step",
    h("p", { class: "quiet" }, `Drag to zoom. Hatched communication is exposed: nothing is computed meanwhile. ${plan.exposed > 0 ? `${seconds(plan.exposed)} of ${seconds(plan.cost.communication_seconds)} is exposed.` : "All of it is hidden."}`),
    h("div", { class: "row tools" }, reset), lanes, keys, h("h3", {}, "Memory of a device, by what lies there"), memory, memoryKeys(plan), h("div", { id: "peak" }));
  const draw = () => {
    plan.plots = [];
    lanes.replaceChildren();
    memory.replaceChildren();
    drawLanes(plan, stepLanes(plan), lanes);
    drawMemory(plan, memory);
  };
  made.dataset.short = "Timeline";
  lanes.style.minHeight = `${44 + 36 * laneNames(plan).length}px`;
  memory.style.minHeight = "240px";
  keys.append(...laneKeys(plan));
  onSight(made, draw);
  made.querySelector("#peak").append(...peakTables(plan));
  return made;
}

// Plots are drawn when they come into sight, and again when their width or the colours change.
function onSight(node, draw) {
  let width = 0;
  const again = () => { if (node.clientWidth && node.clientWidth !== width && node.isConnected) { width = node.clientWidth; draw(); } };
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((one) => one.isIntersecting)) return;
    seen.disconnect();
    again();
    new ResizeObserver(() => requestAnimationFrame(again)).observe(node);
    pageState.redraw.push(() => { width = 0; again(); });
  }, { rootMargin: "300px" });
  seen.observe(node);
}

const laneNames = (plan) => ["compute", ...new Set(plan.timeline.map((one) => one.lane).filter((one) => one !== "compute"))];
const PRODUCTS = /MatMul|Attention|Conv|Dot|Einsum|Grouped/i, MOVES = /Reshape|Transpose|Slice|Concat|Split|Pad|Gather|Broadcast|Constant|Fill|Iota|Convert|Cast|Scatter/i, SUMS = /Reduce|Norm|Softmax|Sum|Standardize|Loss/i;
function opColour(op) {
  if (!op) return 7;
  return PRODUCTS.test(op.op) ? 0 : SUMS.test(op.op) ? 8 : MOVES.test(op.op) ? 7 : 1;
}
function taskLook(plan, task) {
  const move = plan.moves[task.redistributions[0]];
  return task.lane === "compute" ? opColour(plan.operators[task.operator]) : move ? kindOf(mainStep(move).kind)[0] : 3;
}
function taskName(plan, task) {
  if (task.redistributions.length) {
    const first = plan.moves[task.redistributions[0]], more = task.redistributions.length - 1;
    return `${mainStep(first).kind} of ${first.value}${more ? ` and ${more} more` : ""}`;
  }
  return task.operator === undefined ? "besides the operators" : plan.operators[task.operator].name;
}
function laneKeys(plan) {
  const kinds = new Set(plan.moves.flatMap((one) => one.steps.filter(talks).map((step) => step.kind)));
  const key = (k, words) => h("span", {}, h("i", { style: { background: `var(--k${k})` } }), words);
  return [key(0, "products"), key(8, "reductions, norms"), key(1, "element by element"), key(7, "data movement, others"), ...[...kinds].map((one) => key(kindOf(one)[0], `${kindOf(one)[1]} ${one}`))];
}

// What is drawn over the time of `timed`, a plan or a schedule, is zoomed together: its `plots`.
function zoomTo(timed, min, max) {
  const span = Math.max(timed.seconds * 1e-6, Math.min(timed.seconds, max - min)), left = Math.max(0, Math.min(timed.seconds - span, min));
  for (const one of timed.plots) one.setScale("x", { min: left, max: left + span });
}
const follow = (timed) => (plot, key) => {
  if (key !== "x") return;
  const { min, max } = plot.scales.x;
  for (const one of timed.plots) if (one !== plot && (one.scales.x.min !== min || one.scales.x.max !== max)) one.setScale("x", { min, max });
};
const xAxis = () => ({ stroke: ink("quiet"), grid: { stroke: ink("line"), width: 1 }, ticks: { stroke: ink("line") }, values: (u, list) => list.map(seconds), space: 90, size: 34 });

// The lanes of a step: for each its label and tasks, and of a task how it looks, what it is called, tells and opens.
function stepLanes(plan) {
  const names = laneNames(plan), tasks = names.map((name) => plan.timeline.filter((one) => one.lane === name));
  return {
    labels: names.map((one, i) => (i ? `over ${one}` : one)), tasks, order: plan.timeline, least: 54,
    look: (task) => colour(taskLook(plan, task)),
    exposed: (task, lane) => (lane && task.exposed > 0 ? [...uncovered(tasks[0], task)] : []),
    name: (task, lane) => (lane ? taskName(plan, task) : pathOf(taskName(plan, task)).slice(-2).join(".")),
    tell: (task) => `${taskName(plan, task)}\n${seconds(task.seconds)} from ${seconds(task.start)}${task.lane === "compute" ? "" : `, over ${task.lane}, ${seconds(task.exposed)} exposed`}`,
    open: (task) => openTask(plan, task),
  };
}

function drawLanes(timed, lanes, host) {
  const ratio = devicePixelRatio, hatch = hatching(), { labels, tasks: byLane, order } = lanes;
  let chosen = null;
  const spans = (u) => {
    const { ctx, bbox } = u, high = bbox.height / labels.length;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    byLane.forEach((tasks, lane) => {
      const top = bbox.top + lane * high + 3 * ratio, tall = high - 6 * ratio;
      let pixel = -1;
      for (let i = firstAt(tasks, u.scales.x.min); i < tasks.length && tasks[i].start <= u.scales.x.max; i++) {
        const task = tasks[i], left = u.valToPos(task.start, "x", true), right = u.valToPos(task.end, "x", true);
        if (Math.floor(right) === pixel) continue; // a column that is painted already
        pixel = right - left < 1 ? Math.floor(right) : -1;
        const wide = Math.max(1, right - left - (right - left > 4 ? ratio : 0));
        ctx.fillStyle = lanes.look(task);
        ctx.fillRect(left, top, wide, tall);
        for (const [from, to] of lanes.exposed(task, lane)) {
          ctx.fillStyle = hatch;
          ctx.fillRect(u.valToPos(from, "x", true), top, Math.max(1, u.valToPos(to, "x", true) - u.valToPos(from, "x", true)), tall);
        }
        if (wide > lanes.least * ratio) label(ctx, lanes.name(task, lane), left, top, wide, tall, ratio);
        if (task === chosen) { ctx.strokeStyle = ink("ink"); ctx.lineWidth = 2 * ratio; ctx.strokeRect(left, top, wide, tall); }
      }
    });
    ctx.restore();
  };
  const at = (u) => {
    const { left, top } = u.cursor;
    if (left < 0 || top < 0) return null;
    const lane = Math.min(labels.length - 1, Math.floor((top / (u.bbox.height / ratio)) * labels.length)), time = u.posToVal(left, "x"), tasks = byLane[lane];
    const near = timed.seconds && (u.scales.x.max - u.scales.x.min) / (u.bbox.width / ratio);
    const i = firstAt(tasks, time - near);
    return tasks[i] && tasks[i].start <= time + near ? tasks[i] : null;
  };
  const plot = new uPlot({
    width: host.clientWidth, height: 44 + 36 * labels.length, legend: { show: false }, padding: [6, 40, 0, 0],
    scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { range: [0, labels.length] } }, series: [{}, { show: false }],
    axes: [xAxis(), { stroke: ink("quiet"), size: 92, grid: { show: false }, ticks: { show: false }, splits: () => labels.map((_, i) => labels.length - i - 0.5), values: () => labels }],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: true }, sync: { key: timed.synced, setSeries: false } },
    hooks: { draw: [spans], setScale: [follow(timed)], setCursor: [(u) => { if (!u.over.matches(":hover")) return; const task = at(u); showTip(task && lanes.tell(task), u.cursor.event ?? { clientX: 0, clientY: 0 }); u.over.style.cursor = task ? "pointer" : "crosshair"; }] },
  }, [[0, timed.seconds], [0, 0]], host);
  plot.over.addEventListener("mousemove", (event) => { const task = at(plot); showTip(task && lanes.tell(task), event); });
  plot.over.addEventListener("mouseleave", () => showTip(null));
  let from = 0;
  plot.over.addEventListener("mousedown", (event) => { from = event.clientX; });
  plot.over.addEventListener("click", (event) => { const task = at(plot); if (task && Math.abs(event.clientX - from) < 4) lanes.open(task); });
  host.onkeydown = (event) => {
    const { min, max } = plot.scales.x, middle = (min + max) / 2, span = max - min;
    if (event.key === "0") zoomTo(timed, 0, timed.seconds);
    else if (event.key === "+" || event.key === "=") zoomTo(timed, middle - span / 4, middle + span / 4);
    else if (event.key === "-") zoomTo(timed, middle - span, middle + span);
    else if (event.key === "Enter" && chosen) lanes.open(chosen);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const place = chosen ? order.indexOf(chosen) + (event.key === "ArrowRight" ? 1 : -1) : firstAt(order, min);
      chosen = order[Math.max(0, Math.min(order.length - 1, place))];
      if (chosen.start < min || chosen.end > max) zoomTo(timed, chosen.start - span / 4, chosen.start + (3 * span) / 4);
      const box = host.getBoundingClientRect();
      showTip(lanes.tell(chosen), { clientX: box.left + 92 + plot.valToPos(chosen.start, "x"), clientY: box.top + 20 });
      plot.redraw(false);
    } else return;
    event.preventDefault();
  };
  host.onblur = () => showTip(null);
  timed.plots.push(plot);
}

// The first task that ends after a time; tasks of a lane follow one another.
function firstAt(tasks, time) {
  let low = 0, high = tasks.length;
  while (low < high) { const middle = (low + high) >> 1; if (tasks[middle].end <= time) low = middle + 1; else high = middle; }
  return low;
}
function* uncovered(busy, task) {
  let from = task.start;
  for (let i = firstAt(busy, task.start); i < busy.length && busy[i].start < task.end; i++) {
    if (busy[i].start > from) yield [from, busy[i].start];
    from = Math.max(from, busy[i].end);
  }
  if (from < task.end) yield [from, task.end];
}
function label(ctx, text, left, top, wide, tall, ratio) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, wide, tall);
  ctx.clip();
  ctx.lineWidth = 3 * ratio;
  ctx.strokeStyle = "rgb(0 0 0 / 55%)";
  ctx.fillStyle = "#fff";
  ctx.textAlign = "left";
  const x = left + Math.max(4 * ratio, (wide - ctx.measureText(text).width) / 2);
  ctx.strokeText(text, x, top + tall / 2);
  ctx.fillText(text, x, top + tall / 2);
  ctx.restore();
}
function hatching() {
  const size = 8 * devicePixelRatio, tile = h("canvas", { width: size, height: size }), ctx = tile.getContext("2d");
  ctx.strokeStyle = "rgb(255 255 255 / 60%)";
  ctx.lineWidth = 1.6 * devicePixelRatio;
  for (const shift of [-size, 0, size]) { ctx.beginPath(); ctx.moveTo(shift, size); ctx.lineTo(shift + size, 0); ctx.stroke(); }
  return ctx.createPattern(tile, "repeat");
}

// When each moment of the program begins, in seconds; what takes no time begins when the one before ends.
function momentTimes(plan) {
  const moments = plan.cost.memory.timeline.length, starts = new Float64Array(moments + 1).fill(-1);
  for (const task of plan.timeline) starts[task.moment] = starts[task.moment] < 0 ? task.start : Math.min(starts[task.moment], task.start);
  let at = plan.seconds;
  starts[moments] = at;
  for (let i = moments - 1; i >= 0; i--) { if (starts[i] < 0 || starts[i] > at) starts[i] = at; at = starts[i]; }
  starts[0] = 0;
  return starts;
}

function byKind(plan) {
  const moments = plan.cost.memory.timeline.length, found = new Map();
  for (const one of plan.cost.memory.everything) {
    if (!found.has(one.kind)) found.set(one.kind, new Float64Array(moments + 1));
    const steps = found.get(one.kind);
    steps[one.first] += one.bytes;
    steps[one.last + 1] -= one.bytes;
  }
  for (const steps of found.values()) for (let i = 1; i <= moments; i++) steps[i] += steps[i - 1];
  const place = (kind) => (MEMORY.indexOf(kind) + 1 || MEMORY.length + 1);
  return [...found].sort((a, b) => place(a[0]) - place(b[0]));
}
const memoryColour = (kind) => Math.max(0, MEMORY.indexOf(kind));

function memoryKeys(plan) {
  const peak = plan.cost.memory.peak_moment;
  return h("div", { class: "keys" }, byKind(plan).map(([kind, steps]) => h("span", {}, h("i", { style: { background: `var(--k${memoryColour(kind)})` } }), `${kind} ${bytes(steps[peak])} at the peak`)));
}

function drawMemory(plan, host) {
  const times = momentTimes(plan), kinds = byKind(plan), moments = times.length - 1, peak = plan.cost.memory.peak_moment, ratio = devicePixelRatio;
  const stacked = [], total = new Float64Array(moments + 1);
  for (const [, steps] of kinds) {
    for (let i = 0; i < moments; i++) total[i] += steps[i];
    total[moments] = moments ? total[moments - 1] : 0;
    stacked.push(Float64Array.from(total));
  }
  const room = plan.cost.device_memory_bytes, most = plan.cost.peak_memory_bytes, top = room < 2 * most ? Math.max(room, most) * 1.05 : most * 1.12;
  const series = kinds.map(([kind], i) => ({ i, kind, fill: colour(memoryColour(kind)) })).reverse();
  const mark = (u) => {
    const { ctx, bbox } = u, x = u.valToPos(times[peak], "x", true), y = u.valToPos(most, "y", true);
    ctx.save();
    ctx.strokeStyle = ink("warn");
    ctx.fillStyle = ink("warn");
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
      const right = x > bbox.left + bbox.width / 2;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(`peak ${bytes(most)}`, x + (right ? -6 : 6) * ratio, Math.max(bbox.top + 12 * ratio, y - 5 * ratio));
    }
    if (room <= top) { const limit = u.valToPos(room, "y", true); ctx.beginPath(); ctx.moveTo(bbox.left, limit); ctx.lineTo(bbox.left + bbox.width, limit); ctx.stroke(); }
    ctx.restore();
  };
  const momentAt = (time) => { let low = 0, high = moments - 1; while (low < high) { const middle = (low + high + 1) >> 1; if (times[middle] <= time) low = middle; else high = middle - 1; } return low; };
  const plot = new uPlot({
    width: host.clientWidth, height: 240, legend: { show: false }, padding: [6, 40, 0, 0],
    scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { range: [0, top || 1] } },
    series: [{}, ...series.map((one) => ({ stroke: one.fill, fill: one.fill, width: 0, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }))],
    axes: [xAxis(), { stroke: ink("quiet"), size: 92, grid: { stroke: ink("line"), width: 1 }, ticks: { stroke: ink("line") }, values: (u, list) => list.map(bytes), incrs: POWERS, space: 34 }],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false }, sync: { key: plan.synced, setSeries: false } },
    hooks: { draw: [mark], setScale: [follow(plan)] },
  }, [times, ...series.map((one) => stacked[one.i])], host);
  plot.over.addEventListener("mousemove", (event) => {
    const moment = momentAt(plot.posToVal(event.offsetX, "x"));
    const parts = kinds.map(([kind, steps]) => [kind, steps[moment]]).filter(([, size]) => size).sort((a, b) => b[1] - a[1]);
    showTip(`${bytes(plan.cost.memory.timeline[moment])} at ${seconds(times[moment])}\n${parts.map(([kind, size]) => `${kind} ${bytes(size)}`).join(", ")}`, event);
  });
  plot.over.addEventListener("mouseleave", () => showTip(null));
  plot.over.addEventListener("click", (event) => { if (plot.select.width < 4) setMoment(plan, momentAt(plot.posToVal(event.offsetX, "x"))); });
  plan.plots.push(plot);
}

let setMoment = () => {};
function peakTables(plan) {
  const memory = plan.cost.memory, times = momentTimes(plan), end = plan.seconds || 1;
  const life = (one) => h("div", { class: "life", role: "gridcell", title: `from ${seconds(times[one.first])} to ${seconds(times[one.last + 1])}` }, h("i", { style: { left: `${(100 * times[one.first]) / end}%`, width: `${(100 * (times[one.last + 1] - times[one.first])) / end}%`, background: `var(--k${memoryColour(one.kind)})` } }));
  const length = (one) => times[one.last + 1] - times[one.first];
  const head = h("h3", {}), all = h("button", { type: "button", id: "lives", "aria-pressed": "false" }, "Lives of all tensors");
  const at = h("button", { type: "button", id: "at-peak", "aria-pressed": "true" }, "At the peak");
  const grid = new Grid("what lies in memory", [
    { title: "what", width: "minmax(240px, 3fr)", key: (one) => one.name },
    { title: "kind", width: "100px", key: (one) => one.kind },
    { title: "lives", width: "minmax(200px, 3fr)", key: length, show: life },
    { title: "for", width: "90px", right: true, key: length, show: (one) => seconds(length(one)) },
    { title: "bytes", width: "90px", right: true, key: (one) => one.bytes, show: (one) => bytes(one.bytes) },
  ], [], { open: (one) => (plan.values.has(one.name) ? openValue(one.name) : openMoment(plan, one)), sort: 4, tools: [at, all] });
  const show = (moment) => {
    grid.setRows(moment === null ? memory.everything : memory.everything.filter((one) => one.first <= moment && moment <= one.last));
    const where = moment === memory.peak_moment ? `The peak of ${bytes(plan.cost.peak_memory_bytes)} is at ${memory.peak_at}` : `At ${seconds(times[moment])} there lie ${bytes(memory.timeline[moment])}`;
    head.textContent = moment === null ? "All that lies in memory at some time of the step" : `${where}; what lies there then:`;
    at.setAttribute("aria-pressed", String(moment === memory.peak_moment));
    all.setAttribute("aria-pressed", String(moment === null));
  };
  setMoment = (which, moment) => which === plan && show(moment);
  at.onclick = () => show(memory.peak_moment);
  all.onclick = () => show(null);
  show(memory.peak_moment);
  return [head, grid.node];
}
