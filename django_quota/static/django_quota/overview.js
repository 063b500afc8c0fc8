// The overview's live part: events as they come, by a stream where the server sends one, else by asking; and figures.
// What it inserts is HTML that the server has made. Without it the page is whole, only not live.
(() => {
  "use strict";

  const POLL = 2000;
  const AGAIN = 60000;
  const root = document.querySelector(".quota-overview");
  const list = document.getElementById("quota-events");
  const figures = document.getElementById("quota-figures");
  const state = root.querySelector("[data-state]");
  const pause = root.querySelector("[data-pause]");
  const nothing = root.querySelector("[data-no-events]");
  const { eventsUrl, streamUrl, figuresUrl } = root.dataset;
  const shown = Number(root.dataset.shown);

  let last = root.dataset.lastId;
  let paused = false;
  let way = "";
  let failed = 0;
  let source = null;
  let held = "";

  function say(what) {
    if (state.dataset.is !== what) {
      state.dataset.is = what;
      state.textContent = state.dataset[what];
    }
  }

  function show(html) {
    const made = document.createElement("template");
    made.innerHTML = html;
    for (const line of made.content.querySelectorAll("li")) list.prepend(line);
    while (list.children.length > shown) list.lastElementChild.remove();
    if (nothing) nothing.hidden = list.children.length > 0;
  }

  function take(news) {
    last = news.last;
    if (paused) held = keep(held + news.html);
    else if (news.html.trim()) show(news.html);
  }

  // While it is paused, the newest wait: as many as are shown.
  function keep(html) {
    const made = document.createElement("template");
    made.innerHTML = html;
    const lines = [...made.content.querySelectorAll("li")].slice(-shown);
    return lines.map((line) => line.outerHTML).join("\n");
  }

  async function ask(url) {
    const reply = await fetch(url, { credentials: "same-origin", redirect: "manual", cache: "no-store" });
    if (reply.type === "opaqueredirect" || reply.status === 403) {
      say("out");
      throw new Error("signed out");
    }
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    return reply;
  }

  async function poll() {
    if (!document.hidden) {
      try {
        take(await (await ask(`${eventsUrl}?after=${encodeURIComponent(last)}`)).json());
        if (!paused) say("polling");
      } catch {
        if (state.dataset.is !== "out") say("away");
      }
    }
    if (state.dataset.is !== "out") setTimeout(poll, POLL);
  }

  function follow() {
    way = "live";
    source = new EventSource(`${streamUrl}?after=${encodeURIComponent(last)}`);
    source.onopen = () => {
      failed = 0;
      if (!paused) say(way);
    };
    source.addEventListener("full", (message) => {
      // As many watch as the server streams to. To ask every two seconds instead would cost it more.
      source.close();
      way = "full";
      state.dataset.full = message.data;
      if (!paused) say(way);
      setTimeout(follow, AGAIN);
    });
    source.onmessage = (message) => take(JSON.parse(message.data));
    source.onerror = () => {
      // A stream ends now and then, and the browser comes again by itself; three times in a row is no stream at all.
      failed += 1;
      if (source.readyState === EventSource.CLOSED || failed > 3) {
        source.close();
        way = "polling";
        poll();
      }
    };
  }

  async function refresh() {
    const is_used = figures.contains(document.activeElement) || String(document.getSelection() || "") !== "";
    if (!paused && !document.hidden && !is_used) {
      try {
        const html = await (await ask(figuresUrl)).text();
        if (!paused) figures.innerHTML = html;
        if (!list || state.dataset.is === "away") say(way);
      } catch {
        if (state.dataset.is !== "out") say("away");
      }
    }
    if (state.dataset.is !== "out") setTimeout(refresh, Number(root.dataset.refreshedEvery) * 1000);
  }

  pause.hidden = false;
  root.querySelector("[data-without-script]").hidden = true;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    say(paused ? "paused" : way);
    if (!paused && held) {
      show(held);
      held = "";
    }
  });

  if (streamUrl && window.EventSource) follow();
  else if (eventsUrl) {
    way = "polling";
    poll();
  } else {
    way = "live";
    say(way);
  }
  setTimeout(refresh, Number(root.dataset.refreshedEvery) * 1000);
})();
