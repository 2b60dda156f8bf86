// Tables that sort by their headings, filter by words and choices, and add rows as needed.

const ROWS = 100;

const isMissing = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);
const collator = new Intl.Collator("en", { numeric: true });

// Rows without a value come last in both directions.
const compare = (a, b, sign) => {
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  if (typeof a === "number" && typeof b === "number") return sign * (a < b ? -1 : a > b ? 1 : 0);
  return sign * collator.compare(a, b);
};

const cellOf = (column, row) => {
  const shown = column.show ? column.show(row) : column.value(row);
  const content = shown instanceof Node || column.numeric ? shown : breakable(shown ?? "");
  const name = [column.numeric && "n", column.class, column.wide && "wide"].filter(Boolean).join(" ");
  return make("td", { class: name || null, "data-label": column.name, "data-tip": column.tip && column.tip(row) }, content);
};

const rowText = (columns, row) => columns
  .map((column) => (column.search ? column.search(row) : column.numeric ? "" : column.value(row)))
  .join(" ").toLowerCase();

// A drop-down list of values above the table.
const choice = (one, rows, changed) => {
  const values = [...new Set(rows.map(one.value))].sort(collator.compare);
  if (values.length < 2) return null;
  const options = values.map((value) => make("option", { value }, clip(one.label ? one.label(value) : value, 60)));
  options.forEach((option, index) => { option.value = values[index]; });
  const all = make("option", { value: "" }, `${one.name}: all`);
  return make("select", { "aria-label": one.name, onchange: changed }, all, options);
};

const slug = (name) => name.toLowerCase().replace(/[^a-z0-9]+/g, "-");

// Cells that a spreadsheet would evaluate as formulas become text, as in `fib report --format csv`.
const csvCell = (value) => {
  if (typeof value === "number") return String(value);
  const text = clean(isMissing(value) ? "" : value);
  const safe = /^[=+\-@\t\r'\uff1d\uff0b\uff0d\uff20]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

const csvOf = (columns, rows) => {
  const fields = columns.flatMap((column) => column.csv ?? [[slug(column.name).replaceAll("-", "_"), column.value]]);
  const lines = [fields.map(([name]) => name), ...rows.map((row) => fields.map(([, value]) => value(row)))];
  return lines.map((cells) => `${cells.map(csvCell).join(",")}\n`).join("");
};

const download = (name, text) => {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
};

class Table {
  // columns: [{name, value(row), show(row)?, numeric?, tip(row)?, class?, search(row)?, csv?, wide?}]
  // route: keeps filters and order, under names that begin with `prefix`.
  constructor({ label, noun, columns, rows, choices = [], route, prefix = "" }) {
    Object.assign(this, { columns, noun, label, all: rows, rows, limit: ROWS, sorted: null, texts: new Map(), route, prefix });
    this.choices = choices
      .map((one) => ({ ...one, list: choice(one, rows, (event) => this.changed(one.name, event.target.value)) }))
      .filter((one) => one.list);
    this.box = make("input", {
      type: "search", placeholder: "Filter rows", "aria-label": `Filter ${label}`,
      title: "Show rows with all of these words; -word excludes. Shortcut: /",
      oninput: () => this.changed("q", this.box.value),
    });
    this.count = make("span", { class: "note count", role: "status" });
    this.headings = columns.map((column, index) => this.heading(column, index));
    this.body = make("tbody");
    this.more = make("button", { type: "button", class: "more", onclick: () => this.grow() });
    const save = make("button", { type: "button", class: "csv", title: "Download these rows as CSV", onclick: () => this.save() }, "CSV");
    const table = make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, this.headings)), this.body);
    const filters = rows.length > 8 || ["q", ...this.choices.map((one) => one.name)].some((name) => this.asked(name))
      ? [this.box, this.choices.map((one) => one.list)] : [];
    this.element = make("div", { class: "tabled" }, make("p", { class: "controls" }, filters, this.count, save),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table), this.more);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.restore();
    this.filter();
  }

  heading(column, index) {
    const button = make("button", { type: "button", title: column.help, onclick: () => this.sort(index) }, column.name);
    return make("th", { scope: "col", class: [column.numeric && "n", column.wide && "wide"].filter(Boolean).join(" ") || null }, button);
  }

  asked(name) { return this.route?.query.get(this.prefix + slug(name)) ?? ""; }

  // Restores filters and order from the address.
  restore() {
    this.box.value = this.asked("q");
    for (const one of this.choices) {
      one.list.value = this.asked(one.name);
      if (one.list.selectedIndex < 0) one.list.value = "";
    }
    const [, minus, name] = this.asked("sort").match(/^(-?)(.*)$/);
    const index = this.columns.findIndex((column) => name && slug(column.name) === name);
    if (index >= 0) this.order(index, minus ? "descending" : "ascending");
  }

  changed(name, value) {
    this.route?.remember(this.prefix + slug(name), value);
    this.filter();
  }

  sort(index) {
    const before = this.headings[index].getAttribute("aria-sort");
    const first = this.columns[index].descending ? "descending" : "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const way = before === first ? second : first;
    this.order(index, way);
    this.changed("sort", `${way === "descending" ? "-" : ""}${slug(this.columns[index].name)}`);
  }

  order(index, way) {
    this.headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    this.headings[index].setAttribute("aria-sort", way);
    this.sorted = { value: this.columns[index].value, sign: way === "ascending" ? 1 : -1 };
  }

  text(row) {
    if (!this.texts.has(row)) this.texts.set(row, rowText(this.columns, row));
    return this.texts.get(row);
  }

  filter() {
    const words = this.box.value.toLowerCase().split(/\s+/).filter((word) => word && word !== "-");
    const wanted = (row) => words.every((word) => (
      word.startsWith("-") ? !this.text(row).includes(word.slice(1)) : this.text(row).includes(word)));
    const chosen = (row) => this.choices.every((one) => !one.list.value || one.value(row) === one.list.value);
    this.rows = this.all.filter((row) => chosen(row) && wanted(row));
    if (this.sorted) this.rows.sort((a, b) => compare(this.sorted.value(a), this.sorted.value(b), this.sorted.sign));
    this.limit = ROWS;
    this.body.replaceChildren();
    this.fill();
  }

  fill() {
    const from = this.body.rows.length;
    const nodes = this.rows.slice(from, this.limit)
      .map((row) => make("tr", { class: row.isOld && "old" }, this.columns.map((column) => cellOf(column, row))));
    this.body.append(...nodes);
    if (!this.rows.length) {
      this.body.append(make("tr", {}, make("td", { colspan: this.columns.length, class: "none" }, "No matching rows.")));
    }
    const left = this.rows.length - Math.min(this.limit, this.rows.length);
    this.more.hidden = !left;
    this.more.textContent = `Show ${Math.min(ROWS, left)} more of ${left.toLocaleString("en")}`;
    const total = counted(this.all.length, this.noun);
    this.count.textContent = this.rows.length === this.all.length ? total : `${this.rows.length.toLocaleString("en")} of ${total}`;
  }

  save() { download(`${slug(this.label)}.csv`, csvOf(this.columns, this.rows)); }

  grow() {
    const from = this.body.rows.length;
    this.limit += ROWS;
    this.fill();
    // Keyboard users continue at the first new row.
    this.body.rows[from]?.querySelector("a, button")?.focus();
  }

  // Arrow keys move between the links of rows; Escape clears the filter.
  key(event) {
    if (event.key === "Escape" && event.target === this.box) {
      this.box.value = "";
      this.changed("q", "");
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.matches("select")) return;
    const links = [...this.body.rows].map((row) => row.querySelector("a, button")).filter(Boolean);
    const here = links.indexOf(event.target.closest("tr")?.querySelector("a, button"));
    const next = event.target === this.box ? links[0] : here < 0 ? null : links[here + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
