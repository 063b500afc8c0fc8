// Fetches the content of the overview again every few seconds. The server renders all HTML. Without scripts the page shows what
// it showed when it was loaded.
(() => {
  "use strict";

  const root = document.querySelector(".quota-overview");
  const content = document.getElementById("quota-content");
  const status = root.querySelector("[data-state]");
  const pause = root.querySelector("[data-pause]");
  const refreshInterval = Number(root.dataset.refreshInterval) * 1000;

  let paused = false;

  function setStatus(name) {
    if (status.dataset.is !== name) {
      status.dataset.is = name;
      status.textContent = status.dataset[name];
    }
  }

  async function refresh() {
    const isInUse = content.contains(document.activeElement) || String(document.getSelection() || "") !== "";
    if (!paused && !document.hidden && !isInUse) {
      try {
        const request = { credentials: "same-origin", redirect: "manual", cache: "no-store" };
        const reply = await fetch(root.dataset.contentUrl, request);
        if (reply.type === "opaqueredirect" || reply.status === 403) {
          setStatus("out");
          return;
        }
        if (!reply.ok) throw new Error(`status ${reply.status}`);
        const html = await reply.text();
        if (!paused) {
          content.innerHTML = html;
          setStatus("live");
        }
      } catch {
        if (!paused) setStatus("away");
      }
    }
    setTimeout(refresh, refreshInterval);
  }

  pause.hidden = false;
  root.querySelector("[data-without-script]").hidden = true;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (status.dataset.is !== "out") setStatus(paused ? "paused" : "live");
  });

  setStatus("live");
  setTimeout(refresh, refreshInterval);
})();
