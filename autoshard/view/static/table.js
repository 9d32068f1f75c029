// A table of any number of rows, of which only those in sight are elements. Arrows move, Enter opens, heads sort.
"use strict";
const LINE = 26;

class Grid {
  // columns: {title, width (a CSS grid track), key(row) to sort and find by, show(row), right}
  constructor(label, columns, rows, { open, sort = null, descending = true, tools = [], find = true }) {
    Object.assign(this, { label, columns, rows, open, order: sort, descending, now: 0 });
    this.template = columns.map((one) => one.width).join(" ");
    this.least = `${sum(columns, (one) => parseInt(/\d+/.exec(one.width)[0], 10))}px`;
    this.input = h("input", { type: "search", placeholder: "Filter: words or /regex/", "aria-label": `Filter ${label}`, oninput: () => this.filter() });
    this.told = h("span", { class: "quiet", role: "status" });
    this.box = h("div", { class: "grid", role: "grid", tabindex: "0", "aria-label": label, "aria-colcount": columns.length, onscroll: () => this.draw(), onkeydown: (event) => this.key(event) });
    this.head = h("div", { class: "head", role: "row", style: { gridTemplateColumns: this.template } }, columns.map((one, i) => h("button", { type: "button", role: "columnheader", tabindex: "-1", class: one.right ? "right" : "", title: `Sort by ${one.title}`, onclick: () => this.sortBy(i) }, one.title)));
    this.space = h("div", { style: { position: "relative" }, role: "rowgroup" });
    this.box.style.setProperty("--least", this.least);
    this.box.append(this.head, this.space);
    this.node = h("div", {}, h("div", { class: "row tools" }, find ? this.input : null, tools, this.told), this.box);
    this.filter();
    new ResizeObserver(() => this.draw()).observe(this.box);
  }
  setRows(rows) { this.rows = rows; this.filter(); }
  filter() {
    const text = this.input.value.trim();
    let test = null;
    const expression = /^\/(.*)\/$/.exec(text);
    if (expression) {
      try { const made = new RegExp(expression[1], "i"); test = (one) => made.test(one); } catch { test = null; }
    } else if (text) {
      const words = text.toLowerCase().split(/\s+/);
      test = (one) => { const low = one.toLowerCase(); return words.every((word) => low.includes(word)); };
    }
    const whole = (row) => this.columns.map((one) => one.key(row)).join(" ");
    this.found = test ? this.rows.filter((row) => test(whole(row))) : [...this.rows];
    this.told.textContent = test ? `${this.found.length} of ${count(this.rows.length, "row")}` : count(this.rows.length, "row");
    this.sort();
  }
  sortBy(i) {
    this.descending = this.order === i ? !this.descending : typeof this.columns[i].key(this.rows[0] ?? {}) === "number";
    this.order = i;
    this.sort();
  }
  sort() {
    if (this.order !== null) {
      const key = this.columns[this.order].key, sign = this.descending ? -1 : 1;
      this.found.sort((a, b) => { const x = key(a), y = key(b); return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true })); });
    }
    [...this.head.children].forEach((one, i) => {
      one.setAttribute("aria-sort", this.order !== i ? "none" : this.descending ? "descending" : "ascending");
      one.textContent = this.columns[i].title + (this.order !== i ? "" : this.descending ? " ▾" : " ▴");
    });
    this.now = 0;
    this.box.scrollTop = 0;
    this.space.style.height = `${this.found.length * LINE}px`;
    this.box.setAttribute("aria-rowcount", this.found.length + 1);
    this.draw();
  }
  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / LINE) - 6);
    const shown = this.found.slice(first, first + Math.ceil((this.box.clientHeight || 420) / LINE) + 12);
    this.space.replaceChildren(...shown.map((row, i) => this.line(row, first + i)));
  }
  line(row, place) {
    return h("div", {
      class: place === this.now ? "line now" : "line", role: "row", "aria-rowindex": place + 2, "aria-selected": String(place === this.now),
      style: { top: `${place * LINE}px`, gridTemplateColumns: this.template },
      onclick: () => { this.now = place; this.open(row); this.draw(); },
    }, this.columns.map((one) => {
      const shown = one.show ? one.show(row) : String(one.key(row));
      return shown instanceof Element && shown.classList.contains("life") ? shown : h("div", { role: "gridcell", class: one.right ? "right" : "", title: typeof shown === "string" ? shown : undefined }, shown);
    }));
  }
  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 14, PageUp: -14, Home: -1e9, End: 1e9 };
    if (event.key === "Enter" && event.target === this.box && this.found[this.now]) this.open(this.found[this.now]);
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.now = Math.max(0, Math.min(this.found.length - 1, this.now + steps[event.key]));
    const top = this.now * LINE, seen = this.box.clientHeight - 30;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + LINE > this.box.scrollTop + seen) this.box.scrollTop = top + LINE - seen;
    this.draw();
  }
}
