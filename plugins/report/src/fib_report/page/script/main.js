// Which view is shown, the theme, and what appears under the pointer.

const VIEWS = {
  overview: ["Overview", overviewView],
  definitions: ["Definitions", definitionsView],
  definition: ["Definition", definitionView],
  solutions: ["Solutions", solutionsView],
  evaluations: ["Evaluations", evaluationsView],
  failures: ["Failures", failuresView],
  coverage: ["Coverage", coverageView],
};

const decoded = (text) => {
  try { return decodeURIComponent(text); } catch { return text; }
};

const readRoute = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return { view: Object.hasOwn(VIEWS, view) ? view : "overview", name: decoded(rest.join("/")), query: new URLSearchParams(query) };
};

const showViews = (data, title) => {
  const place = document.getElementById("view");
  const made = new Map(); // a view keeps its filters and its order while others are looked at
  const open = (run) => openRun(data, run);
  const show = (moved) => {
    const route = readRoute();
    if (!made.has(location.hash)) {
      const name = route.view === "definition" ? route.name : VIEWS[route.view][0];
      const heading = make("h2", { tabindex: "-1", class: "view" }, breakable(name));
      made.set(location.hash, put(make("section"), [heading, VIEWS[route.view][1](data, open, route)].flat()));
    }
    place.replaceChildren(made.get(location.hash));
    const current = route.view === "definition" ? "definitions" : route.view;
    document.querySelectorAll("#views a").forEach((link) => {
      if (link.dataset.view === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    document.title = route.view === "overview" ? title : `${clean(route.name || VIEWS[route.view][0])} · ${title}`;
    if (moved) {
      window.scrollTo(0, Math.min(window.scrollY, document.getElementById("views").offsetTop));
      place.querySelector("h2").focus({ preventScroll: true });
    }
  };
  window.addEventListener("hashchange", () => show(true));
  show(false);
};

const showTips = () => {
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = clip(target.dataset.tip, 600);
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  });
};

const switchTheme = () => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  try {
    const stored = localStorage.getItem("fib-theme");
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch { /* a page from a file may not store */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("fib-theme", root.dataset.theme); } catch { /* idem */ }
    tell();
  });
  system.addEventListener("change", tell);
  tell();
};

// "/" goes to the filter of the first table, as on many pages.
const listenForSlash = () => document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const box = document.querySelector("#view input[type=search]");
  if (!box) return;
  event.preventDefault();
  box.focus();
});

const start = async () => {
  switchTheme();
  showTips();
  listenForSlash();
  dismissByClick();
  const title = document.title;
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack it: DecompressionStream is missing");
    showViews(await readData(), title);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    document.getElementById("view").replaceChildren(make("p", { class: "note", role: "alert" }, `The data of this page cannot be shown: ${error.message}`));
    throw error;
  }
};
start();
