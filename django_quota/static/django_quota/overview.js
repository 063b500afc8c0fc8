// The live part of the overview: events by a stream where the server sends one, else by polling, and metrics by polling.
// The server renders all HTML. Without scripts the page is complete, but not live.
(() => {
  "use strict";

  const POLL_INTERVAL = 2000;
  const RETRY_INTERVAL = 60000; // after the server has said that too many are watching
  const MAX_FAILURES = 3;
  const root = document.querySelector(".quota-overview");
  const list = document.getElementById("quota-events");
  const metrics = document.getElementById("quota-metrics");
  const status = root.querySelector("[data-state]");
  const pause = root.querySelector("[data-pause]");
  const empty = root.querySelector("[data-no-events]");
  const { eventsUrl, streamUrl, metricsUrl } = root.dataset;
  const shown = Number(root.dataset.shown);
  const refreshInterval = Number(root.dataset.refreshInterval) * 1000;

  let last = root.dataset.lastId;
  let paused = false;
  let mode = ""; // the status while the page is not paused: live, polling or full
  let failures = 0;
  let held = []; // the newest lines that arrived during a pause

  function setStatus(name) {
    if (status.dataset.is !== name) {
      status.dataset.is = name;
      status.textContent = status.dataset[name];
    }
  }

  function show(lines) {
    for (const line of lines) list.prepend(line);
    while (list.children.length > shown) list.lastElementChild.remove();
    if (empty) empty.hidden = list.children.length > 0;
  }

  function receive(message) {
    last = message.last;
    const template = document.createElement("template");
    template.innerHTML = message.html;
    const lines = [...template.content.querySelectorAll("li")];
    if (paused) held = [...held, ...lines].slice(-shown);
    else if (lines.length) show(lines);
  }

  async function get(url) {
    const reply = await fetch(url, { credentials: "same-origin", redirect: "manual", cache: "no-store" });
    if (reply.type === "opaqueredirect" || reply.status === 403) {
      setStatus("out");
      throw new Error("signed out");
    }
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    return reply;
  }

  async function poll() {
    if (!document.hidden) {
      try {
        receive(await (await get(`${eventsUrl}?after=${encodeURIComponent(last)}`)).json());
        if (!paused) setStatus("polling");
      } catch {
        if (status.dataset.is !== "out") setStatus("away");
      }
    }
    if (status.dataset.is !== "out") setTimeout(poll, POLL_INTERVAL);
  }

  function stream() {
    mode = "live";
    const source = new EventSource(`${streamUrl}?after=${encodeURIComponent(last)}`);
    source.onopen = () => {
      failures = 0;
      if (!paused) setStatus(mode);
    };
    source.addEventListener("full", (message) => {
      // Polling every two seconds would cost the server more than a stream.
      source.close();
      mode = "full";
      status.dataset.full = message.data;
      if (!paused) setStatus(mode);
      setTimeout(stream, RETRY_INTERVAL);
    });
    source.onmessage = (message) => receive(JSON.parse(message.data));
    source.onerror = () => {
      // The server ends a stream now and then and the browser reconnects. Repeated failures mean that streams do not work.
      failures += 1;
      if (source.readyState === EventSource.CLOSED || failures > MAX_FAILURES) {
        source.close();
        mode = "polling";
        poll();
      }
    };
  }

  async function refresh() {
    const isInUse = metrics.contains(document.activeElement) || String(document.getSelection() || "") !== "";
    if (!paused && !document.hidden && !isInUse) {
      try {
        const html = await (await get(metricsUrl)).text();
        if (!paused) metrics.innerHTML = html;
        if (!list || status.dataset.is === "away") setStatus(mode);
      } catch {
        if (status.dataset.is !== "out") setStatus("away");
      }
    }
    if (status.dataset.is !== "out") setTimeout(refresh, refreshInterval);
  }

  pause.hidden = false;
  root.querySelector("[data-without-script]").hidden = true;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    setStatus(paused ? "paused" : mode);
    if (!paused && held.length) {
      show(held);
      held = [];
    }
  });

  if (streamUrl && window.EventSource) stream();
  else if (eventsUrl) {
    mode = "polling";
    poll();
  } else {
    mode = "live";
    setStatus(mode);
  }
  setTimeout(refresh, refreshInterval);
})();
