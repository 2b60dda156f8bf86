// Routing, the theme and tooltips.

// Heading, function that makes the content, and tab of each view.
const VIEWS = {
  leaderboard: ["Leaderboard", leaderboardView],
  definitions: ["Definitions", definitionsView],
  definition: ["Definition", definitionView, "definitions"],
  solutions: ["Solutions", solutionsView],
  solution: ["Solution", solutionView, "solutions"],
  workloads: ["Workloads", workloadsView],
  workload: ["Workload", workloadView, "workloads"],
  evaluations: ["Evaluations", evaluationsView],
  evaluation: ["Evaluation", evaluationView, "evaluations"],
  failures: ["Failures", failuresView],
  compare: ["Compare", compareView],
  coverage: ["Coverage", coverageView],
};

const decoded = (text) => {
  try { return decodeURIComponent(text); } catch { return text; }
};

const readRoute = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...names] = path.split("/");
  return { view: Object.hasOwn(VIEWS, view) ? view : "leaderboard", names: names.map(decoded), query: new URLSearchParams(query) };
};

const showViews = (data, title) => {
  const place = document.getElementById("view");
  const made = new Map(); // views keep their state while others are shown
  const tabs = [...document.querySelectorAll("#views a")];
  const tabOf = (view) => VIEWS[view][2] ?? view;

  // Filters, order and choices are part of the address, so that links reproduce the view.
  const remembering = (route, section) => (name, value) => {
    if (value) route.query.set(name, value);
    else route.query.delete(name);
    made.forEach((one, hash) => { if (one === section) made.delete(hash); });
    const hash = hrefOf(route.view, route.names, route.query);
    made.set(hash, section);
    try { history.replaceState(null, "", hash); } catch { /* a page within another may not */ }
    document.body.dataset.shown = location.hash;
    if (!VIEWS[route.view][2]) tabs.filter((tab) => tab.dataset.view === route.view).forEach((tab) => { tab.href = hash; });
  };

  const show = (moved) => {
    const route = readRoute();
    if (!made.has(location.hash)) {
      const section = make("section");
      route.remember = remembering(route, section);
      const kind = VIEWS[route.view][2] && make("p", { class: "note kind" }, VIEWS[route.view][0]);
      const content = VIEWS[route.view][1](data, route);
      section.title_ = route.title ?? (route.names[0] || VIEWS[route.view][0]);
      put(section, [kind, make("h2", { tabindex: "-1", class: "view" }, breakable(section.title_)), content]);
      made.set(location.hash, section);
    }
    place.replaceChildren(made.get(location.hash));
    document.body.dataset.view = route.view;
    tabs.forEach((link) => {
      if (link.dataset.view === tabOf(route.view)) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    document.title = route.view === "leaderboard" ? title : `${clean(made.get(location.hash).title_)} · ${title}`;
    if (moved) {
      window.scrollTo(0, Math.min(window.scrollY, document.getElementById("views").offsetTop));
      place.querySelector("h2").focus({ preventScroll: true });
    }
    document.body.dataset.shown = location.hash;
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

// "/" focuses the filter of the first table.
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
  const title = document.title;
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser has no DecompressionStream; use a current one");
    showViews(await readData(), title);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    document.getElementById("view").replaceChildren(make("p", { class: "note", role: "alert" },
      `The data of this page cannot be shown: ${error.message}`));
    throw error;
  }
};
start();
