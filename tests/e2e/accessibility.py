"""Checks of an open page: accessible names, contrast, and whether it fits its screen."""

from tests.e2e.browser import Browser, Screen

_ACCESSIBILITY = r"""
const found = [];
const seen = (element) => element.checkVisibility({ visibilityProperty: true });
const isDjangos = (element) => element.matches(".vDateField, .vTimeField, #searchbar, .datetimeshortcuts *");
const short = (element) => element.outerHTML.replace(/\s+/g, " ").slice(0, 140);
const all = (selector) => [...(document.querySelector(arguments[0]) ?? document.body).querySelectorAll(selector)];
const byIds = (ids) =>
  (ids ?? "").split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join("").trim();
const named = (element) =>
  element.getAttribute("aria-label")?.trim() || byIds(element.getAttribute("aria-labelledby")) || element.title.trim();

if (!document.documentElement.lang) found.push("the page does not say its language");
if (!document.title.trim()) found.push("the page has no title");
const headings = [...document.querySelectorAll("h1")].filter(seen);
if (headings.length !== 1) found.push(`${headings.length} h1: ${headings.map((h) => h.textContent.trim())}`);

for (const control of all("input, select, textarea")) {
  if (control.type === "hidden" || !seen(control) || isDjangos(control)) continue;
  if (["submit", "button", "reset", "image"].includes(control.type)) {
    if (!(control.value || named(control))) found.push(`a button without words: ${short(control)}`);
    continue;
  }
  const label = [...(control.labels ?? [])].some((each) => each.textContent.trim());
  if (!label && !named(control)) found.push(`a control without a label: ${short(control)}`);
}
for (const pressed of all("button, a[href], summary, [role=button]")) {
  if (!seen(pressed) || isDjangos(pressed)) continue;
  const picture = pressed.querySelector("img[alt], svg title, svg[aria-label]");
  const words = pressed.textContent.trim() || named(pressed);
  if (!words && !picture) found.push(`nothing to press by name: ${short(pressed)}`);
}
for (const image of all("img")) {
  if (!image.hasAttribute("alt")) found.push(`a picture without a text: ${short(image)}`);
}
for (const drawing of all("svg")) {
  if (drawing.closest("[aria-hidden=true]") || drawing.parentElement.closest("svg")) continue;
  const name = drawing.getAttribute("aria-label") || byIds(drawing.getAttribute("aria-labelledby"))
    || drawing.querySelector(":scope > title")?.textContent.trim();
  if (drawing.getAttribute("role") !== "img" || !name) found.push(`a drawing without a text: ${short(drawing)}`);
}
for (const bar of all("meter, progress")) {
  if (seen(bar) && !bar.labels.length && !named(bar)) found.push(`a bar without a label: ${short(bar)}`);
}
for (const table of all("table")) {
  if (!seen(table)) continue;
  if (!table.querySelector("th")) found.push(`a table without headings: ${short(table)}`);
}
const ids = all("[id]").map((element) => element.id);
const shared = ids.filter((id, index) => ids.indexOf(id) !== index);
for (const id of new Set(shared)) found.push(`elements share the id ${id}`);
for (const styled of all("[style]")) {
  if (!styled.style.length) found.push(`a style that the policy has refused: ${short(styled)}`);
}
return found;
"""

_OVERFLOW = """
const [width] = arguments; // and not innerWidth, which a phone makes as wide as the page
const page = document.scrollingElement;
if (page.scrollWidth <= width) return [];
const isWide = (element) => element.getBoundingClientRect().right > width + 1;
const wide = [...document.querySelectorAll("body *")].filter(isWide);
const names = wide.map((each) => `${each.tagName.toLowerCase()}.${each.getAttribute("class")}#${each.id}`);
return [`${page.scrollWidth} px wide on ${width}: ${names.slice(0, 8)}`];
"""

_LOW_CONTRAST = r"""
const read = (colour) => {
  const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
  return { r, g, b, a };
};
const over = (top, below) => {
  const mix = (part) => top[part] * top.a + below[part] * (1 - top.a);
  return { r: mix("r"), g: mix("g"), b: mix("b"), a: 1 };
};
const ground = (element) => {
  const layers = [];
  for (let each = element; each; each = each.parentElement) {
    layers.push(read(getComputedStyle(each).backgroundColor));
    if (layers.at(-1).a === 1) break;
  }
  return layers.reduceRight((below, layer) => over(layer, below), { r: 255, g: 255, b: 255, a: 1 });
};
const light = (colour) => {
  const part = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part(colour.r) + 0.7152 * part(colour.g) + 0.0722 * part(colour.b);
};
const found = new Map();
const texts = document.createTreeWalker(document.querySelector("#content") ?? document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  const is_seen = texts.currentNode.textContent.trim() && element.checkVisibility() && element.clientWidth !== 1;
  if (!is_seen || element.closest("svg, :disabled, .selector")) continue;
  const style = getComputedStyle(element);
  const below = ground(element);
  const [a, b] = [light(over(read(style.color), below)), light(below)];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const wanted = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  const name = `${element.tagName.toLowerCase()}.${element.className}`;
  const words = texts.currentNode.textContent.trim().slice(0, 40);
  if (ratio < wanted) found.set(name, `${ratio.toFixed(2)}: ${name}: ${words}`);
}
return [...found.values()];
"""


def low_contrast(browser: Browser) -> list[str]:
    """Return the texts whose contrast is below level AA of WCAG."""
    return list(browser.run(_LOW_CONTRAST))


def accessibility_errors(browser: Browser, within: str = "#content") -> list[str]:
    """Return elements without a name, a label or a heading, within a selector. Around it, the admin is Django's."""
    return list(browser.run(_ACCESSIBILITY, within))


def overflow(browser: Browser, screen: Screen) -> list[str]:
    """Return the elements that make the page wider than the screen."""
    return list(browser.run(_OVERFLOW, screen.width))
