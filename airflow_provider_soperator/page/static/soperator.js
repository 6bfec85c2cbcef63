// Theme, links into Airflow, and new pictures, for documents that also work without any of it.
"use strict";
const root = document.documentElement;
const isFramed = window.parent !== window;

// Airflow's page says by a class whether it is dark; without it the system does.
const dark = matchMedia("(prefers-color-scheme: dark)");
function followTheme() {
  const host = isFramed && window.parent.document.documentElement;
  root.dataset.theme = (host ? host.classList.contains("dark") : dark.matches) ? "dark" : "light";
}
followTheme();
dark.addEventListener("change", followTheme);
if (isFramed) {
  new MutationObserver(followTheme).observe(window.parent.document.documentElement, { attributeFilter: ["class"] });
}

// A frame may not lead its page elsewhere, but Airflow's router listens to the page's history.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a.airflow");
  if (!link || !isFramed || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  window.parent.history.pushState(null, "", link.href);
  window.parent.dispatchEvent(new PopStateEvent("popstate", { state: null }));
});

function tell(text) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.hidden = !text;
}

function isChanged(field) {
  return field.matches("option") ? field.selected !== field.defaultSelected : field.value !== field.defaultValue;
}

// What is drawn anew between the press of a button and its release gets no click.
let isPressed = false;
addEventListener("pointerdown", () => { isPressed = true; });
// Of a press that opens a menu there may be no release.
for (const end of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(end, () => { isPressed = false; });

// A browser would wait for minutes for a server that hangs.
function ask(url, more = { headers: { Accept: "text/html" } }) {
  return fetch(url, { ...more, signal: AbortSignal.timeout(30000) });
}

// There is no answer, or none in time.
function isLost(error) {
  return error instanceof TypeError || error.name === "TimeoutError";
}

// Why the page is not shown any more: it is renewed no longer.
const OVER = {
  401: "Your session has ended. Log in again, and reload the page.",
  403: "Airflow does not show you this page any more: your rights have changed, or a proxy refuses it. Reload the page.",
};

async function refresh() {
  const page = document.getElementById("page");
  const answer = await ask(location.href);
  if (OVER[answer.status]) {
    tell(OVER[answer.status]);
    return false;
  }
  // What is gone has a document that says so.
  if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
  const drawn = new DOMParser().parseFromString(await answer.text(), "text/html");
  while (isPressed) await new Promise((later) => setTimeout(later, 50));
  const focused = document.activeElement;
  const selection = document.getSelection();
  const isSelected = !selection.isCollapsed && selection.containsNode(page, true);
  // What is being typed, chosen or selected is not taken away.
  if (isSelected || focused.matches("select") || [...page.querySelectorAll("input, option")].some(isChanged)) {
    tell("What is shown is getting old while a form is filled in, or text is selected.");
    return true;
  }
  // What has no id is found again by where it leads, and by its place among those that lead there, or nowhere.
  const alike = () => [...page.querySelectorAll("a, button, [tabindex]")].filter(
    (one) => one.getAttribute("href") === focused.getAttribute("href"),
  );
  const nth = alike().indexOf(focused);
  const places = [...page.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  page.replaceChildren(...drawn.getElementById("page").childNodes);
  document.body.dataset.refresh = drawn.body.dataset.refresh;
  page.querySelectorAll(".wide").forEach((one, place) => { one.scrollLeft = places[place] ?? 0; });
  const next = focused.id ? document.getElementById(focused.id) : alike()[nth];
  next?.focus({ preventScroll: true });
  tell("");
  return true;
}

// A tab that is looked at again does not show for a while what it showed when it was left.
let wake;
document.addEventListener("visibilitychange", () => wake?.());

async function keepFresh() {
  await new Promise((done) => {
    wake = done;
    setTimeout(done, 1000 * Number(document.body.dataset.refresh));
  });
  let goesOn = true;
  try {
    if (!document.hidden) goesOn = await refresh();
  } catch {
    tell("Airflow does not answer; what is shown is getting old.");
  }
  if (goesOn) keepFresh();
}
addEventListener("DOMContentLoaded", () => { if (document.body.dataset.refresh) keepFresh(); });
