// The live preview of an override: sends the form while you type and shows the answer. Without scripts, the button
// "Preview" does the same. The rate is hidden where the mode has none.
"use strict";
{
  const WAIT = 400; // milliseconds after the last change

  const start = () => {
    const section = document.getElementById("quota-preview");
    const form = section && section.closest("form");
    if (!form) return;
    let timer = 0;
    let request = null;

    const update = async () => {
      if (request) request.abort();
      request = new AbortController();
      const { signal } = request;
      section.setAttribute("aria-busy", "true");
      try {
        const answer = await fetch(section.dataset.url, {
          method: "POST", body: new FormData(form), signal, credentials: "same-origin",
        });
        if (answer.ok && !answer.redirected) section.innerHTML = await answer.text();
      } catch (error) {
        if (error.name === "AbortError") return; // a newer request is under way
      }
      section.removeAttribute("aria-busy");
    };

    const schedule = () => {
      window.clearTimeout(timer);
      if (form.elements.subject && form.elements.subject.value) timer = window.setTimeout(update, WAIT);
    };

    // Only the mode "another rate" has a rate. A field that is disabled is not sent.
    const { mode, rate } = form.elements;
    const showRate = () => {
      rate.disabled = mode.value !== "rate";
      const row = rate.closest(".form-row");
      if (row) row.hidden = rate.disabled;
    };
    if (mode && rate) {
      mode.addEventListener("change", showRate);
      showRate();
    }

    form.addEventListener("input", schedule);
    form.addEventListener("change", schedule);
    if (form.elements.subject && form.elements.subject.value && !section.querySelector("table, .quota-same") && !form.querySelector(".errorlist")) schedule();
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
}
