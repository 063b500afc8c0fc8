// Sends a scenario's requests and shows each reply as it comes. No framework, no external files.
"use strict";

const PAUSE = 90; // milliseconds between two requests, so that the eye can follow
const ROWS_KEPT = 3;

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const cookie = (name) => document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`))?.slice(name.length + 1) ?? "";
// Signing in changes the token, so read it from its cookie each time.
const post = (url, body) => fetch(url, {
  method: "POST", body, cache: "no-store",
  headers: { "X-CSRFToken": cookie("csrftoken"), "Accept": "application/json" },
});

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function inWords(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds >= 2 * 86400) return `${Math.ceil(seconds / 86400)} days`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  const pad = (number) => String(number).padStart(2, "0");
  return (hours ? `${hours}:${pad(minutes)}` : minutes) + `:${pad(seconds % 60)}`;
}

function window_(seconds) {
  for (const [name, size] of [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]]) {
    if (seconds % size === 0) return seconds === size ? name : `${seconds / size} ${name}s`;
  }
}

// RateLimit-Policy: "a";q=10;w=60, "b";q=3;qu="concurrent-requests"   and   RateLimit: "a";r=3;t=42, "b";r=3
function readLimits(headers) {
  const policies = [...(headers.get("RateLimit-Policy") ?? "").matchAll(/"([^"]*)";q=(\d+)(?:;qu="[^"]*")?(?:;w=(\d+))?/g)];
  const states = [...(headers.get("RateLimit") ?? "").matchAll(/"([^"]*)";r=(\d+)(?:;t=(\d+))?/g)];
  return policies.map(([, name, quota, seconds], index) => ({
    name, quota: Number(quota), seconds: Number(seconds ?? 0),
    left: Number(states[index]?.[2] ?? 0), more: Number(states[index]?.[3] ?? 0),
  }));
}

// Turn the lines of JSON that the server streams into Response objects.
async function* repliesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (text + part.value).split("\n");
    text = lines.pop(); // not whole yet
    for (const line of lines) {
      const { status, headers, body } = JSON.parse(line);
      yield new Response(body, { status, headers });
    }
  }
}

class Scenario {
  constructor(section) {
    this.section = section;
    this.options = section.dataset;
    this.headers = JSON.parse(this.options.headers);
    this.each = JSON.parse(this.options.each ?? "[]");
    this.find = (selector) => section.querySelector(selector);
    this.find(".send").addEventListener("click", ({ target }) => this.run(Number(this.options.sends), target));
    this.find(".one").addEventListener("click", ({ target }) => this.run(1, target));
    this.clear();
  }

  clear() {
    this.limits = new Map();
    this.waitUntil = null;
    this.find(".limits").replaceChildren();
    this.find(".wait").hidden = true;
    this.find(".said").hidden = true;
    this.find(".runs").replaceChildren(this.newRow(Number(this.options.sends)).row);
    this.current = null;
  }

  // An empty row of marks, to be filled as the replies come.
  newRow(count) {
    const row = element("div", "run");
    const marks = element("ol", "marks");
    const totals = element("p", "totals");
    row.append(marks, totals);
    const made = { row, marks, totals, dots: [], single: count === 1, admitted: 0, refused: 0, declined: 0, failed: 0 };
    for (let index = 0; index < count; index += 1) this.addDot(made);
    return made;
  }

  addDot({ marks, dots }) {
    const dot = element("li", "dot");
    dot.append(element("span", "unseen", `Request ${dots.length + 1}: not sent yet`));
    marks.append(dot);
    dots.push(dot);
  }

  // The row for a run: a new one, except that single requests share a row.
  rowFor(count) {
    if (count === 1 && this.current?.single) {
      this.addDot(this.current);
      return this.current;
    }
    const runs = this.find(".runs");
    if (!this.current) runs.replaceChildren();
    for (const past of runs.children) past.classList.add("past");
    const made = this.newRow(count);
    runs.append(made.row);
    while (runs.children.length > ROWS_KEPT) runs.firstChild.remove();
    return made;
  }

  async run(count, pressed) {
    const buttons = this.section.querySelectorAll(".actions button");
    const current = this.current = this.rowFor(count);
    for (const button of buttons) button.disabled = true;
    this.waitUntil = null;
    this.find(".wait").hidden = true;

    if (this.options.crowd && count > 1) await this.sendFromServer(current);
    else await this.sendFromHere(current, count);
    this.settle();

    const lostFocus = document.activeElement === document.body; // a disabled button cannot keep it
    for (const button of buttons) button.disabled = false;
    if (lostFocus) pressed.focus({ preventScroll: true });
    this.announce(current);
  }

  async sendFromHere(current, count) {
    const fresh = crypto.getRandomValues(new Uint32Array(2)).join("-");
    const pending = [];
    for (const [index, dot] of current.dots.slice(-count).entries()) {
      const value = count > 1 ? this.each[index] : undefined;
      const sentAt = performance.now();
      const sent = this.send(fresh, value).then((reply) => this.show(current, dot, reply, sentAt), () => this.fail(current, dot));
      pending.push(sent);
      if ("atOnce" in this.options) continue;
      await sent;
      await sleep(PAUSE);
    }
    await Promise.all(pending);
  }

  // A browser sends at most six requests to a site at once, so the server sends them.
  async sendFromServer(current) {
    const sentAt = performance.now();
    const missing = [...current.dots];
    try {
      const { ok, body } = await post(this.options.crowd);
      if (ok) for await (const reply of repliesOf(body)) await this.show(current, missing.shift(), reply, sentAt);
    } catch (error) {
      console.error(error);
    }
    for (const dot of missing) this.fail(current, dot);
  }

  // `value`: the value of this request; by default what the visitor typed.
  send(fresh, value = this.find(".field input")?.value) {
    const { url, method, given, freshHeader } = this.options;
    if (method === "POST") {
      const fields = JSON.parse(this.options.fields);
      return post(url, new URLSearchParams(given ? { ...fields, [given]: value } : fields));
    }
    const headers = { Accept: "application/json", ...this.headers };
    if (given) headers[given] = value;
    if (freshHeader) headers[freshHeader] = fresh;
    return fetch(url, { headers, cache: "no-store" });
  }

  async show(current, dot, reply, sentAt) {
    const { ok, status } = reply;
    const declined = status === Number(this.options.declines);
    if (!ok && !declined && status !== 429) return this.fail(current, dot, status);
    const kind = ok ? "admitted" : declined ? "declined" : "refused";
    const wait = kind === "refused" ? Number(reply.headers.get("Retry-After")) : null;
    current[kind] += 1;
    const words = { admitted: "admitted", declined: `declined with ${status}`, refused: `refused, try again in ${wait} seconds` };
    this.mark(current, dot, kind, words[kind]);
    for (const limit of readLimits(reply.headers)) this.showLimit(limit, current, sentAt);
    if (wait !== null) this.waitUntil = performance.now() + wait * 1000;
    if ("tells" in this.options) this.say(current, kind, await reply.json().then(({ detail }) => detail, () => "no answer that can be read"));
  }

  // Show the text of the last reply of each kind.
  say(current, kind, words) {
    current.said = { ...current.said, [kind]: words };
    this.find(".said").textContent = Object.values(current.said).join(" · ");
    this.find(".said").hidden = false;
  }

  fail(current, dot, status) {
    current.failed += 1;
    this.mark(current, dot, "failed", status ? `failed with ${status}` : "no answer");
  }

  mark(current, dot, kind, words) {
    const number = current.dots.indexOf(dot) + 1;
    dot.classList.add(kind, "fresh");
    dot.title = dot.firstChild.textContent = `Request ${number}: ${words}`;
    const parts = [element("b", "", String(current.admitted)), " admitted"];
    if (current.declined) parts.push(", ", element("b", "own", String(current.declined)), " declined");
    if (current.refused) parts.push(", ", element("b", "no", String(current.refused)), " refused");
    if (current.failed) parts.push(`, ${current.failed} failed`);
    current.totals.replaceChildren(...parts);
  }

  showLimit({ name, quota, seconds, left, more }, run, sentAt) {
    let shown = this.limits.get(name);
    if (!shown || shown.quota !== quota) {
      shown?.box.remove();
      const box = element("div", "limit");
      const text = element("span");
      const bar = element("div", "bar");
      bar.append(element("i"));
      bar.setAttribute("aria-hidden", "true"); // the text above says the same
      box.append(element("span", "", seconds ? `${quota} per ${window_(seconds)}` : `${quota} at once`), text, bar);
      this.find(".limits").append(box);
      shown = { box, text, fill: bar.firstChild, quota, atOnce: !seconds, full: Number(this.options.full) || quota, asOf: 0 };
      this.limits.set(name, shown);
    }
    if (sentAt < shown.asOf) return; // this reply was held back and is out of date
    // Of requests sent at once, the one with the least left was decided last.
    const overtaken = shown.run === run && "atOnce" in this.options && left >= shown.left;
    if (overtaken) return;
    shown.run = run;
    // t says when there is more; the limit is full after a whole window, or now if nothing is used.
    shown.fullAt = sentAt + (more && (seconds || more)) * 1000;
    this.fill(shown, left);
  }

  // After all replies, no request is running: a concurrency limit is free again.
  settle() {
    for (const shown of this.limits.values()) {
      if (!shown.atOnce) continue;
      shown.fullAt = null;
      this.fill(shown, shown.full);
      if (this.waitUntil !== null) this.waitUntil = performance.now();
    }
  }

  fill(shown, left) {
    shown.left = left;
    shown.text.textContent = `${left} left`;
    shown.fill.style.width = `${Math.min(100, (100 * left) / shown.full)}%`;
  }

  // Called a few times a second: count down, and fill a bar once its limit is free again.
  tick(now) {
    for (const shown of this.limits.values()) {
      if (shown.fullAt !== null && now >= shown.fullAt) {
        shown.fullAt = null;
        shown.asOf = now;
        this.fill(shown, shown.full);
      }
    }
    if (this.waitUntil === null) return;
    const wait = this.find(".wait");
    const left = Math.ceil((this.waitUntil - now) / 1000);
    wait.hidden = false;
    wait.classList.toggle("over", left <= 0);
    wait.replaceChildren(...(left > 0 ? ["Room again in ", element("b", "", inWords(left))] : ["There is room again."]));
    if (left > 0) return;
    this.waitUntil = null;
    for (const shown of this.limits.values()) {
      if (shown.left > 0) continue;
      shown.asOf = now;
      this.fill(shown, 1); // as Retry-After promised
    }
  }

  // Announced once, after all replies: a screen reader should not read every count.
  announce({ dots, admitted, declined, refused, failed }) {
    const seconds = Math.ceil((this.waitUntil - performance.now()) / 1000);
    const wait = this.waitUntil === null ? "" : seconds > 0 ? ` Room again in ${seconds} seconds.` : " There is room again.";
    const others = (declined ? `, ${declined} declined` : "") + (failed ? `, ${failed} failed` : "");
    this.find(".unseen[role=status]").textContent = `${dots.length} sent: ${admitted} admitted, ${refused} refused${others}.${wait}`;
  }
}

const scenarios = [...document.querySelectorAll(".scenario")].map((section) => new Scenario(section));
setInterval(() => { for (const scenario of scenarios) scenario.tick(performance.now()); }, 200);

const after = {
  "start-over": () => {
    for (const scenario of scenarios) scenario.clear();
    document.querySelector("#said").textContent = "Started over: every limit is free again, and the stock is full.";
  },
  "sign-in": (form, who) => showUser(form, who),
  "sign-out": (form) => showUser(form, ""),
};

// Show the signed-in user at each scenario that depends on it, and move the focus there.
function showUser(pressed, who) {
  for (const form of document.querySelectorAll('[data-form="sign-in"]')) form.hidden = who !== "";
  for (const form of document.querySelectorAll('[data-form="sign-out"]')) form.hidden = who === "";
  for (const name of document.querySelectorAll("[data-who]")) name.textContent = who;
  pressed.closest(".who").querySelector("form:not([hidden]) button").focus();
}

for (const form of document.querySelectorAll("[data-form]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const who = event.submitter?.value ?? "";
    const reply = await post(form.action, new URLSearchParams(who ? { who } : {})).catch(() => null);
    if (reply?.ok) after[form.dataset.form](form, who);
    else form.submit(); // submit without JavaScript, which shows the error
  });
}
