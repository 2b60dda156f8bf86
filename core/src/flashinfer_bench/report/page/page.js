"use strict";
(() => {
  const table = document.getElementById("results");
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const rows = [...body.rows];

  const value = (row, column, numeric) => {
    const text = row.cells[column].dataset.v;
    if (!numeric) return text.toLowerCase();
    return text === "" ? NaN : Number(text === "nan" ? Infinity : text.replace("inf", "Infinity"));
  };
  // Rows without a value stay at the end in both directions.
  const order = (a, b, sign) => {
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return a < b ? -sign : a > b ? sign : 0;
  };
  headings.forEach((heading, column) => {
    heading.firstChild.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      const numeric = heading.classList.contains("n");
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      rows.sort((a, b) => order(value(a, column, numeric), value(b, column, numeric), ascending ? 1 : -1));
      body.append(...rows);
    });
  });

  const box = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    const total = rows.length === 1 ? "1 row" : `${rows.length} rows`;
    shown.textContent = count === rows.length ? total : `${count} of ${total}`;
  };
  box.addEventListener("input", filter);
  filter();

  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  });

  const button = document.getElementById("theme");
  const root = document.documentElement;
  const remember = (theme) => {
    root.dataset.theme = theme;
    try { localStorage.setItem("fib-theme", theme); } catch { /* a page from a file may not store */ }
  };
  try {
    const stored = localStorage.getItem("fib-theme");
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch { /* idem */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
    remember(dark ? "light" : "dark");
  });
})();
