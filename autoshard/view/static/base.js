// What all parts of the page use: elements, figures in words, and a plan as it was read.
"use strict";
const SVG = "http://www.w3.org/2000/svg";

// An element. Text is only ever set as text: names come from other people's models.
function h(tag, attrs = {}, ...children) {
  const made = attrs.svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) {
    if (name === "svg" || value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(3).filter((one) => one !== undefined && one !== null && one !== false));
  return made;
}
const g = (tag, attrs, ...children) => h(tag, { svg: true, ...attrs }, ...children);

// A long name, which may go on in the next line behind its dots.
const dotted = (name) => name.split(/(?<=\.)/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

function figure(x) {
  const size = Math.abs(x);
  return size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1) : x.toFixed(2);
}
function seconds(x) {
  const size = Math.abs(x), sign = x < 0 ? "-" : "";
  if (size === 0) return "0 s";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) if (size >= scale) return `${sign}${figure(size / scale)} ${unit}`;
  return `${sign}${figure(size / 1e-9)} ns`;
}
function bytes(x) {
  const size = Math.abs(x), sign = x < 0 ? "-" : "";
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (size >= scale) return `${sign}${figure(size / scale)} ${unit}`;
  return `${sign}${Math.round(size)} B`;
}
const percent = (part, of) => (of ? `${figure((100 * part) / of)} %` : "");
const count = (n, word, words = `${word}s`) => `${n} ${n === 1 ? word : words}`;
const sum = (list, of = (one) => one) => list.reduce((total, one) => total + of(one), 0);
const colour = (k) => getComputedStyle(document.documentElement).getPropertyValue(`--k${k % 10}`).trim();
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The kinds of collectives: a colour and a letter each, so that neither stands alone.
const KINDS = {
  all_gather: [2, "G"], all_reduce: [3, "R"], reduce_scatter: [6, "S"], all_to_all: [4, "A"], permute: [5, "P"], halo: [9, "H"],
};
const kindOf = (kind) => KINDS[kind] || [8, (kind[0] || "?").toUpperCase()];
const talks = (step) => step.ranks > 1 && step.bytes > 0;
const mainStep = (move) => move.steps.reduce((most, one) => (one.bytes > most.bytes ? one : most), move.steps[0]);

function pathOf(name) {
  const parts = name.match(/[^./[\]]+/g) || [name];
  if (parts.length > 1 && /^\d+$/.test(parts[parts.length - 1])) parts.splice(-2, 2, parts.slice(-2).join("."));
  return parts;
}
const shorten = (name, most = 46) => (name.length <= most ? name : `${name.slice(0, Math.ceil(most / 2) - 1)}…${name.slice(-Math.floor(most / 2))}`);

const sourceLine = (source) => (source ? h("code", { title: source }, source.split(/[\\/]/).pop()) : null);

class Plan {
  constructor(record, number) {
    Object.assign(this, record);
    this.number = number;
    this.plots = [];
    this.synced = `step ${number}`;
    this.byName = new Map();
    this.values = new Map();
    this.readers = new Map();
    this.moves = record.redistributions;
    for (const [name, type] of Object.entries(record.types)) this.values.set(name, { name, type, layout: record.layouts[name], maker: -1, role: "argument" });
    for (const one of record.inputs) this.values.set(one.name, { name: one.name, type: one.type, layout: one.layout, maker: -1, role: one.role, why: one.why });
    record.operators.forEach((op, i) => {
      op.index = i;
      op.runs = op.runs ?? 1; // figures that equal the default are left out
      op.depth = op.depth ?? 0;
      op.total = op.seconds * op.runs;
      op.moves = [];
      if (!this.byName.has(op.name)) this.byName.set(op.name, i);
      for (const one of op.results) this.values.set(one.name, { ...one, maker: i, role: "" });
      for (const name of op.operands) {
        if (!this.readers.has(name)) this.readers.set(name, []);
        this.readers.get(name).push(i);
      }
    });
    this.moves.forEach((move, i) => {
      move.index = i;
      move.totalBytes = move.bytes * move.runs;
      move.total = move.seconds * move.runs;
      const at = this.byName.get(move.serves);
      if (at !== undefined) this.operators[at].moves.push(move);
    });
    this.timeline.forEach((task, i) => {
      task.index = i;
      task.exposed = task.exposed ?? 0;
      task.redistributions = task.redistributions ?? [];
      task.end = task.start + task.seconds;
    });
  }
  get seconds() { return this.cost.seconds; }
  get exposed() { return Math.max(0, this.cost.communication_seconds - this.cost.hidden_seconds); }
  module(path) {
    let at = this.modules;
    for (const part of path) {
      at = at && at.modules.find((one) => one.copies.includes(part));
      if (!at) return null;
    }
    return at;
  }
  phase(name) {
    const first = pathOf(name)[0];
    return first === "grad" ? "backward" : first === "update" ? "update" : "forward";
  }
}
const ranged = (module) => (module.copies.length > 1 ? `{${module.copies[0]}..${module.copies[module.copies.length - 1]}}` : module.name);

// What `packed` and `in_columns` of packed.py made: the data of an element, and the rows of a table.
async function unpacked(id) {
  const text = document.getElementById(id).textContent, raw = Uint8Array.fromBase64 ? null : atob(text);
  const bytes = raw === null ? Uint8Array.fromBase64(text) : new Uint8Array(raw.length);
  if (raw !== null) for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
function rowsOf(table) {
  if (Array.isArray(table)) return table;
  const rows = Array.from({ length: table.rows }, () => ({}));
  for (const [name, values] of Object.entries(table.all)) for (let i = 0; i < rows.length; i++) rows[i][name] = values[i];
  for (const [name, [places, values]] of Object.entries(table.some)) places.forEach((place, i) => { rows[place][name] = values[i]; });
  return rows;
}
async function planOf(number) {
  const found = await unpacked(`plan-${number}`);
  for (const name of ["operators", "redistributions", "inputs", "timeline"]) found[name] = rowsOf(found[name]);
  found.cost.memory.everything = rowsOf(found.cost.memory.everything);
  return new Plan(found, number);
}

const pageState = { plans: [], difference: null, pipeline: null, plan: null, redraw: [] };

function chip(layout) {
  const whole = !/[^,\s-]/.test(layout || "");
  return h("span", { class: whole ? "chip" : "chip split", title: whole ? "lies whole on each device" : "split by these axes, dim by dim; + marks terms of a sum" }, `[${layout ?? ""}]`);
}
function section(id, title, ...children) {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
}
function plain(heads, rows, { right = [], short = [] } = {}) {
  const line = (cells, tag, cls) => h("tr", cls ? { class: cls } : {}, cells.map((cell, i) => h(tag, { class: right.includes(i) ? "right" : short.includes(i) ? "short" : undefined, scope: tag === "th" ? "col" : undefined }, cell)));
  return h("div", { class: "scroll" }, h("table", { class: "plain" }, h("thead", {}, line(heads, "th")), h("tbody", {}, rows.map((row) => line(row.cells || row, "td", row.cls)))));
}
const link = (text, open, title) => h("button", { class: "link", type: "button", title, onclick: open }, text);

const tip = document.getElementById("tip");
function showTip(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
}
