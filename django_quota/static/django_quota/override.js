// The live preview of an override: the form is sent as it is typed, and the answer is shown. Without this, the button
// "Preview" does the same.
"use strict";
{
  const WAIT = 400; // milliseconds after the last change

  const start = () => {
    const section = document.getElementById("quota-preview");
    const form = section && section.closest("form");
    if (!form) return;
    let timer = 0;
    let asking = null;

    const ask = async () => {
      if (asking) asking.abort();
      asking = new AbortController();
      const { signal } = asking;
      section.setAttribute("aria-busy", "true");
      try {
        const answer = await fetch(section.dataset.url, {
          method: "POST", body: new FormData(form), signal, credentials: "same-origin",
        });
        if (answer.ok && !answer.redirected) section.innerHTML = await answer.text();
      } catch (error) {
        if (error.name === "AbortError") return; // a newer one is under way
      }
      section.removeAttribute("aria-busy");
    };

    const later = () => {
      window.clearTimeout(timer);
      const typed = ["subject", "user"].some((name) => form.elements[name] && form.elements[name].value);
      if (typed) timer = window.setTimeout(ask, WAIT);
    };

    form.addEventListener("input", later);
    form.addEventListener("change", later);
    if (window.django && window.django.jQuery) window.django.jQuery(form).on("change", "select", later); // autocomplete
    if (form.elements.subject && form.elements.subject.value && !section.querySelector("table")) later();
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
}
