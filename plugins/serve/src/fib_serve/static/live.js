"use strict";
// Local times, the theme, reading a file into the form, and keeping what is marked up to date.
(() => {
  const PAUSE_MS = 300; // between two requests for a page that changes
  const KINDS = ["submitted", "started", "evaluated", "requeued", "completed", "failed", "cancelled", "stage"];
  const THEMES = ["", "light", "dark"];

  const remembered = () => {
    try { return localStorage.getItem("theme") ?? ""; } catch { return ""; }
  };
  const useTheme = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
  };
  useTheme(remembered()); // before anything is drawn

  const startTheme = () => {
    const button = document.getElementById("theme");
    const label = (name) => { button.textContent = `Theme: ${name || "system"}`; };
    button.hidden = false;
    label(remembered());
    button.addEventListener("click", () => {
      const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length];
      try { localStorage.setItem("theme", name); } catch { /* it lasts until the page is left */ }
      useTheme(name);
      label(name);
    });
  };

  const localTimes = (part) => {
    for (const time of part.querySelectorAll("time")) {
      const date = new Date(time.dateTime);
      if (Number.isNaN(date.getTime())) continue;
      const only = time.dataset.day === undefined ? { dateStyle: "medium", timeStyle: "short" } : { dateStyle: "medium" };
      time.title = date.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
      time.textContent = date.toLocaleString(undefined, only);
    }
  };

  const startFile = () => {
    const input = document.getElementById("file");
    if (!input) return;
    document.getElementById("choose").hidden = false;
    input.addEventListener("change", async () => {
      const [file] = input.files;
      if (file) document.getElementById("solution").value = await file.text();
    });
  };

  // Put the new content in place; what the reader opened stays open.
  const replace = (old, fresh) => {
    const open = [...old.querySelectorAll("details[open][id]")].map((one) => one.id);
    localTimes(fresh);
    for (const one of fresh.querySelectorAll("details[id]")) one.open = open.includes(one.id);
    old.replaceWith(fresh);
  };

  const startLive = () => {
    const address = document.querySelector("[data-live]")?.dataset.live;
    if (!address) return;
    const source = new EventSource(address);
    let timer = null, busy = false, again = false;
    const update = async () => {
      timer = null;
      busy = true;
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (answer.redirected) return location.reload(); // signed out in the meantime
        const part = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
        if (answer.ok && part) replace(document.querySelector("[data-live]"), document.adoptNode(part));
        if (answer.ok && !part?.dataset.live) source.close();
      } catch { /* the server is away; the next event tries again */ }
      busy = false;
      if (again) soon();
    };
    const soon = () => {
      again = busy;
      if (!busy && timer === null) timer = setTimeout(update, PAUSE_MS);
    };
    for (const kind of KINDS) source.addEventListener(kind, soon);
    source.addEventListener("open", soon); // what happened since the page was made
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => event.persisted && location.reload()); // by "back"
  };

  addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    for (const zone of document.querySelectorAll("[data-zone]")) zone.textContent = "local";
    startTheme();
    startFile();
    startLive();
  });
})();
