// Runs a script of the admin in a page of plain objects, and prints what it did in each scenario as JSON.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];
const settle = () => new Promise((resolve) => setImmediate(resolve));

class Thing {
  constructor(more = {}) {
    this.dataset = {};
    this.attributes = {};
    this.listeners = {};
    this.hidden = false;
    this.textContent = "";
    Object.assign(this, more);
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(name, listener) { (this.listeners[name] ||= []).push(listener); }
  emit(name) { for (const each of this.listeners[name] || []) each(); }
}

class Page {
  // `answers`: what each request gets: an answer, an error, or a promise of one.
  constructor(...answers) {
    this.did = [];
    this.timers = new Map();
    this.answers = answers;
    this.number = 0;
    this.document = new Thing({ readyState: "complete", activeElement: null, hidden: false, getSelection: () => "" });
    const setTimeout = (run, after) => { this.timers.set(++this.number, [run, after]); return this.number; };
    const clearTimeout = (timer) => this.timers.delete(timer);
    const page = this;
    this.globals = {
      document: this.document, setTimeout, clearTimeout, window: { setTimeout, clearTimeout },
      FormData: class { constructor(form) { this.form = form.name; } },
      AbortController: class {
        constructor() { this.signal = { stop: null }; }
        abort() { page.did.push("abort"); this.signal.stop?.(Object.assign(new Error("stopped"), { name: "AbortError" })); }
      },
      fetch: (url, { signal, body, ...how }) => {
        const sent = body ? ` ${body.form}` : "";
        this.did.push(`fetch ${url}${sent} ${JSON.stringify(how)}`);
        const answer = this.answers.shift();
        return new Promise((resolve, reject) => {
          if (signal) signal.stop = reject;
          if (answer instanceof Error) reject(answer);
          else if (answer !== "never") resolve(answer);
        });
      },
    };
  }
  run(name) { vm.runInNewContext(fs.readFileSync(path.join(folder, name), "utf8"), this.globals); }
  // Let the timers end that run now.
  async tick() {
    const due = [...this.timers.values()];
    this.timers.clear();
    for (const [run, after] of due) { this.did.push(`after ${after}`); run(); }
    await settle();
  }
}

const answer = (html, more = {}) => ({ ok: true, status: 200, type: "basic", redirected: false, text: async () => html, ...more });

// --- the overview ----------------------------------------------------------------------------------------------------

const overview = (...answers) => {
  const page = new Page(...answers);
  const texts = { live: "Live", paused: "Paused", away: "Away", out: "Out" };
  page.status = new Thing({ dataset: { ...texts } });
  page.pause = new Thing({ hidden: true });
  page.reload = new Thing();
  page.content = new Thing({ innerHTML: "old", contains: (element) => element === "inside" });
  const parts = { "[data-state]": page.status, "[data-pause]": page.pause, "[data-without-script]": page.reload };
  const dataset = { refreshInterval: "5", contentUrl: "/content/" };
  page.root = new Thing({ dataset, querySelector: (selector) => parts[selector] });
  page.document.querySelector = (selector) => (selector === ".quota-overview" ? page.root : null);
  page.document.getElementById = (id) => (id === "quota-content" ? page.content : null);
  page.run("overview.js");
  page.state = () => [page.status.textContent, page.content.innerHTML, page.timers.size];
  return page;
};

const after = async (page, change = () => {}) => {
  change(page);
  await page.tick();
  return [...page.did, ...page.state()];
};

const pausedMeanwhile = async (page) => {
  const [[refresh]] = page.timers.values();
  page.timers.clear();
  refresh();
  page.pause.emit("click");
  await settle();
  return page.state();
};

const failing = new Error("no network");

const scenarios = {
  "the overview begins": async () => {
    const page = overview();
    return [...page.state(), page.pause.hidden, page.reload.hidden];
  },
  "the overview is live": () => after(overview(answer("new"))),
  "the overview goes on": async () => {
    const page = overview(answer("new"), answer("newer"));
    await page.tick();
    return after(page);
  },
  "the overview is redirected": () => after(overview(answer("login", { type: "opaqueredirect", status: 0, ok: false }))),
  "the overview is forbidden": () => after(overview(answer("no", { status: 403, ok: false }))),
  "the overview gets an error": () => after(overview(answer("oh", { status: 500, ok: false }))),
  "the overview gets no answer": () => after(overview(failing)),
  "the overview is live again": async () => {
    const page = overview(failing, answer("new"));
    await page.tick();
    return after(page);
  },
  "the overview is paused": async () => {
    const page = overview(answer("new"));
    page.pause.emit("click");
    const found = await after(page);
    return [...found, page.pause.attributes["aria-pressed"]];
  },
  "the overview is paused twice": async () => {
    const page = overview(answer("new"));
    page.pause.emit("click");
    page.pause.emit("click");
    return [...page.state(), page.pause.attributes["aria-pressed"]];
  },
  "the overview is paused while it waits": () => pausedMeanwhile(overview(answer("new"))),
  "the overview is paused while it fails": () => pausedMeanwhile(overview(failing)),
  "the overview stays out": async () => {
    const page = overview(answer("no", { status: 403, ok: false }));
    await page.tick();
    page.pause.emit("click");
    return page.state();
  },
  "the overview is hidden": () => after(overview(answer("new")), (page) => { page.document.hidden = true; }),
  "the overview has the focus": () => after(overview(answer("new")), (page) => { page.document.activeElement = "inside"; }),
  "the overview has the focus elsewhere": () => after(overview(answer("new")), (page) => { page.document.activeElement = "menu"; }),
  "the overview has selected words": () => after(overview(answer("new")), (page) => { page.document.getSelection = () => "words"; }),
};

// --- the form of an override -----------------------------------------------------------------------------------------

const override = (...answers) => {
  const page = new Page(...answers);
  const given = typeof answers[0] === "function" ? answers.shift() : () => {};
  page.answers = answers;
  page.row = new Thing();
  page.subject = new Thing({ value: "user:7" });
  page.mode = new Thing({ value: "rate" });
  page.rate = new Thing({ disabled: false, closest: (selector) => (selector === ".form-row" ? page.row : null) });
  page.errors = null;
  page.old = null;
  page.form = new Thing({
    name: "form", elements: { subject: page.subject, mode: page.mode, rate: page.rate },
    querySelector: (selector) => (selector === ".errorlist" ? page.errors : null),
  });
  page.section = new Thing({
    dataset: { url: "/preview/" }, innerHTML: "old", closest: () => page.form,
    querySelector: (selector) => (selector === "table, .quota-same" ? page.old : null),
  });
  page.document.getElementById = (id) => (id === "quota-preview" ? page.section : null);
  given(page);
  page.run("override.js");
  page.state = () => [page.section.innerHTML, page.section.attributes["aria-busy"] ?? "", page.timers.size];
  return page;
};

Object.assign(scenarios, {
  "a form with a subject": () => after(override(answer("new"))),
  "a form without a subject": () => after(override((page) => { page.subject.value = ""; })),
  "a form with a preview": () => after(override((page) => { page.old = {}; })),
  "a form with errors": () => after(override((page) => { page.errors = {}; })),
  "a form that is typed into": async () => {
    const page = override((each) => { each.old = {}; }, answer("new"));
    page.form.emit("input");
    page.form.emit("input");
    return after(page);
  },
  "a form that is changed": async () => {
    const page = override((each) => { each.old = {}; }, answer("new"));
    page.form.emit("change");
    return after(page);
  },
  "a form that loses its subject": async () => {
    const page = override(answer("new"));
    page.subject.value = "";
    page.form.emit("input");
    return after(page);
  },
  "a form that waits": () => after(override("never")),
  "a form that is typed into while it waits": async () => {
    const page = override("never", answer("new"));
    await page.tick();
    page.form.emit("input");
    return after(page);
  },
  "a form that is typed into while it waits twice": async () => {
    const page = override("never", "never");
    await page.tick();
    page.form.emit("input");
    return after(page);
  },
  "a form that is redirected": () => after(override(answer("login", { redirected: true }))),
  "a form that gets an error": () => after(override(answer("oh", { ok: false, status: 500 }))),
  "a form that gets no answer": () => after(override(failing)),
  "a form of another rate": async () => { const page = override(); return [page.rate.disabled, page.row.hidden]; },
  "a form of a block": async () => {
    const page = override((each) => { each.mode.value = "blocked"; });
    return [page.rate.disabled, page.row.hidden];
  },
  "a form that becomes a block": async () => {
    const page = override();
    page.mode.value = "blocked";
    page.mode.emit("change");
    return [page.rate.disabled, page.row.hidden];
  },
  "a form without a mode": async () => override((page) => { page.form.elements = { subject: page.subject }; }).state(),
  "a page without a preview": async () => override((page) => { page.document.getElementById = () => null; }).state(),
  "a page that is loading": async () => {
    const page = override((each) => { each.document.readyState = "loading"; });
    const before = page.timers.size;
    page.document.emit("DOMContentLoaded");
    return [before, page.timers.size];
  },
});

const main = async () => {
  const found = {};
  for (const [name, run] of Object.entries(scenarios)) found[name] = await run();
  console.log(JSON.stringify(found));
};
main();
